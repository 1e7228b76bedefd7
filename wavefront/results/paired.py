"""Paired comparison of two runs over the same items, with an interval and an exact test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError
from wavefront.results.bootstrap import DRAWS, LEVEL, bootstrap_mean
from wavefront.results.interval import Interval


class McNemar(NamedTuple):
    """Counts of correct and wrong answers of two runs, with the exact McNemar test."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p: float  # exact and two-sided


class Difference(NamedTuple):
    """One item whose value differs between two runs."""

    id: Any
    first: float
    second: float
    gap: float  # second - first


@dataclass(frozen=True)
class Comparison:
    """Two runs compared over the same items."""

    count: int
    first: float  # the means
    second: float
    gap: Interval  # second - first, in pairs
    mcnemar: McNemar | None  # None unless every value is 0 or 1
    differences: list[Difference]  # largest first


def mcnemar(first: Sequence[Any], second: Sequence[Any]) -> McNemar:
    """Test exactly whether two lists of correct and wrong answers differ.

    Raises:
        OptionError: The lists differ in length.
    """
    if len(first) != len(second):
        raise OptionError(
            f"The two runs need as many results each, not {len(first)} and {len(second)}."
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


def compare(
    first: Mapping[Any, Any],
    second: Mapping[Any, Any],
    *,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two runs given as {item: value}; a value is a bool or a number.

    Raises:
        OptionError: The items differ, there are none, or a value is NaN.
    """
    unpaired = [item for item in (*first, *second) if item not in first or item not in second]
    if unpaired or not first:
        reason = f"{unpaired[0]!r} is in only one of them" if unpaired else "there are none"
        raise OptionError(f"Two runs are compared over the same items, but {reason}.")
    a = {item: float(value) for item, value in first.items()}
    b = {item: float(second[item]) for item in first}
    gaps = [Difference(item, a[item], b[item], b[item] - a[item]) for item in a]
    graded = all(value in (0.0, 1.0) for value in (*a.values(), *b.values()))
    return Comparison(
        count=len(a),
        first=math.fsum(a.values()) / len(a),
        second=math.fsum(b.values()) / len(b),
        gap=bootstrap_mean([one.gap for one in gaps], level=level, draws=draws, seed=seed),
        mcnemar=mcnemar(list(a.values()), list(b.values())) if graded else None,
        differences=sorted((one for one in gaps if one.gap), key=lambda one: -abs(one.gap)),
    )
