"""Local leap: confident candidates and nearly confident ones near them (2510.07081)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, FloatRange, IntRange
from wavefront.core.errors import check_float
from wavefront.core.masks import distance
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive


@dataclass(frozen=True)
class LocalLeap(Adaptive):
    """Commit confident candidates, and nearly confident ones within `radius` of them.

    The former have a confidence of at least `tau`, the latter of at least `relaxed`. If there are
    none, commit the best one. Confidence is the probability of the proposal, regardless of the
    priority. A candidate that a neighbour made acceptable does not make others acceptable.
    """

    tau: Annotated[float, FloatRange(0, 1)] = 0.9
    relaxed: Annotated[float, FloatRange(0, 1)] = 0.75
    radius: Annotated[int, IntRange(0, MAX_POSITIONS)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_float("relaxed", self.relaxed, 0, high=self.tau)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        confidence = view.stats.logp.exp()
        anchor = candidates & (confidence >= self.tau)
        near = distance(anchor) <= self.radius
        return anchor | (near & (confidence >= self.relaxed))
