"""Factor: as many candidates as their uncertainty allows (Fast-dLLM's factor, 2505.22618)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.errors import check_float
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive, ascending_rank


@dataclass(frozen=True)
class Factor(Adaptive):
    """Commit the n most confident candidates: the largest n with (n + 1)(1 - c_n) < factor.

    n is at least 1, and c_n is the n-th highest confidence. Up to factor=1, committing the n
    together gives the same result as one by one, if the confidences are exact. This is the rule
    as stated; the published code also commits the last candidate when only that one fails, and
    accepts equality.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_float("factor", self.factor, 0)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        uncertainty = -view.stats.logp.expm1()  # 1 - c, even where c rounds to 1
        # Uncertainty and n both grow with the rank. So no candidate is accepted after a refused
        # one, and each can be tested on its own.
        n = ascending_rank(view, candidates, uncertainty) + 1
        return (n + 1) * uncertainty < self.factor
