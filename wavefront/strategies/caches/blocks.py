"""Blocks: the exact cache of a block-causal model, which its decodes use by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_STEPS
from wavefront.core.cache_policy import Cache, StoredInputs
from wavefront.core.state import DecodeState


@dataclass(frozen=True)
class Blocks(Cache):
    """Keep the keys and values of finished blocks, and recompute the current block.

    A finished block is computed once more, together with the first step of the next block. From
    then on nothing that it attends to changes, so the result equals the uncached decode. Only
    block-causal models have this property.
    """

    refresh: ClassVar[int] = MAX_STEPS  # pyright: ignore[reportIncompatibleVariableOverride]
    exact = True

    def positions_to_refresh(
        self, rows: DecodeState, candidates: Tensor, stored: StoredInputs
    ) -> Tensor:
        return torch.zeros_like(candidates)  # the engine recomputes every block that changed

    def window(self, width: int, length: int) -> int:
        return 2 * width  # the current block and the one before it
