"""Statistics of right and wrong answers: a share with its interval."""

from __future__ import annotations

import math
from typing import NamedTuple

from wavefront.core.errors import OptionError

NORMAL = 1.959963984540054  # half the width of 95 % of a normal distribution


class Share(NamedTuple):
    """So many of so many, and what the share might have been on other items."""

    right: int
    items: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.right / self.items

    @property
    def error(self) -> float:
        """The standard error of the mean, as lm-eval counts it; 0 of one item."""
        spread = self.value * (1 - self.value)
        return math.sqrt(spread / (self.items - 1)) if self.items > 1 else 0.0


def share(right: int, count: int) -> Share:
    """A share with Wilson's 95 % interval, which also holds for few items and for all or none."""
    if not 0 <= right <= count or count == 0:
        raise OptionError(f"{right} of {count} is no share: at least one item is needed.")
    part, squared = right / count, NORMAL**2
    middle = (part + squared / (2 * count)) / (1 + squared / count)
    half = NORMAL * math.sqrt(part * (1 - part) / count + squared / (4 * count**2))
    half /= 1 + squared / count
    return Share(right, count, max(0.0, middle - half), min(1.0, middle + half))
