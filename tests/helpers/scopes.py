"""Selectors for one row, in plain lists, for the oracles of the scope strategies."""

from collections.abc import Callable, Collection
from math import isnan

from helpers import oracle

Choose = Callable[[int, Collection[int], Collection[int], dict[int, float]], list[int]]
"""(step from 0, scope, all masked, scores) -> the positions to commit."""


def by_quota(length: int, steps: int) -> Choose:
    """Choose the k_t best of the scope, then the next masked positions to its right."""

    def choose(step, scope, masked, score):
        k = oracle.even(length, steps, step)
        inside = oracle.ranked(scope, score)[:k]
        return inside + sorted(set(masked) - set(scope))[: k - len(inside)]

    return choose


def by_threshold(steps: int, tau: float) -> Choose:
    """Choose all of the scope with p >= tau, or the best; at the last step everything masked.

    A score of NaN or -inf is chosen only if the scope has no other.
    """

    def choose(step, scope, masked, score):
        if step == steps - 1:
            return sorted(masked)
        willing = [p for p in scope if not isnan(score[p]) and score[p] != float("-inf")]
        sure = [p for p in willing if score[p] >= tau]
        return sure or oracle.ranked(scope, score)[:1]

    return choose
