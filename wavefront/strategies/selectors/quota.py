"""Quota: the k_t best candidates, with k_t fixed by the step budget (the paper, equation 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core import budget
from wavefront.core.masks import rank
from wavefront.core.strategy import RowProgress, Selector, View


@dataclass(frozen=True)
class Quota(Selector):
    """Commit the k_t best candidates; if there are fewer, the rest comes from the fallback."""

    planned = True

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        return best(view, candidates, fallback, k=self.min_commits(view.progress))

    def min_commits(self, progress: RowProgress) -> Tensor:
        return budget.even(progress.quota_length, progress.steps, progress.step)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return budget.even(length, steps, step) == 0


def best(view: View, candidates: Tensor, fallback: Tensor, *, k: Tensor) -> Tensor:
    """Return (B, L) bool: the k (B,) best positions, candidates before fallback positions."""
    return rank(view.score, candidates, fallback) < k[:, None]
