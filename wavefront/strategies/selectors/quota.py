"""Quota: the k_t best, k_t fixed by the step budget (the paper, equation 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core import budget
from wavefront.core.masks import rank
from wavefront.core.strategy import RowProgress, Selector, View


@dataclass(frozen=True)
class Quota(Selector):
    """The k_t best of the scope; when it is too short, the missing ones from the reserve."""

    planned = True

    def select(self, view: View, among: Tensor, fallback: Tensor) -> Tensor:
        return best(view, among, fallback, self.min_commits(view.progress))

    def min_commits(self, progress: RowProgress) -> Tensor:
        return budget.even(progress.length, progress.steps, progress.step)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return budget.even(length, steps, step) == 0


def best(view: View, among: Tensor, fallback: Tensor, k: Tensor) -> Tensor:
    """(B, L) bool: k (B,) places, those of `among` before those of the reserve."""
    return rank(view.score, among, fallback) < k[:, None]
