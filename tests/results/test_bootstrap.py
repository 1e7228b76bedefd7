"""The bootstrap over items: ratios, pairs, and items without a value."""

from __future__ import annotations

import math

import torch

from wavefront.results.bootstrap import (
    bootstrap_known_mean,
    bootstrap_ratio,
    bootstrap_ratio_difference,
)
from wavefront.results.interval import Interval, bounds


def test_ratios_have_intervals_over_items_and_in_pairs() -> None:
    top, bottom = torch.tensor([1, 3, 0, 4]), torch.tensor([4, 4, 4, 4])
    found = bootstrap_ratio(top, bottom, scale=100)
    assert bounds(found)[0] == 50
    assert 0 < bounds(found)[1] < 50 < bounds(found)[2] < 100
    gap = bootstrap_ratio_difference((top, bottom), (top + 1, bottom))
    assert bounds(gap) == (0.25, 0.25, 0.25)  # every item differs by as much
    assert bootstrap_ratio(torch.zeros(3), torch.zeros(3)) is None


def test_known_mean_skips_items_without_a_value() -> None:
    assert bounds(bootstrap_known_mean(torch.tensor([1.0, math.nan, 3.0])))[0] == 2
    assert bootstrap_known_mean(torch.tensor([math.nan])) is None
    assert bootstrap_known_mean(torch.tensor([2.0])) == 2.0  # one item has no interval


def test_spanning_interval_contains_its_value() -> None:
    assert Interval.spanning(1.0, 1.1, 0.9, scale=2) == Interval(2.0, 2.0, 2.0)
