"""Origin: Dream's `alg="origin"`, which commits at random, regardless of confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wavefront.core import budget, noise
from wavefront.core.bounds import FloatRange
from wavefront.core.strategy import RowProgress, Selector, View


@dataclass(frozen=True)
class Origin(Selector):
    """Commit each candidate with probability 1 - t_{i+1} / t_i, and all at the last step."""

    eps: Annotated[float, FloatRange(1e-12, 0.999)] = 1e-3

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        progress = view.progress
        share = budget.dream_fraction(progress.steps, progress.step, self.eps)
        draw = noise.uniform(
            noise.key(progress.seed, progress.step, view.slot, stream=noise.ACCEPT)
        )
        return candidates & (draw < share[:, None])

    def min_commits(self, progress: RowProgress) -> Tensor:
        return progress.left * 0  # a random step may commit nothing
