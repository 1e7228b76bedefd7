"""Wavefront: select on the front, expand it around known tokens, prune it (Algorithm 1)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.errors import WavefrontWarning
from wavefront.core.masks import first, near, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.quota import Quota


@dataclass(frozen=True)
class Wavefront(Strategy):
    """Choose from a moving front: the `size` best positions within `radius` of a known token.

    The front starts at the left. Each step commits the best positions of the front and then
    advances it. If the front has too few positions, any masked position may be committed. A larger
    radius reaches further; a larger size gives more positions to choose from. grow='rebuild'
    expands around all known tokens; 'accumulate' keeps the rest of the front and expands around
    new tokens only.
    """

    # The state is the front W_t, (B, L) bool.

    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 8  # F
    radius: Annotated[int, IntRange(1, MAX_POSITIONS)] = 2  # R
    grow: Literal["rebuild", "accumulate"] = "rebuild"  # equations 1 and 4, or line 9
    selector: Selector = field(default=Quota(), repr=False)

    def init(self, canvas: Canvas) -> Tensor:
        return first(canvas.masked, self.size)  # W_0

    def step(self, view: View, state: Tensor) -> Decision:
        front = state
        commit = self.selector.select(view, front, view.masked)  # select; fallback if |W| < k_t
        grown = view.masked & ~commit & self._near(view.known, front, commit)  # expand
        kept = top(view.score, grown, self.size)  # prune, by the scores from before the commit
        moved = commit.any(-1, keepdim=True)  # a zero quota leaves the front as it is
        return Decision(commit, candidates=front, state=torch.where(moved, kept, front))

    def _near(self, known: Tensor, front: Tensor, commit: Tensor) -> Tensor:
        if self.grow == "rebuild":
            return near(known | commit, self.radius)  # around all of C_t
        return front | near(commit, self.radius)  # around new tokens, plus the rest of the front

    def candidates(self, canvas: Canvas, state: Tensor, progress: RowProgress) -> Tensor:
        # Every commit lies on the front, so the next front lies within R of it. Any masked position
        # can be committed only when the front is shorter than the quota.
        around = canvas.masked & self._near(canvas.known, state, state)
        short = state.sum(-1) < self.selector.min_commits(progress)
        return torch.where(short[:, None], canvas.masked, state | around)

    def front(self, state: Tensor) -> Tensor:
        return state

    def validate(self, length: int, steps: int) -> None:
        k = -(-length // steps)
        if k > self.size and self.selector.planned:
            warnings.warn(
                f"{length} positions in {steps} steps are {k} commits per step, more than the "
                f"front's size {self.size}: every step also commits positions outside the front.",
                WavefrontWarning,
                stacklevel=2,
            )

    def width(self, length: int, steps: int) -> int:
        if steps < length:
            return length  # several commits per step: the fallback is used often
        return self.size + 10 * self.radius
