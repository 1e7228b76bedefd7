"""Left to right: the leftmost positions first (the paper's autoregressive baseline)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.masks import first
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.strategies.selectors.quota import Quota


@dataclass(frozen=True)
class LeftToRight(Strategy):
    """Choose from the leftmost masked positions, as many as the selector must commit."""

    selector: Selector = field(default=Quota(), repr=False)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return first(canvas.masked, self.selector.min_commits(progress).clamp(min=1))

    def step(self, view: View, state: State) -> Decision:
        leftmost = first(view.masked, self.selector.min_commits(view.progress).clamp(min=1))
        return Decision(self.selector.select(view, leftmost, leftmost), candidates=leftmost)

    def width(self, length: int, steps: int) -> int:
        return -(-length // steps)
