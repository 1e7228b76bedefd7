"""Cache: which places a step recomputes, the others being read from stored keys and values.

Every published approximation (prefix, dual, delayed, interval) is an answer to that question, so
that is the whole interface: a policy that asks for places, one file on the shelf `caches/`. Two
things are asked for whatever the policy: the places the strategy reads, and those whose token
changed since their keys and values were computed, so no key ever stands for a token that is gone.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from wavefront.core.spec import Spec
from wavefront.core.state import DecodeState


class Stored(NamedTuple):
    """What the stored keys and values were computed from."""

    tokens: Tensor  # (B, L) long: the token of each place when it was last computed
    since: Tensor  # (B,) long: the row's step at its last full forward
    sure: Tensor  # (B,) float32: the mean probability of what was read then


class Cache(Spec):
    """A policy. `refresh` counts on the host, so that it never waits for the device."""

    registry: ClassVar[str] = "caches"
    refresh: int  # a full forward every so many steps; 1 is no cache at all

    def positions_to_refresh(self, rows: DecodeState, wanted: Tensor, stored: Stored) -> Tensor:
        """(B, L) bool: places to recompute besides those wanted and those changed."""
        raise NotImplementedError

    def needs_refresh(self, sure: Tensor, stored: Stored) -> Tensor:
        """(B,) bool: rows that want a full forward before its time; `sure` as in `stored`, now.

        It is read a step late, so that nobody waits for it.
        """
        return torch.zeros_like(sure, dtype=torch.bool)

    def window(self, width: int, length: int) -> int:
        """How many places a step recomputes: `width` of them are read, `length` are to be filled.

        The number is fixed; what is asked for and does not fit waits, and what is left of it goes
        to the places nearest to those read.
        """
        raise NotImplementedError


def sureness(logp: Tensor, wanted: Tensor) -> Tensor:
    """(B,) float32: the mean probability of the proposals at the places `wanted`; 1 of none."""
    count = wanted.sum(-1)
    total = torch.where(wanted, logp.exp(), 0).sum(-1)
    return torch.where(count > 0, total / count.clamp(min=1), 1.0)
