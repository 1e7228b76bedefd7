"""Takes for one row, in lists: what the plain oracles of the scope strategies choose with."""

from collections.abc import Callable, Collection
from math import isnan

from helpers import oracle

Choose = Callable[[int, Collection[int], Collection[int], dict[int, float]], list[int]]
"""(step from 0, scope, all masked, scores) -> the places to commit."""


def by_quota(length: int, steps: int) -> Choose:
    """The k_t best of the scope; when it is too short, the next masked places to its right."""

    def choose(step, scope, masked, score):
        k = oracle.even(length, steps, step)
        inside = oracle.ranked(scope, score)[:k]
        return inside + sorted(set(masked) - set(scope))[: k - len(inside)]

    return choose


def by_threshold(steps: int, tau: float) -> Choose:
    """All of the scope with p >= tau, or the best; at the last step everything that is masked.

    A score of NaN or -inf is put off: it counts only when the scope has no other.
    """

    def choose(step, scope, masked, score):
        if step == steps - 1:
            return sorted(masked)
        willing = [p for p in scope if not isnan(score[p]) and score[p] != float("-inf")]
        sure = [p for p in willing if score[p] >= tau]
        return sure or oracle.ranked(scope, score)[:1]

    return choose
