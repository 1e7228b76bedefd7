"""DCD: the best of the first few masked positions (deferred commitment, 2601.02076)."""

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
class Dcd(Strategy):
    """Choose from the first `masks` masked positions, within `span` slots of the first one.

    An uncertain position waits while later ones are committed, up to `span` slots ahead. If there
    are fewer candidates than the selector must commit, the next masked positions are used. The
    published code also closes the window at a committed end token; here eos='stop' ends the decode
    of any strategy once everything before that token is decided.
    """

    masks: Annotated[int, IntRange(1, MAX_POSITIONS)] = 16
    span: Annotated[int, IntRange(1, MAX_POSITIONS)] = 128
    selector: Selector = field(default=Threshold(0.9), repr=False)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return self._window(canvas.masked, canvas.slot) | self._fallback(canvas.masked, progress)

    def step(self, view: View, state: State) -> Decision:
        window = self._window(view.masked, view.slot)
        fallback = self._fallback(view.masked, view.progress)
        return Decision(self.selector.select(view, window, fallback), candidates=window)

    def _window(self, masked: Tensor, slot: Tensor) -> Tensor:
        """Return (B, L) bool: the first `masks` masked positions within `span` slots."""
        start = torch.where(masked, slot, FAR).amin(-1, keepdim=True)
        return first(masked, self.masks) & (slot < start + self.span)

    def _fallback(self, masked: Tensor, progress: RowProgress) -> Tensor:
        """Return (B, L) bool: the leftmost masked positions, as many as must be committed."""
        return first(masked, self.selector.min_commits(progress))

    def width(self, length: int, steps: int) -> int:
        return max(self.masks, -(-length // steps) if self.selector.planned else 1)
