"""Prefix: reuse everything before the text being decoded; recompute the rest (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wavefront.core.cache_policy import Cache, Stored
from wavefront.core.errors import check_int
from wavefront.core.masks import FAR, positions
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Prefix(Cache):
    """Recompute everything from the first position masked at the last full forward pass.

    With block(size=B), T = N and refresh=B this is the published prefix cache. It saves the work
    for the prompt and the finished text, so it helps with long prompts.
    """

    refresh: int = 32

    def __post_init__(self) -> None:
        check_int("refresh", self.refresh, 1)

    def positions_to_refresh(self, rows: DecodeState, candidates: Tensor, stored: Stored) -> Tensor:
        here = positions(candidates)
        since_refresh = rows.canvas.masked | (rows.committed_at >= stored.refreshed_at[:, None])
        start = torch.where(since_refresh, here, FAR).amin(-1, keepdim=True)
        return (here >= start) & rows.canvas.real

    def window(self, width: int, length: int) -> int:
        return length
