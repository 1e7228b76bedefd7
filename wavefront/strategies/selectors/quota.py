"""Quota: the k_t best, k_t fixed by the step budget (the paper, equation 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core import budget
from wavefront.core.masks import rank
from wavefront.core.strategy import Clock, Selector, View


@dataclass(frozen=True)
class Quota(Selector):
    """The k_t best of the scope; when it is too short, the missing ones from the reserve."""

    planned = True

    def __call__(self, view: View, among: Tensor, reserve: Tensor) -> Tensor:
        return best(view, among, reserve, self.least(view.clock))

    def least(self, clock: Clock) -> Tensor:
        return budget.even(clock.length, clock.steps, clock.step)

    def idle(self, length: int, steps: int, step: int) -> bool:
        return budget.even(length, steps, step) == 0


def best(view: View, among: Tensor, reserve: Tensor, k: Tensor) -> Tensor:
    """(B, L) bool: k (B,) places, those of `among` before those of the reserve."""
    return rank(view.score, among, reserve) < k[:, None]
