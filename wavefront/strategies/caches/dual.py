"""Dual: recompute only the positions being decoded; reuse both sides (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wavefront.core.bounds import MAX_STEPS, IntRange
from wavefront.core.cache_policy import Cache, StoredInputs
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Dual(Cache):
    """Recompute the candidates and what was committed since the last full forward pass.

    With block(size=B), T = N and refresh=B this is the published dual cache: a full forward pass
    at the start of every block, then the block alone.
    """

    refresh: Annotated[int, IntRange(1, MAX_STEPS)] = 32

    def positions_to_refresh(
        self, rows: DecodeState, candidates: Tensor, stored: StoredInputs
    ) -> Tensor:
        return rows.committed_at >= stored.refreshed_at[:, None]

    def window(self, width: int, length: int) -> int:
        return width + self.refresh
