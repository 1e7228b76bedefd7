"""Wave: recompute the candidates, the latest commits, and the positions near them; our own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.cache_policy import Cache, Stored
from wavefront.core.errors import check_float, check_int
from wavefront.core.masks import near
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Wave(Cache):
    """Recompute the candidates, the commits of the last `delay` steps, and positions near them.

    A new token changes its neighbors most, and changes itself once more when the next token is
    committed beside it, so `delay` is 2. `near` positions on both sides of the candidates are
    recomputed too; the rest of the window goes to the next nearest positions.
    `drop`: run a full forward pass early when the mean probability of a row's candidates falls
    below this share of its value at the last full pass; 0 turns this off.
    """

    refresh: int = 32
    size: int = 64
    delay: int = 2
    near: int = 16
    drop: float = 0.0

    def __post_init__(self) -> None:
        check_int("refresh", self.refresh, 1)
        check_int("size", self.size, 1)
        check_int("delay", self.delay, 0)
        check_int("near", self.near, 0)
        check_float("drop", self.drop, 0, 1)

    def positions_to_refresh(self, rows: DecodeState, candidates: Tensor, stored: Stored) -> Tensor:
        fresh = (rows.committed_at >= 0) & (rows.committed_at >= rows.step[:, None] - self.delay)
        return fresh | (near(candidates, self.near) & rows.canvas.real)

    def needs_refresh(self, mean_probability: Tensor, stored: Stored) -> Tensor:
        return mean_probability < self.drop * stored.mean_probability

    def window(self, width: int, length: int) -> int:
        return max(self.size, width + self.near)
