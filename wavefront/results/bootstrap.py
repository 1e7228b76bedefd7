"""The bootstrap over items: means and ratios with percentile intervals, alone and in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from wavefront.core.errors import OptionError, check_float, check_int
from wavefront.results.interval import Estimate, Interval, bounds

DRAWS, LEVEL = 10_000, 0.95
CHUNK = 1 << 22  # weights computed at once: 32 MiB


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
        The interval; the bare value for one item; None where the statistic is not defined.
    """
    check_float("level", level, 0, 1)
    check_int("draws", draws, 1)
    if not items:
        return None
    value = float(statistic(torch.ones(1, items, dtype=torch.float64)))
    if value != value:
        return None
    if items == 1:
        return value
    source = torch.Generator().manual_seed(seed)
    found, rest = [], draws
    while rest:
        chunk = min(rest, max(1, CHUNK // items))
        picks = torch.randint(0, items, (chunk, items), generator=source)
        weights = torch.zeros(chunk, items, dtype=torch.float64)
        weights.scatter_add_(1, picks, torch.ones_like(weights))
        found.append(statistic(weights))
        rest -= chunk
    values = torch.cat(found)
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
    """Estimate the ratio of `second` minus that of `first`, in pairs over the same items."""
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
    """Estimate the mean of values, one per item; give differences to compare in pairs.

    Raises:
        OptionError: There are no values, or one is missing (NaN).
    """
    items = torch.as_tensor(values, dtype=torch.float64)
    if items.dim() != 1 or not len(items) or items.isnan().any():
        raise OptionError("An interval needs a list of numbers, one per item, and none missing.")

    def mean(weights: Tensor) -> Tensor:
        return _ratio(weights, items, torch.ones_like(items))

    found = bounds(bootstrap(mean, len(items), level=level, draws=draws, seed=seed))
    return Interval.spanning(*found, scale=scale)


def bootstrap_known_mean(values: Tensor, *, scale: float = 1.0) -> Estimate:
    """Estimate the mean over the items that have a value; NaN marks those without."""
    known = values[~values.isnan()]
    return bootstrap_ratio(known, torch.ones_like(known), scale=scale)


def _ratio(weights: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
    below = weights @ bottom.double()
    return torch.where(below > 0, weights @ top.double() / below, torch.nan)
