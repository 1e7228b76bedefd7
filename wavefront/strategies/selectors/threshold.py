"""Threshold: every candidate that is confident enough (Fast-dLLM, 2505.22618)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.errors import check_float
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class Threshold(Adaptive):
    """Commit every candidate whose confidence is at least `tau`, or the best one.

    Confidence is the probability of the proposal, whatever the priority. tau=0 commits all
    candidates; tau=1 commits only those whose probability rounds to 1.
    """

    tau: float = 0.9

    def __post_init__(self) -> None:
        check_float("tau", self.tau, 0, 1)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        return view.stats.logp.exp() >= self.tau
