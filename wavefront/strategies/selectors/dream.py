"""Dream: the counts of Dream's published sampler, a truncated share of the masked positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wavefront.core import budget
from wavefront.core.bounds import FloatRange
from wavefront.core.strategy import RowProgress, Selector, View
from wavefront.strategies.selectors.quota import best


@dataclass(frozen=True)
class Dream(Selector):
    """Commit trunc(left · (1 - t_{i+1} / t_i)) on a grid from 1 to eps; the last step all the rest.

    Each row has its own count. The published code counts once for the whole batch, so a row there
    can receive a larger count than it has masked positions, and lose tokens.
    """

    planned = True
    eps: Annotated[float, FloatRange(1e-12, 0.999)] = 1e-3

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        return best(view, candidates, fallback, k=self.min_commits(view.progress))

    def min_commits(self, progress: RowProgress) -> Tensor:
        return budget.dream(progress.left, progress.steps, progress.step, eps=self.eps)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return budget.dream_plan(length, steps, self.eps)[step] == 0
