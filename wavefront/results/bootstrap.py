"""Intervals over items: bootstrap of ratios of sums, alone and in pairs, and what they decide."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wavefront.results.table import Interval

DRAWS, LEVEL = 10_000, 0.95
FEWEST = 6  # items: of five that all point one way, a coin would make as many in 1 of 16 tries

Found = Interval | float | None  # of one item there is no interval, of none no value


def resampled(
    statistic: Callable[[Tensor], Tensor], items: int, *, draws: int = DRAWS, seed: int = 0
) -> Found:
    """A statistic of weights on items, (draws, items) -> (draws,): as it is, and over resamples.

    A draw weights every item by how often it was picked.
    """
    value = float(statistic(torch.ones(1, max(items, 1), dtype=torch.float64))) if items else None
    if value is None or value != value:
        return None
    if items == 1:
        return value
    random = torch.Generator().manual_seed(seed)
    picks = torch.randint(0, items, (draws, items), generator=random)
    weights = torch.zeros(draws, items, dtype=torch.float64)
    weights.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
    found = statistic(weights)
    found = found[~found.isnan()]
    low, high = (float(found.quantile(q)) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return spanning(value, low, high)


def spanning(value: float, low: float, high: float, *, scale: float = 1.0) -> Interval:
    """An interval that holds its value, whatever rounding did to its ends."""
    return Interval(scale * value, scale * min(low, value), scale * max(high, value))


def ends(found: Found) -> tuple[float, float, float]:
    """Value, low and high; all the same where there is no interval."""
    if isinstance(found, Interval):
        return found.value, found.low, found.high
    value = found or 0.0
    return value, value, value


def ratio(top: Tensor, bottom: Tensor, *, scale: float = 1.0) -> Found:
    """Sum of `top` over sum of `bottom`, both (items,), with its interval over items."""
    return resampled(lambda w: scale * _share(w, top, bottom), len(top))


def ratio_gap(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], *, scale: float = 1.0
) -> Found:
    """The ratio of `second` less that of `first`, on the same items, in pairs."""
    return resampled(lambda w: scale * (_share(w, *second) - _share(w, *first)), len(first[0]))


def mean(values: Tensor, *, scale: float = 1.0) -> Found:
    """The mean over the items that have a value."""
    known = values[~values.isnan()]
    return ratio(known, torch.ones_like(known), scale=scale)


def mean_gap(first: Tensor, second: Tensor, *, scale: float = 1.0) -> Found:
    """The mean of `second - first` over items, in pairs."""
    return mean(second - first, scale=scale)


def item_means(row: Tensor, values: Tensor, items: int) -> Tensor:
    """(items,) float64: the mean of the values of every item's events; NaN where it has none."""
    return torch.bincount(row, values.double(), items) / torch.bincount(row, minlength=items)


def _share(weights: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
    below = weights @ bottom.double()
    return torch.where(below > 0, weights @ top.double() / below, torch.nan)


def verdict(gap: Found, items: int, *, claimed: str) -> str:
    """Whether an interval of a difference bears out that it is "lower" or "higher"."""
    if gap is None:
        return "not measurable here"
    if items < FEWEST:
        return f"undecided: fewer than {FEWEST} items"
    value, low, high = ends(gap)
    if low <= 0 <= high:
        return "undecided: the interval holds 0"
    return "agrees" if (value < 0) == (claimed == "lower") else "disagrees"
