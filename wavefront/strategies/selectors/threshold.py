"""Threshold: every place that is sure enough (Fast-dLLM, 2505.22618)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.errors import check_float
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class Threshold(Adaptive):
    """Every place of the scope whose confidence is at least `tau`; the best one if there is none.

    Confidence is the probability of the proposal, whatever the priority. tau=0 takes the whole
    scope; tau=1 only what rounds to certainty.
    """

    tau: float = 0.9

    def __post_init__(self) -> None:
        check_float("tau", self.tau, 0, 1)

    def accept(self, view: View, asked: Tensor) -> Tensor:
        return view.stats.logp.exp() >= self.tau
