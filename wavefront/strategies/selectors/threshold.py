"""Threshold: every candidate that is confident enough (Fast-dLLM, 2505.22618)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core import budget
from wavefront.core.bounds import MAX_POSITIONS, FloatRange, IntRange
from wavefront.core.strategy import RowProgress, View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class Threshold(Adaptive):
    """Commit every candidate whose confidence is at least `tau`, or the `floor` best ones.

    Confidence is the probability of the proposal, regardless of the priority. tau=0 commits all
    candidates; tau=1 commits only those whose probability rounds to 1. If fewer than `floor`
    candidates are confident enough, the `floor` best are committed. floor=None is the quota of
    the step budget, as in the published samplers of SDAR and LLaDA2.
    """

    tau: Annotated[float, FloatRange(0, 1)] = 0.9
    floor: Annotated[int, IntRange(1, MAX_POSITIONS)] | None = field(default=1, repr=False)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        return view.stats.logp.exp() >= self.tau

    def min_commits(self, progress: RowProgress) -> Tensor:
        if self.floor is not None:
            return progress.left.clamp(max=self.floor)
        quota = budget.even(progress.quota_length, progress.steps, progress.step).clamp(min=1)
        return torch.minimum(quota, progress.left)
