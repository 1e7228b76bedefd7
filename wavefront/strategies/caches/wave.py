"""Wave: the places read, what was just committed, and their vicinity are recomputed; ours."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.cache_policy import Cache, Stored
from wavefront.core.errors import check_float, check_int
from wavefront.core.masks import near
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Wave(Cache):
    """Recompute what the strategy reads, the last `delay` steps' commits, and what lies near.

    A fresh token changes its neighbors most, and itself once more when the next one stands beside
    it, so `delay` is 2. `near` places on both sides of what is read go along; the rest of the
    window goes to the next nearest. `drop`: a full forward too when the mean probability of what a
    row reads falls below this share of what it was at the last full one; 0 turns that off.
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

    def positions_to_refresh(self, rows: DecodeState, wanted: Tensor, stored: Stored) -> Tensor:
        fresh = (rows.committed_at >= 0) & (rows.committed_at >= rows.step[:, None] - self.delay)
        return fresh | (near(wanted, self.near) & rows.canvas.real)

    def needs_refresh(self, sure: Tensor, stored: Stored) -> Tensor:
        return sure < self.drop * stored.sure

    def window(self, width: int, length: int) -> int:
        return max(self.size, width + self.near)
