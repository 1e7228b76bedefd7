"""Local leap: every sure place, and around it the nearly sure ones (LocalLeap, 2510.07081)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.errors import check_float, check_int
from wavefront.core.masks import distance
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class LocalLeap(Adaptive):
    """Places of the scope with confidence at least `tau`, or `relaxed` within `radius` of those.

    The best one if there is none. Confidence is the probability of the proposal, whatever the
    priority; distance is between positions. A place let in by its neighbour lets in no other.
    """

    tau: float = 0.9
    relaxed: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        check_float("tau", self.tau, 0, 1)
        check_float("relaxed", self.relaxed, 0, self.tau)
        check_int("radius", self.radius, 0)

    def accept(self, view: View, asked: Tensor) -> Tensor:
        confidence = view.stats.logp.exp()
        anchor = asked & (confidence >= self.tau)
        near = distance(anchor) <= self.radius
        return anchor | (near & (confidence >= self.relaxed))
