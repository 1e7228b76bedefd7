"""Wavefront: choose on the front, grow it around what is known, keep the best (Algorithm 1)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.errors import WavefrontWarning, check_choice, check_int
from wavefront.core.masks import first, near, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.quota import Quota


@dataclass(frozen=True)
class Wavefront(Strategy):
    """Look at a moving front: the `size` best places within `radius` of what is known.

    The front starts at the left. Each step commits the best of it and moves it on; when it holds
    too few, any place may serve. A larger radius looks further, a larger size chooses among more.
    grow='rebuild' draws it anew around all that is known; 'accumulate' keeps what is left of it and
    adds the surroundings of what is new.
    """

    # The state is the front W_t, (B, L) bool.

    size: int = 8  # F
    radius: int = 2  # R
    grow: Literal["rebuild", "accumulate"] = "rebuild"  # equations 1 and 4, or line 9
    selector: Selector = field(default=Quota(), repr=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)
        check_int("radius", self.radius, 1)
        check_choice("grow", self.grow, ("rebuild", "accumulate"))

    def init(self, canvas: Canvas) -> Tensor:
        return first(canvas.masked, self.size)  # W_0

    def step(self, view: View, state: Tensor) -> Decision:
        front = state
        commit = self.selector.select(
            view, front, view.masked
        )  # select; the reserve when |W| < k_t
        grown = view.masked & ~commit & self._near(view.known, front, commit)  # expand
        kept = top(view.score, grown, self.size)  # prune, by the scores from before the commit
        moved = commit.any(-1, keepdim=True)  # a zero quota leaves the front as it is
        return Decision(commit, scope=front, state=torch.where(moved, kept, front))

    def _near(self, known: Tensor, front: Tensor, commit: Tensor) -> Tensor:
        if self.grow == "rebuild":
            return near(known | commit, self.radius)  # around all of C_t
        return front | near(commit, self.radius)  # around what is new, plus what is left

    def candidates(self, canvas: Canvas, state: Tensor, progress: RowProgress) -> Tensor:
        # Whatever is committed lies on the front, so the next front lies within R of it. Only when
        # the front is shorter than the quota can any masked place be chosen.
        around = canvas.masked & self._near(canvas.known, state, state)
        short = state.sum(-1) < self.selector.min_commits(progress)
        return torch.where(short[:, None], canvas.masked, state | around)

    def front(self, state: Tensor) -> Tensor:
        return state

    def validate(self, length: int, steps: int) -> None:
        k = -(-length // steps)
        if k > self.size and self.selector.planned:
            warnings.warn(
                f"{length} places in {steps} steps commit {k} a step, more than the wave's size "
                f"{self.size}: the rest comes from outside the front at every step.",
                WavefrontWarning,
                stacklevel=2,
            )

    def width(self, length: int, steps: int) -> int:
        if steps < length:
            return length  # several tokens a step: the reserve serves often
        return self.size + 10 * self.radius
