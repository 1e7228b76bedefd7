"""The bootstrap over items: means and ratios with percentile intervals, for one or two runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from wavefront.core.errors import OptionError, check_float, check_int
from wavefront.results.interval import Estimate, Interval, bounds

DRAWS, LEVEL = 10_000, 0.95
CHUNK = 1 << 22  # weights computed at once: 32 MiB
MOST_KEPT = 1 << 24  # weights kept for the next interval: 128 MiB


def bootstrap(
    statistic: Callable[[Tensor], Tensor],
    items: int,
    *,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """Estimate a statistic with its percentile interval over resampled items.

    Args:
        statistic: Maps weights on items, (draws, items), to values, (draws,). A draw weights every
            item by how often it was picked.
        items: The number of items.
        level: The coverage of the interval.
        draws: The number of resamples.
        seed: The seed of the resamples.

    Returns:
        The interval. For one item, a value without an interval. None if the statistic is undefined.
    """
    check_float("level", level, 0, high=1)
    check_int("draws", draws, 1)
    if not items:
        return None
    value = float(statistic(torch.ones(1, items, dtype=torch.float64)))
    if value != value:
        return None
    if items == 1:
        return value
    values = torch.cat([statistic(weights) for weights in _resamples(items, draws, seed)])
    values = values[~values.isnan()]
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.quantile(tails).tolist()
    return Interval.spanning(value, low, high)


def bootstrap_ratio(top: Tensor, bottom: Tensor, *, scale: float = 1.0) -> Estimate:
    """Estimate the sum of `top` over the sum of `bottom`, both (items,)."""
    return bootstrap(lambda weights: scale * _ratio(weights, top, bottom), len(top))


def bootstrap_ratio_difference(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], *, scale: float = 1.0
) -> Estimate:
    """Estimate the ratio of `second` minus the ratio of `first`, paired over the same items."""
    return bootstrap(
        lambda weights: scale * (_ratio(weights, *second) - _ratio(weights, *first)), len(first[0])
    )


def bootstrap_mean(
    values: Tensor | Sequence[float],
    *,
    scale: float = 1.0,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Estimate the mean of values, one per item. Pass differences to compare two runs.

    Raises:
        OptionError: There are no values, or one is missing (NaN).
    """
    items = torch.as_tensor(values, dtype=torch.float64)
    if items.dim() != 1 or not len(items) or items.isnan().any():
        raise OptionError("An interval needs a list of numbers, one for every item.")

    def mean(weights: Tensor) -> Tensor:
        return _ratio(weights, items, torch.ones_like(items))

    found = bounds(bootstrap(mean, len(items), level=level, draws=draws, seed=seed))
    return Interval.spanning(*found, scale=scale)


def bootstrap_clusters(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    scale: float = 1.0,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Estimate the mean of values that come in clusters, by resampling whole clusters.

    Several seeds or settings of one item are one cluster: they are not independent, so they do not
    count as several items. With one value per cluster the result equals `bootstrap_mean`.

    Args:
        values: The values. Pass differences to compare two runs.
        clusters: The cluster of each value.
        scale: A factor on every number.
        level: The coverage of the interval.
        draws: The number of resamples.
        seed: The seed of the resamples.

    Raises:
        OptionError: There are no values, one is missing (NaN), or one has no cluster.
    """
    if len(values) != len(clusters) or not values or any(value != value for value in values):
        raise OptionError("An interval needs a number and a cluster for every value.")
    found: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        found.setdefault(cluster, []).append(value)
    sums = torch.tensor([math.fsum(some) for some in found.values()], dtype=torch.float64)
    counts = torch.tensor([len(some) for some in found.values()], dtype=torch.float64)

    def mean(weights: Tensor) -> Tensor:
        return _ratio(weights, sums, counts)

    ends = bounds(bootstrap(mean, len(found), level=level, draws=draws, seed=seed))
    return Interval.spanning(*ends, scale=scale)


def bootstrap_known_mean(values: Tensor, *, scale: float = 1.0) -> Estimate:
    """Estimate the mean over the items that have a value; NaN marks those without."""
    known = values[~values.isnan()]
    return bootstrap_ratio(known, torch.ones_like(known), scale=scale)


def bootstrap_known_means(values: Tensor) -> list[Estimate]:
    """Estimate the mean of every column of (items, columns), with one set of resamples for all.

    NaN marks an item without a value. It is left out of the mean of its column.
    """
    items = len(values)
    known = (~values.isnan()).double()
    filled = values.nan_to_num(nan=0.0).double()
    means = filled.sum(0) / known.sum(0)
    if items < 2:
        return [None if mean != mean else mean for mean in means.tolist()]
    parts = [(weights @ filled) / (weights @ known) for weights in _resamples(items, DRAWS, 0)]
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = torch.cat(parts).nanquantile(tails, dim=0).tolist()
    return [
        None if mean != mean else Interval.spanning(mean, least, most)
        for mean, least, most in zip(means.tolist(), low, high, strict=True)
    ]


def to_column(values: Sequence[float | None]) -> Tensor:
    """Return (items,) float64; None becomes NaN, which marks an item without a value."""
    return torch.tensor([math.nan if one is None else one for one in values], dtype=torch.float64)


def _resamples(items: int, draws: int, seed: int) -> Iterable[Tensor]:
    """Return weights on items, (some draws, items): how often a draw picked each of them.

    A page of a thousand items has hundreds of intervals, all from the same draws. So the last ones
    are kept, unless they are large.
    """
    many = items * draws > MOST_KEPT
    return _draw_weights(items, draws, seed) if many else _kept_weights(items, draws, seed)


@lru_cache(maxsize=1)
def _kept_weights(items: int, draws: int, seed: int) -> tuple[Tensor, ...]:
    return tuple(_draw_weights(items, draws, seed))


def _draw_weights(items: int, draws: int, seed: int) -> Iterator[Tensor]:
    source = torch.Generator().manual_seed(seed)
    rest = draws
    while rest:
        chunk = min(rest, max(1, CHUNK // items))
        picks = torch.randint(0, items, (chunk, items), generator=source)
        weights = torch.zeros(chunk, items, dtype=torch.float64)
        yield weights.scatter_add_(1, picks, torch.ones_like(weights))
        rest -= chunk


def _ratio(weights: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
    below = weights @ bottom.double()
    return torch.where(below > 0, weights @ top.double() / below, torch.nan)
