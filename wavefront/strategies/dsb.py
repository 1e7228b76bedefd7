"""DSB: the best of a block that slides on as it is filled (dynamic sliding block, 2602.05992)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.errors import check_int
from wavefront.core.masks import FAR, first
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.strategies.selectors.threshold import Threshold


@dataclass(frozen=True)
class Dsb(Strategy):
    """Look in a block that begins at the first masked slot and grows by a slot with every commit.

    So it always offers `size` masked places, while there are as many, and a hard one holds up
    nothing. `limit` keeps the block from being longer than so many slots: without it the block is
    the published "greedy", with limit=size it is "const". When the block holds fewer places than
    the take insists on, the next masked ones serve.
    """

    size: int = 32  # B
    limit: int | None = None  # B_max
    selector: Selector = field(default=Threshold(0.9), repr=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)
        if self.limit is not None:
            check_int("limit", self.limit, 1)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return self._scope(canvas.masked, canvas.slot, progress) | self._spare(
            canvas.masked, progress
        )

    def step(self, view: View, state: State) -> Decision:
        scope = self._scope(view.masked, view.slot, view.progress)
        return Decision(
            self.selector.select(view, scope, self._spare(view.masked, view.progress)), scope=scope
        )

    def _scope(self, masked: Tensor, slot: Tensor, progress: RowProgress) -> Tensor:
        """(B, L) bool: masked places before the block's right edge."""
        end = self.size + progress.length - progress.left  # as many slots further as are committed
        if self.limit is not None:
            start = torch.where(masked, slot, FAR).amin(-1)
            end = torch.minimum(end, start + self.limit)
        return masked & (slot < end[:, None])

    def _spare(self, masked: Tensor, progress: RowProgress) -> Tensor:
        """(B, L) bool: the leftmost masked places, as many as the take insists on."""
        return first(masked, self.selector.min_commits(progress))

    def width(self, length: int, steps: int) -> int:
        return max(self.size, -(-length // steps) if self.selector.planned else 1)
