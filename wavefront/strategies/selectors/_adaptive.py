"""What the takes whose count follows the model's sureness share; each of them adds its rule."""

from __future__ import annotations

import torch
from torch import Tensor

from wavefront.core.masks import rank
from wavefront.core.strategy import RowProgress, Selector, View
from wavefront.strategies.selectors.quota import best


class Adaptive(Selector):
    """Every place of the scope that a rule accepts, and the best one when it accepts none.

    A place put off (score -inf, as by eos='suppress-confidence') is shown to the rule only when the
    whole scope is put off. The reserve serves only an empty scope, with its best place: a rule for
    a scope says nothing of what lies outside it.
    """

    def accept(self, view: View, asked: Tensor) -> Tensor:
        """(B, L) bool: the places of `asked` that may go now; none is a fine answer."""
        raise NotImplementedError

    def select(self, view: View, among: Tensor, fallback: Tensor) -> Tensor:
        willing = among & (view.score > float("-inf"))  # NaN is put off too
        asked = torch.where(willing.any(-1, keepdim=True), willing, among)
        chosen = asked & self.accept(view, asked)
        alone = best(view, among, fallback, self.min_commits(view.progress))
        return torch.where(chosen.any(-1, keepdim=True), chosen, alone)

    def min_commits(self, progress: RowProgress) -> Tensor:
        return progress.left.clamp(max=1)


def turn(view: View, asked: Tensor, value: Tensor) -> Tensor:
    """(B, L) long: whose turn it is, 0 for the smallest `value`; every place has a turn of its own.

    Equal values go by score, then by position. Places that are not asked come last.
    """
    by_score = rank(view.score, asked).argsort(dim=-1, stable=True)
    value = torch.where(asked, value, float("inf")).gather(-1, by_score)
    order = by_score.gather(-1, value.argsort(dim=-1, stable=True))
    return order.argsort(-1)  # a permutation, turned round
