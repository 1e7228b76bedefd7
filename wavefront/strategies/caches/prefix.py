"""Prefix: reuse everything before the text being decoded; recompute the rest (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_STEPS, IntRange
from wavefront.core.cache_policy import Cache, StoredInputs
from wavefront.core.masks import FAR, positions
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Prefix(Cache):
    """Recompute everything from the first position masked at the last full forward pass.

    With block(size=B), T = N and refresh=B this is the published prefix cache. It saves the work
    for the prompt and the finished text, so it helps with long prompts.
    """

    refresh: Annotated[int, IntRange(1, MAX_STEPS)] = 32

    def positions_to_refresh(
        self, rows: DecodeState, candidates: Tensor, stored: StoredInputs
    ) -> Tensor:
        here = positions(candidates)
        since_refresh = rows.canvas.masked | (rows.committed_at >= stored.refreshed_at[:, None])
        start = torch.where(since_refresh, here, FAR).amin(-1, keepdim=True)
        return (here >= start) & rows.canvas.real

    def window(self, width: int, length: int) -> int:
        return length
