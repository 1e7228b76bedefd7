"""A value with its 95 % interval, and a share of correct answers with Wilson's interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from wavefront.core.errors import OptionError

NORMAL = 1.959963984540054  # 95 % of a normal distribution lie within so many deviations


@dataclass(frozen=True)
class Interval:
    """A value, and the range it may have on other items."""

    value: float
    low: float
    high: float

    @classmethod
    def spanning(cls, value: float, low: float, high: float, *, scale: float = 1.0) -> Interval:
        """Build an interval that contains its value, also where rounding moved an end past it."""
        return cls(scale * value, scale * min(low, value), scale * max(high, value))

    def scaled(self, scale: float) -> Interval:
        """Return the interval with every number multiplied by `scale`."""
        return Interval(scale * self.value, scale * self.low, scale * self.high)


# One item has a value without an interval. No item has no value.
Estimate = Interval | float | None


def bounds(estimate: Estimate) -> tuple[float, float, float]:
    """Return value, low and high. Without an interval all three are the value, or 0 for None."""
    if isinstance(estimate, Interval):
        return estimate.value, estimate.low, estimate.high
    value = estimate or 0.0
    return value, value, value


class Share(NamedTuple):
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


def wilson_share(correct: int, count: int) -> Share:
    """Return a share with Wilson's interval, which holds for few items and for all or none.

    Raises:
        OptionError: There are no items, or `correct` is not between 0 and `count`.
    """
    if not 0 <= correct <= count or count == 0:
        raise OptionError(f"{correct} of {count} is not a share: at least one item is needed.")
    part, squared = correct / count, NORMAL**2
    middle = (part + squared / (2 * count)) / (1 + squared / count)
    half = NORMAL * math.sqrt(part * (1 - part) / count + squared / (4 * count**2))
    half /= 1 + squared / count
    return Share(correct, count, max(0.0, middle - half), min(1.0, middle + half))
