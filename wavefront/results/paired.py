"""Comparison of two runs over the same items: always in pairs, never without an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from wavefront.core.errors import OptionError, check_float, check_int

_AT_ONCE = 1 << 22  # picks of a chunk of draws: 32 MiB


class McNemar(NamedTuple):
    """Right and wrong answers of two runs, item by item."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p: float  # exact, two-sided: would a fair coin split those that differ so unevenly?


class Interval(NamedTuple):
    """A mean and what it might have been on other items: percentiles of a bootstrap."""

    mean: float
    low: float
    high: float
    level: float
    draws: int


class Difference(NamedTuple):
    """One item that two runs value differently."""

    id: Any
    first: float
    second: float
    gap: float  # second - first


@dataclass(frozen=True)
class Comparison:
    """Two runs over the same items."""

    count: int
    first: float  # means
    second: float
    gap: Interval  # second - first, in pairs
    mcnemar: McNemar | None  # where every value is right or wrong
    differences: list[Difference]  # the largest first


def mcnemar(first: Sequence[Any], second: Sequence[Any]) -> McNemar:
    """The exact test on pairs of right and wrong."""
    if len(first) != len(second):
        raise OptionError(f"Pairs are needed: {len(first)} results against {len(second)}.")
    pairs = [(bool(a), bool(b)) for a, b in zip(first, second, strict=True)]
    one, other = pairs.count((True, False)), pairs.count((False, True))
    coins = one + other
    tail = ways = 1
    for heads in range(1, min(one, other) + 1):
        ways = ways * (coins - heads + 1) // heads  # coins over heads, exactly
        tail += ways
    return McNemar(
        both=pairs.count((True, True)),
        first_only=one,
        second_only=other,
        neither=pairs.count((False, False)),
        p=min(1.0, 2 * tail / 2**coins),
    )


def bootstrap(values: Any, *, level: float = 0.95, draws: int = 10_000, seed: int = 0) -> Interval:
    """The mean of values, one per item, with its interval; give differences to compare in pairs."""
    check_float("level", level, 0, 1)
    check_int("draws", draws, 1)
    items = torch.as_tensor(values, dtype=torch.float64)
    if items.dim() != 1 or not len(items) or items.isnan().any():
        raise OptionError("An interval needs a list of numbers, one per item, and none missing.")
    source = torch.Generator().manual_seed(seed)
    means, rest = [], draws
    while rest:
        chunk = min(rest, max(1, _AT_ONCE // len(items)))
        picks = torch.randint(len(items), (chunk, len(items)), generator=source)
        means.append(items[picks].mean(-1))
        rest -= chunk
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.cat(means).quantile(tails).tolist()
    return Interval(float(items.mean()), low, high, level, draws)


def compare(
    first: Mapping[Any, Any],
    second: Mapping[Any, Any],
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Two runs as {item: value}, a value being right or wrong, or a number; the same items."""
    lone = [item for item in (*first, *second) if item not in first or item not in second]
    if lone or not first:
        found = f"{lone[0]!r} is in one of them only" if lone else "there is none"
        raise OptionError(f"Two runs are compared over the same items, and {found}.")
    a = {item: float(value) for item, value in first.items()}
    b = {item: float(second[item]) for item in first}
    gaps = [Difference(item, a[item], b[item], b[item] - a[item]) for item in a]
    graded = all(value in (0.0, 1.0) for value in (*a.values(), *b.values()))
    return Comparison(
        count=len(a),
        first=math.fsum(a.values()) / len(a),
        second=math.fsum(b.values()) / len(b),
        gap=bootstrap([one.gap for one in gaps], level=level, draws=draws, seed=seed),
        mcnemar=mcnemar(list(a.values()), list(b.values())) if graded else None,
        differences=sorted((one for one in gaps if one.gap), key=lambda one: -abs(one.gap)),
    )
