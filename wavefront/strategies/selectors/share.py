"""Share: an equal share of what is left (the samplers of Stable-DiffCoder and Tiny-A2D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wavefront.core import budget
from wavefront.core.strategy import RowProgress, Selector, View
from wavefront.strategies.selectors.quota import best


@dataclass(frozen=True)
class Share(Selector):
    """Commit the masked positions that are left, divided by the steps that are left.

    rounding='up' is Stable-DiffCoder's rule: the first steps commit the remainder. 'nearest' is
    Tiny-A2D's rule, with its rounding of halves. A step commits at least one position.
    """

    planned = True
    rounding: Literal["up", "nearest"] = "up"

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        return best(view, candidates, fallback, k=self.min_commits(view.progress))

    def min_commits(self, progress: RowProgress) -> Tensor:
        left, steps = progress.left, (progress.steps - progress.step).clamp(min=1)
        if self.rounding == "up":
            count = (left + steps - 1) // steps
        else:
            count = budget.rounded_share(left, progress.steps, steps)
        return torch.minimum(count.clamp(min=1), left)
