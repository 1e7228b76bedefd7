"""Hierarchy: the best candidate of every gap between known tokens (dInfer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core.bounds import FloatRange
from wavefront.core.errors import check_float
from wavefront.core.masks import FAR, rank
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class Hierarchy(Adaptive):
    """Commit confident candidates, and the best candidate of every gap.

    The former have a confidence of at least `tau`, the latter of at least `low`. A gap is a run of
    neighbouring candidates. Its best position splits it into two smaller gaps, so distant positions
    are decided in parallel and a gap of n positions takes about log2(n) steps. If no candidate is
    confident enough, commit the best one. Confidence is the probability of the proposal, regardless
    of the priority.
    """

    tau: Annotated[float, FloatRange(0, 1)] = 0.9
    low: Annotated[float, FloatRange(0, 1)] = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_float("low", self.low, 0, high=self.tau)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        confidence = view.stats.logp.exp()
        best = _best_of_gaps(view.stats.logp, candidates)
        return (confidence >= self.tau) | (best & (confidence >= self.low))


def _best_of_gaps(scores: Tensor, candidates: Tensor) -> Tensor:
    """Return (B, L) bool: the best candidate of every run of neighbouring candidates."""
    before = torch.nn.functional.pad(candidates[:, :-1], (1, 0))
    gap = ((candidates & ~before).cumsum(-1) - 1).clamp(min=0)  # the number of the gap
    ranks = rank(scores, candidates)  # every candidate has another rank, so a gap has one best
    lowest = torch.full_like(ranks, FAR).scatter_reduce(1, gap, ranks, "amin")
    return candidates & (lowest.gather(1, gap) == ranks)
