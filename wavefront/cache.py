"""Cache: which places a step recomputes, the others being read from stored keys and values.

Every published approximation (prefix, dual, delayed, interval) is an answer to that question, so
that is the whole interface: a policy over `Rows`, used by an `Advance` that calls `model.hidden`
with a window. The only policy so far is none: every place, every step.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from wavefront.rows import Rows


class Cache(Protocol):
    """A policy. `due` is decided on the host by count, so that it never waits for the device."""

    def due(self, steps_since_full: int) -> bool:
        """True when this row's next forward must recompute everything."""
        ...

    def where(self, rows: Rows) -> Tensor:
        """(B, W) long, W fixed: the places to recompute; `rows.age` has the step of each commit."""
        ...
