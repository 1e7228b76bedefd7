"""Local leap: confident candidates and nearly confident ones near them (2510.07081)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.errors import check_float, check_int
from wavefront.core.masks import distance
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class LocalLeap(Adaptive):
    """Commit candidates with confidence `tau`, and with `relaxed` within `radius` of those.

    If there are none, commit the best one. Confidence is the probability of the proposal, whatever
    the priority. A candidate accepted because of a neighbor does not extend to others.
    """

    tau: float = 0.9
    relaxed: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        check_float("tau", self.tau, 0, 1)
        check_float("relaxed", self.relaxed, 0, self.tau)
        check_int("radius", self.radius, 0)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        confidence = view.stats.logp.exp()
        anchor = candidates & (confidence >= self.tau)
        near = distance(anchor) <= self.radius
        return anchor | (near & (confidence >= self.relaxed))
