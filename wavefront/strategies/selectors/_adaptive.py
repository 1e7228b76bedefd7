"""The base class of adaptive selectors, whose count depends on the model's confidence."""

from __future__ import annotations

import torch
from torch import Tensor

from wavefront.core.masks import rank
from wavefront.core.strategy import RowProgress, Selector, View
from wavefront.strategies.selectors.quota import best


class Adaptive(Selector):
    """Commit every candidate that a rule accepts, or the best one if it accepts none.

    A selector with a larger `min_commits` commits that many if its rule accepts fewer.

    A candidate with score -inf, as from eos='suppress-confidence', reaches the rule only when all
    candidates have score -inf. The fallback is used only when there are no candidates, and then
    gives its best position, because the rule applies to candidates only.
    """

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        """Return (B, L) bool: the candidates to commit now; it may be none of them."""
        raise NotImplementedError

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        scored = candidates & (view.score > float("-inf"))  # excludes NaN too
        offered = torch.where(scored.any(-1, keepdim=True), scored, candidates)
        accepted = offered & self.accept(view, offered)
        floor = self.min_commits(view.progress).clamp(min=1)
        fewest = best(view, candidates, fallback, k=floor)
        return torch.where((accepted.sum(-1) >= floor)[:, None], accepted, fewest)

    def min_commits(self, progress: RowProgress) -> Tensor:
        return progress.left.clamp(max=1)


def ascending_rank(view: View, candidates: Tensor, value: Tensor) -> Tensor:
    """Return (B, L) long: 0 for the candidate with the smallest `value`; every rank occurs once.

    Equal values are ordered by score, then by position. Other positions come last.
    """
    by_score = rank(view.score, candidates).argsort(dim=-1, stable=True)
    value = torch.where(candidates, value, float("inf")).gather(-1, by_score)
    order = by_score.gather(-1, value.argsort(dim=-1, stable=True))
    return order.argsort(-1)  # the inverse permutation
