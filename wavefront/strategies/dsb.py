"""DSB: the best of a block that slides as it is filled (dynamic sliding block, 2602.05992)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.masks import FAR, first
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.strategies.selectors.threshold import Threshold


@dataclass(frozen=True)
class Dsb(Strategy):
    """Choose from a block that starts at the first masked slot and grows with every commit.

    The block has `size` masked positions while that many remain, so a difficult position does not
    block the others. `limit` is the longest block in slots: without it the block is the published
    "greedy", and limit=size is "const". If there are fewer candidates than the selector must
    commit, the next masked positions are used.
    """

    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 32  # B
    limit: Annotated[int, IntRange(1, MAX_POSITIONS)] | None = None  # B_max
    selector: Selector = field(default=Threshold(0.9), repr=False)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        block = self._block(canvas.masked, canvas.slot, progress)
        return block | self._fallback(canvas.masked, progress)

    def step(self, view: View, state: State) -> Decision:
        block = self._block(view.masked, view.slot, view.progress)
        fallback = self._fallback(view.masked, view.progress)
        return Decision(self.selector.select(view, block, fallback), candidates=block)

    def _block(self, masked: Tensor, slot: Tensor, progress: RowProgress) -> Tensor:
        """Return (B, L) bool: the masked positions before the block's right edge."""
        end = self.size + progress.length - progress.left  # one slot further per commit
        if self.limit is not None:
            start = torch.where(masked, slot, FAR).amin(-1)
            end = torch.minimum(end, start + self.limit)
        return masked & (slot < end[:, None])

    def _fallback(self, masked: Tensor, progress: RowProgress) -> Tensor:
        """Return (B, L) bool: the leftmost masked positions, as many as must be committed."""
        return first(masked, self.selector.min_commits(progress))

    def width(self, length: int, steps: int) -> int:
        return max(self.size, -(-length // steps) if self.selector.planned else 1)
