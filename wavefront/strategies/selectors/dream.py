"""Dream: the counts of Dream's published sampler, a truncated share of the masked positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core import budget
from wavefront.core.errors import check_float
from wavefront.core.strategy import RowProgress, Selector, View
from wavefront.strategies.selectors.quota import best


@dataclass(frozen=True)
class Dream(Selector):
    """Commit trunc(left · (1 - t_{i+1} / t_i)) on a grid from 1 to eps; the last step all the rest.

    Each row has its own count. The published code counts once for the whole batch, so a row there
    can be given more than it has left, and lose tokens.
    """

    planned = True
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_float("eps", self.eps, 1e-12, 0.999)

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        return best(view, candidates, fallback, self.min_commits(view.progress))

    def min_commits(self, progress: RowProgress) -> Tensor:
        return budget.dream(progress.left, progress.steps, progress.step, self.eps)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return budget.dream_plan(length, steps, self.eps)[step] == 0
