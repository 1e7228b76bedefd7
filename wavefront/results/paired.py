"""Paired comparison of two runs over the same items, with an interval and an exact test."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError
from wavefront.results.bootstrap import DRAWS, LEVEL, bootstrap_clusters
from wavefront.results.interval import FEWEST_DIFFERING, Interval, exact_share


class McNemar(NamedTuple):
    """Counts of correct and wrong answers of two runs, with the exact McNemar test."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p: float  # exact and two-sided

    @property
    def differing(self) -> int:
        """The items that only one of the runs answers correctly."""
        return self.first_only + self.second_only


class ItemDifference(NamedTuple):
    """One item whose value differs between two runs."""

    id: Any
    first: float
    second: float
    gap: float  # second - first


@dataclass(frozen=True)
class Comparison:
    """Two runs compared over the same items."""

    count: int  # of pairs
    clusters: int  # of independent items: pairs of one item are one cluster
    first: float  # the means
    second: float
    gap: Interval  # second - first, in pairs
    mcnemar: McNemar | None  # None unless every value is 0 or 1, and every cluster is one pair
    differences: list[ItemDifference]  # largest first
    p: float | None = None  # of the exact sign test over clusters; None unless values are 0 or 1


def mcnemar(first: Sequence[Any], second: Sequence[Any]) -> McNemar:
    """Run the exact test of whether two lists of correct and wrong answers differ.

    Raises:
        OptionError: The lists differ in length.
    """
    if len(first) != len(second):
        raise OptionError(
            f"The two runs need the same number of results, not {len(first)} and {len(second)}."
        )
    pairs = [(bool(a), bool(b)) for a, b in zip(first, second, strict=True)]
    one, other = pairs.count((True, False)), pairs.count((False, True))
    coins = one + other
    tail = ways = 1
    for heads in range(1, min(one, other) + 1):
        ways = ways * (coins - heads + 1) // heads  # the binomial coefficient, exactly
        tail += ways
    return McNemar(
        both=pairs.count((True, True)),
        first_only=one,
        second_only=other,
        neither=pairs.count((False, False)),
        p=min(1.0, 2 * tail / 2**coins),
    )


def exact_gap(test: McNemar, *, level: float = LEVEL) -> Interval:
    """Return the difference of two runs with an interval that is valid for few items.

    The ends come from the exact bounds of the two shares of items that only one run answers
    correctly. The coverage is at least `level`, so the interval is wide.
    """
    items, tail = sum(test[:4]), (1 - level) / 4
    first = exact_share(test.first_only, items, tail=tail)
    second = exact_share(test.second_only, items, tail=tail)
    value = (test.second_only - test.first_only) / items
    return Interval.spanning(value, second[0] - first[1], second[1] - first[0])


def few_differ(comparison: Comparison) -> bool:
    """Return whether so few verdicts differ that a bootstrap interval is too narrow."""
    test = comparison.mcnemar
    return test is not None and test.differing < FEWEST_DIFFERING


def gap_of(comparison: Comparison) -> Interval:
    """Return the difference with its exact interval if few items differ, else the bootstrap's."""
    if comparison.mcnemar is not None and few_differ(comparison):
        return exact_gap(comparison.mcnemar)
    return comparison.gap


def sign_test(gaps: Sequence[float]) -> float:
    """Return the exact two-sided p of the sign test: are as many differences above 0 as below?

    On right and wrong answers, one per item, it equals the exact McNemar test.
    """
    return mcnemar([gap < 0 for gap in gaps if gap], [gap > 0 for gap in gaps if gap]).p


def compare(
    first: Mapping[Any, Any],
    second: Mapping[Any, Any],
    *,
    cluster: Callable[[Any], Hashable] = lambda item: item,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two runs given as {item: value}; a value is a bool or a number.

    Args:
        first: The values of the first run.
        second: Those of the second, of the same items.
        cluster: Maps an item to its cluster. Items of one cluster are resampled together.
        level: The coverage of the interval.
        draws: The number of resamples.
        seed: The seed of the resamples.

    Raises:
        OptionError: The items differ, there are none, or a value is NaN.
    """
    unpaired = [item for item in (*first, *second) if item not in first or item not in second]
    if unpaired or not first:
        reason = f"{unpaired[0]!r} is in only one of them" if unpaired else "there are none"
        raise OptionError(f"Two runs are compared over the same items, but {reason}.")
    a = {item: float(value) for item, value in first.items()}
    b = {item: float(second[item]) for item in first}
    gaps = [ItemDifference(item, a[item], b[item], b[item] - a[item]) for item in a]
    graded = all(value in (0.0, 1.0) for value in (*a.values(), *b.values()))
    net: dict[Hashable, float] = {}
    for one in gaps:
        net[cluster(one.id)] = net.get(cluster(one.id), 0.0) + one.gap
    single = len(net) == len(gaps)
    return Comparison(
        count=len(a),
        clusters=len(net),
        first=math.fsum(a.values()) / len(a),
        second=math.fsum(b.values()) / len(b),
        gap=bootstrap_clusters(
            [one.gap for one in gaps],
            [cluster(one.id) for one in gaps],
            level=level,
            draws=draws,
            seed=seed,
        ),
        mcnemar=mcnemar(list(a.values()), list(b.values())) if graded and single else None,
        p=sign_test([*net.values()]) if graded else None,
        differences=sorted((one for one in gaps if one.gap), key=lambda one: -abs(one.gap)),
    )
