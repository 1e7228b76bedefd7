"""Factor: as many places as their joint doubt allows (Fast-dLLM's parallel factor, 2505.22618)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core.errors import check_float
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive, turn


@dataclass(frozen=True)
class Factor(Adaptive):
    """The n surest places of the scope, the largest n with (n + 1)(1 - c_n) < factor; at least one.

    c_n is the n-th highest confidence. Up to factor=1, writing the n together gives what writing
    them one by one would, if the confidences are true. The published code also takes the last place
    of a scope when that one alone fails, and accepts equality; this is the rule as stated.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_float("factor", self.factor, 0)

    def accept(self, view: View, asked: Tensor) -> Tensor:
        doubt = -view.stats.logp.expm1()  # 1 - c, also where c rounds to 1
        # Neither doubt nor n falls from one turn to the next, so no place is accepted after a
        # refused one, and each can answer for itself.
        n = turn(view, asked, doubt) + 1
        return (n + 1) * doubt < self.factor
