"""Write your own strategy outside the package: decode from both ends towards the middle.

    wavefront generate "Hello" --watch --strategy "examples.new_strategy.OutsideIn(size=2)"

A strategy is a frozen dataclass. Its fields are the options of its spec string. `step` decides
which positions to commit. `candidates` says which positions `step` reads, so that only those are
scored. All rows of a batch are decided together, as tensors of shape (batch, positions).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

import wavefront
from wavefront.core.bounds import MAX_POSITIONS, IntRange
from wavefront.core.masks import first
from wavefront.strategies.selectors.quota import Quota


@dataclass(frozen=True)
class OutsideIn(wavefront.Strategy):
    """Choose from the `size` masked positions next to either end of the answer."""

    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 4
    selector: wavefront.Selector = field(default=Quota(), repr=False)

    def candidates(
        self, canvas: wavefront.Canvas, state: object, progress: wavefront.RowProgress
    ) -> Tensor:
        ends = self._ends(canvas.masked)
        # If the ends have too few positions for this step, any masked position may be committed.
        short = ends.sum(-1) < self.selector.min_commits(progress)
        return torch.where(short[:, None], canvas.masked, ends)

    def step(self, view: wavefront.View, state: object) -> wavefront.Decision:
        ends = self._ends(view.masked)
        return wavefront.Decision(self.selector.select(view, ends, view.masked), candidates=ends)

    def _ends(self, masked: Tensor) -> Tensor:
        return first(masked, self.size) | first(masked.flip(-1), self.size).flip(-1)


if __name__ == "__main__":
    from wavefront.testing import check

    print("obeys the laws:", ", ".join(check(OutsideIn())))
    answer = wavefront.load().generate("Hello", strategy=OutsideIn(size=2), max_new_tokens=16)
    print("answer:", repr(answer.text))
