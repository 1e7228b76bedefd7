"""The cache policy interface: which positions a step recomputes.

All other positions are read from stored keys and values. Every published approximation (prefix,
dual, delayed, interval) differs only in this choice. A policy is one file in `strategies/caches/`.
With every policy, a step also recomputes the candidates and every position whose token changed
since its keys and values were computed. So no stored key belongs to a token that has been replaced.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from wavefront.core.spec import Spec
from wavefront.core.state import DecodeState


class StoredInputs(NamedTuple):
    """What the stored keys and values were computed from."""

    tokens: Tensor  # (B, L) long: the token at each position when it was last computed
    refreshed_at: Tensor  # (B,) long: the row's step at its last full forward pass
    mean_probability: Tensor  # (B,) float32: of the proposals at the candidates at that step


class Cache(Spec):
    """A cache policy. `refresh` counts steps on the host, so it never waits for the device."""

    registry: ClassVar[str] = "caches"
    exact: ClassVar[bool] = False  # True if the result equals the uncached decode
    refresh: int  # full forward pass every `refresh` steps; with 1 nothing is reused

    def positions_to_refresh(
        self, rows: DecodeState, candidates: Tensor, stored: StoredInputs
    ) -> Tensor:
        """Return (B, L) bool: positions to recompute besides candidates and changed tokens."""
        raise NotImplementedError

    def needs_refresh(self, mean_probability: Tensor, stored: StoredInputs) -> Tensor:
        """Return (B,) bool: rows that need a full forward pass before `refresh` steps have passed.

        `mean_probability` (B,) is the current value of the field in `stored`. The engine reads the
        result one step late, without waiting for the device.
        """
        return torch.zeros_like(mean_probability, dtype=torch.bool)

    def window(self, width: int, length: int) -> int:
        """Return how many positions a step recomputes.

        The number is fixed. Positions that do not fit wait for a later step. If there is room left,
        the window also takes the positions nearest to the candidates.

        Args:
            width: How many positions a step usually reads.
            length: How many positions there are to fill.
        """
        raise NotImplementedError


def mean_probability(logp: Tensor, candidates: Tensor) -> Tensor:
    """Return (B,) float32: the mean probability of the candidates' proposals; 1 without any."""
    count = candidates.sum(-1)
    total = torch.where(candidates, logp.exp(), 0).sum(-1)
    return torch.where(count > 0, total / count.clamp(min=1), 1.0)
