"""Cache: which places a step recomputes, the others being read from stored keys and values.

Every published approximation (prefix, dual, delayed, interval) is an answer to that question, so
that is the whole interface. The only policy so far is none: every place, every step.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from wavefront.canvas import Canvas


class Cache(Protocol):
    """A policy. `due` is decided on the host by count, so that it never waits for the device."""

    def due(self, steps_since_full: int) -> bool:
        """True when this row's next forward must recompute everything."""
        ...

    def where(self, canvas: Canvas, scope: Tensor, age: Tensor) -> Tensor:
        """(B, W) long, W fixed: the places to recompute. `age`: steps since each commit."""
        ...
