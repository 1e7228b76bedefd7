"""Factor: as many candidates as their uncertainty allows (Fast-dLLM's factor, 2505.22618)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, FloatRange
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive, ascending_rank


@dataclass(frozen=True)
class Factor(Adaptive):
    """Commit the n most confident candidates: the largest n with (n + 1)(1 - c_n) < factor.

    n is at least 1, and c_n is the n-th highest confidence. With factor at most 1, committing
    the n candidates together gives the same result as committing them one by one, if the
    confidences are exact. This is the rule as stated; the published code also commits the last
    candidate when only that one fails, and accepts equality.
    """

    factor: Annotated[float, FloatRange(0, MAX_POSITIONS)] = 1.0

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        uncertainty = -view.stats.logp.expm1()  # 1 - c, even where c rounds to 1
        # Uncertainty and n both grow with the rank. So no candidate is accepted after a rejected
        # one, and each can be tested separately.
        n = ascending_rank(view, candidates, uncertainty) + 1
        return (n + 1) * uncertainty < self.factor
