"""The bootstrap over items: ratios, pairs, and items without a value."""

from __future__ import annotations

import math

import pytest
import torch

from wavefront.core.errors import OptionError
from wavefront.results.bootstrap import (
    bootstrap_clusters,
    bootstrap_known_mean,
    bootstrap_mean,
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


def test_one_value_per_cluster_is_the_plain_bootstrap() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 0.5]
    assert bootstrap_clusters(values, range(6)) == bootstrap_mean(values)
    assert bootstrap_clusters(values, range(6), scale=100) == bootstrap_mean(values, scale=100)


def test_copies_of_one_item_do_not_narrow_the_interval() -> None:
    values = [0.0, 1.0] * 8
    plain = bootstrap_mean(values)
    copied = bootstrap_clusters(values * 3, [*range(16)] * 3)
    assert (copied.low, copied.high) == (plain.low, plain.high)
    assert bootstrap_mean(values * 3).high < plain.high


def test_cluster_bootstrap_covers_where_the_plain_one_does_not() -> None:
    """Forty items under five seeds each, whose answers differ far more by item than by seed."""
    source = torch.Generator().manual_seed(0)
    hits = {"clusters": 0, "values": 0}
    for number in range(200):
        items = torch.randn(40, 1, generator=source)
        values = (items + 0.3 * torch.randn(40, 5, generator=source)).flatten().tolist()
        owners = [n // 5 for n in range(200)]
        by_cluster = bootstrap_clusters(values, owners, draws=400, seed=number)
        by_value = bootstrap_mean(values, draws=400, seed=number)
        hits["clusters"] += by_cluster.low <= 0 <= by_cluster.high
        hits["values"] += by_value.low <= 0 <= by_value.high
    assert 0.88 <= hits["clusters"] / 200 <= 0.99
    assert hits["values"] / 200 < 0.75  # what counting every seed as an item would claim


def test_clusters_of_unequal_size_weight_every_value_once() -> None:
    assert bootstrap_clusters([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]).value == 0.75


def test_values_without_a_cluster_are_refused() -> None:
    for values, clusters in (([], []), ([1.0], []), ([math.nan], ["a"])):
        with pytest.raises(OptionError, match="a number and a cluster"):
            bootstrap_clusters(values, clusters)


def test_interval_says_which_differences_it_excludes() -> None:
    assert Interval(0.5, -1.0, 2.0).excluded_above == 2.0
    assert Interval(-0.5, -3.0, 2.0).excluded_above == 3.0
