"""A value with its 95 % interval, a share of correct answers, and the Pareto front of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wavefront.core.errors import OptionError

NORMAL = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations
# With fewer differing items the exact McNemar test cannot reach p < 0.05, and a bootstrap interval
# is too narrow: it is a point if no item differs.
FEWEST_DIFFERING = 6


@dataclass(frozen=True)
class Interval:
    """A value, and the range it may have on other items."""

    value: float
    low: float
    high: float

    @classmethod
    def spanning(cls, value: float, low: float, high: float, *, scale: float = 1.0) -> Interval:
        """Build an interval that contains its value, even if rounding moved an end past it."""
        return cls(scale * value, scale * min(low, value), scale * max(high, value))

    def scaled(self, scale: float) -> Interval:
        """Return the interval with every number multiplied by `scale`."""
        return Interval(scale * self.value, scale * self.low, scale * self.high)

    @property
    def excluded_above(self) -> float:
        """Return the size above which a difference is excluded: the larger end, without its sign.

        Where no difference was found, this says how large one could still be.
        """
        return max(abs(self.low), abs(self.high))


# With one item there is a value but no interval. Without items there is no value.
Estimate = Interval | float | None


def bounds(estimate: Estimate) -> tuple[float, float, float]:
    """Return value, low and high. Without an interval all three are the value; None counts as 0."""
    if isinstance(estimate, Interval):
        return estimate.value, estimate.low, estimate.high
    value = estimate or 0.0
    return value, value, value


class TradeoffPoint(NamedTuple):
    """A setting: its cost, and its share of correct answers in [0, 1] with a 95 % interval."""

    name: str  # a spec
    cost: float
    mean: float
    low: float
    high: float


def pareto_front(spots: Sequence[TradeoffPoint]) -> list[TradeoffPoint]:
    """Return the points that no other beats at the same or lower cost, cheapest first."""
    kept: list[TradeoffPoint] = []
    for one in sorted(spots, key=lambda spot: (spot.cost, -spot.mean)):
        if not kept or one.mean > kept[-1].mean:
            kept.append(one)
    return kept


class Proportion(NamedTuple):
    """A share of correct answers with Wilson's 95 % interval."""

    correct: int
    items: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """Return the share, from 0 to 1."""
        return self.correct / self.items

    @property
    def error(self) -> float:
        """Return the standard error of the mean as lm-eval computes it; 0 for one item."""
        spread = self.value * (1 - self.value)
        return math.sqrt(spread / (self.items - 1)) if self.items > 1 else 0.0

    @property
    def percent(self) -> Interval:
        """Return the share in percent."""
        return Interval.spanning(self.value, self.low, self.high, scale=100)


def wilson_share(correct: int, count: int) -> Proportion:
    """Return a share with Wilson's interval, which is valid for few items and for 0 or 100 %.

    Raises:
        OptionError: There are no items, or `correct` is not between 0 and `count`.
    """
    if not 0 <= correct <= count or count == 0:
        raise OptionError(f"{correct} of {count} items is not a share of correct answers.")
    part, squared = correct / count, NORMAL**2
    middle = (part + squared / (2 * count)) / (1 + squared / count)
    half = NORMAL * math.sqrt(part * (1 - part) / count + squared / (4 * count**2))
    half /= 1 + squared / count
    return Proportion(correct, count, max(0.0, middle - half), min(1.0, middle + half))


def exact_share(count: int, items: int, *, tail: float) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) lower and upper bound of a share.

    Each bound is wrong with a probability of at most `tail`, however few items there are.
    """
    if not 0 <= count <= items or items == 0:
        raise OptionError(f"{count} of {items} items is not a share.")
    low = _solve(lambda share: 1 - _at_most(count - 1, items, share) - tail)
    high = _solve(lambda share: tail - _at_most(count, items, share))
    return low if count else 0.0, high if count < items else 1.0


def _at_most(count: int, items: int, share: float) -> float:
    """Return the probability that a binomial number is at most `count`."""
    return math.fsum(
        math.comb(items, one) * share**one * (1 - share) ** (items - one)
        for one in range(count + 1)
    )


def _solve(rising: Callable[[float], float]) -> float:
    """Return where a rising function on [0, 1] crosses 0, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
