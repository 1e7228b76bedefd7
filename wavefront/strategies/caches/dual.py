"""Dual: recompute only the positions being decoded; reuse both sides (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.cache_policy import Cache, Stored
from wavefront.core.errors import check_int
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Dual(Cache):
    """Recompute the candidates and what was committed since the last full forward pass.

    With block(size=B), T = N and refresh=B this is the published dual cache: a full forward pass
    at the start of every block, then the block alone.
    """

    refresh: int = 32

    def __post_init__(self) -> None:
        check_int("refresh", self.refresh, 1)

    def positions_to_refresh(self, rows: DecodeState, candidates: Tensor, stored: Stored) -> Tensor:
        return rows.committed_at >= stored.refreshed_at[:, None]

    def window(self, width: int, length: int) -> int:
        return width + self.refresh
