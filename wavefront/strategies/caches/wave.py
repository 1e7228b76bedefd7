"""Wave: recompute the candidates, the latest commits, and the positions near them; our own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, MAX_STEPS, FloatRange, IntRange
from wavefront.core.cache_policy import Cache, StoredInputs
from wavefront.core.masks import near
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Wave(Cache):
    """Recompute the candidates, the commits of the last `delay` steps, and positions near them.

    A new token changes its neighbours most, and changes itself once more when the next token is
    committed next to it, so `delay` is 2. `near` positions on both sides of the candidates are
    recomputed too; the rest of the window goes to the next nearest positions.
    `drop`: run a full forward pass early when the mean probability of a row's candidates falls
    below this share of its value at the last full pass; 0 turns this off.
    """

    refresh: Annotated[int, IntRange(1, MAX_STEPS)] = 32
    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 64
    delay: Annotated[int, IntRange(0, MAX_STEPS)] = 2
    near: Annotated[int, IntRange(0, MAX_POSITIONS)] = 16
    drop: Annotated[float, FloatRange(0, 1)] = 0.0

    def positions_to_refresh(
        self, rows: DecodeState, candidates: Tensor, stored: StoredInputs
    ) -> Tensor:
        fresh = (rows.committed_at >= 0) & (rows.committed_at >= rows.step[:, None] - self.delay)
        return fresh | (near(candidates, self.near) & rows.canvas.real)

    def needs_refresh(self, mean_probability: Tensor, stored: StoredInputs) -> Tensor:
        return mean_probability < self.drop * stored.mean_probability

    def window(self, width: int, length: int) -> int:
        return max(self.size, width + self.near)
