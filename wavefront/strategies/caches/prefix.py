"""Prefix: what lies before the text being decoded is stored, the rest recomputed (Fast-dLLM)."""

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
    """Recompute everything from the first place that was masked at the last full forward on.

    With block(size=B), T = N and refresh=B this is the published prefix cache. It saves what the
    prompt and the finished text are of the whole, so it pays for long prompts.
    """

    refresh: int = 32

    def __post_init__(self) -> None:
        check_int("refresh", self.refresh, 1)

    def positions_to_refresh(self, rows: DecodeState, wanted: Tensor, stored: Stored) -> Tensor:
        place = positions(wanted)
        open_ = rows.canvas.masked | (rows.committed_at >= stored.since[:, None])
        start = torch.where(open_, place, FAR).amin(-1, keepdim=True)
        return (place >= start) & rows.canvas.real

    def window(self, width: int, length: int) -> int:
        return length
