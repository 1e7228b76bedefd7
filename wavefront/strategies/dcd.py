"""DCD: the best of the first few masked places (deferred commitment decoding, 2601.02076)."""

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
class Dcd(Strategy):
    """Look at the first `masks` masked places, within `span` slots of the first of them.

    A place is put off until it is sure, while those after it go on, up to `span` slots ahead. When
    the window holds fewer places than the take insists on, the next masked ones serve. The
    published code also closes the window at a committed end token; here that is eos='stop', which
    ends the decode of any strategy once all before the token is decided.
    """

    masks: int = 16
    span: int = 128
    selector: Selector = field(default=Threshold(0.9), repr=False)

    def __post_init__(self) -> None:
        check_int("masks", self.masks, 1)
        check_int("span", self.span, 1)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return self._window(canvas.masked, canvas.slot) | self._spare(canvas.masked, progress)

    def step(self, view: View, state: State) -> Decision:
        scope = self._window(view.masked, view.slot)
        return Decision(
            self.selector.select(view, scope, self._spare(view.masked, view.progress)), scope=scope
        )

    def _window(self, masked: Tensor, slot: Tensor) -> Tensor:
        start = torch.where(masked, slot, FAR).amin(-1, keepdim=True)
        return first(masked, self.masks) & (slot < start + self.span)

    def _spare(self, masked: Tensor, progress: RowProgress) -> Tensor:
        """(B, L) bool: the leftmost masked places, as many as the take insists on."""
        return first(masked, self.selector.min_commits(progress))

    def width(self, length: int, steps: int) -> int:
        return max(self.masks, -(-length // steps) if self.selector.planned else 1)
