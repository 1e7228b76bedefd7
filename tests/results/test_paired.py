"""Paired comparison: McNemar's test against enumeration, and the coverage of the bootstrap."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from wavefront.core.errors import OptionError
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import FEWEST_DIFFERING, Interval, exact_share
from wavefront.results.paired import compare, exact_gap, mcnemar, sign_test


def pairs(both, first, second, neither):
    a = [1] * both + [1] * first + [0] * second + [0] * neither
    b = [1] * both + [0] * first + [1] * second + [0] * neither
    return a, b


def test_mcnemar_matches_a_hand_computed_value():
    """Six differ, one against five: 2 (1 + 6) / 64."""
    found = mcnemar(*pairs(3, 1, 5, 2))
    assert found[:4] == (3, 1, 5, 2)
    assert found.p == 2 * 7 / 64
    assert mcnemar(*pairs(3, 0, 0, 2)).p == 1.0
    assert mcnemar(*pairs(0, 4, 4, 0)).p == 1.0
    assert mcnemar(*pairs(0, 0, 1, 0)).p == 1.0


@pytest.mark.parametrize("coins", range(1, 11))
def test_mcnemar_equals_enumeration_of_coin_throws(coins):
    """p is the share of all throws at least as uneven as the observed one."""
    throws = [sum(throw) for throw in itertools.product((0, 1), repeat=coins)]
    for heads in range(coins + 1):
        far = abs(2 * heads - coins)
        share = sum(abs(2 * other - coins) >= far for other in throws) / len(throws)
        assert mcnemar(*pairs(1, heads, coins - heads, 1)).p == pytest.approx(share)


def test_mcnemar_of_many_items_does_not_overflow():
    found = mcnemar(*pairs(0, 4000, 4200, 0))
    normal = math.erfc((200 - 1) / math.sqrt(8200) / math.sqrt(2))
    assert found.p == pytest.approx(normal, rel=0.01)


def binomial(count: int, items: int, share: float) -> float:
    return math.comb(items, count) * share**count * (1 - share) ** (items - count)


@pytest.mark.parametrize("items", [1, 4, 9])
def test_exact_share_leaves_the_tail_outside(items):
    for count in range(items + 1):
        low, high = exact_share(count, items, tail=0.025)
        assert 0 <= low <= count / items <= high <= 1
        if count:
            above = sum(binomial(one, items, low) for one in range(count, items + 1))
            assert above == pytest.approx(0.025)
        if count < items:
            below = sum(binomial(one, items, high) for one in range(count + 1))
            assert below == pytest.approx(0.025)
    assert exact_share(0, 8, tail=0.025)[1] == pytest.approx(1 - 0.025 ** (1 / 8))
    with pytest.raises(OptionError, match="not a share"):
        exact_share(2, 1, tail=0.025)


def test_exact_gap_never_claims_that_a_difference_is_impossible():
    none = exact_gap(mcnemar(*pairs(5, 0, 0, 3)))
    assert (none.value, none.low) == (0.0, -none.high)
    assert 0.3 < none.high < 0.5
    assert exact_gap(mcnemar(*pairs(500, 0, 0, 500))).high < 0.005
    some = exact_gap(mcnemar(*pairs(5, 1, 2, 0)))
    assert some.low < 0 < some.value == 1 / 8 < some.high
    for one in range(FEWEST_DIFFERING):
        assert exact_gap(mcnemar(*pairs(9, 0, one, 9))).low < 0, "as McNemar's p is above 0.05"


@pytest.mark.parametrize(("first", "second"), [(0.05, 0.05), (0.01, 0.2), (0.0, 0.1)])
def test_exact_gap_covers_the_true_difference(first, second):
    """Sum the probabilities of all outcomes of ten items whose interval has the true value."""
    items, covered = 10, 0.0
    for a in range(items + 1):
        for b in range(items + 1 - a):
            rest = items - a - b
            ways = math.factorial(items) // math.prod(map(math.factorial, (a, b, rest)))
            found = exact_gap(mcnemar(*pairs(rest, a, b, 0)))
            if found.low <= second - first <= found.high:
                covered += ways * first**a * second**b * (1 - first - second) ** rest
    assert covered >= 0.95


def test_interval_contains_the_mean_and_shrinks_with_more_items():
    few = bootstrap_mean([0.0, 1.0] * 10)
    many = bootstrap_mean([0.0, 1.0] * 1000)
    assert few.value == many.value == 0.5
    assert few.low < many.low < 0.5 < many.high < few.high
    # The standard error of 2,000 coins is 0.0112; 95 % is 1.96 of them.
    assert many.high - 0.5 == pytest.approx(1.96 * 0.5 / math.sqrt(2000), rel=0.05)
    assert bootstrap_mean([2.5] * 4) == Interval(2.5, 2.5, 2.5)
    assert bootstrap_mean([0.0, 1.0] * 10) == few
    assert bootstrap_mean([0.0, 1.0] * 1000, seed=1) != many
    assert bootstrap_mean([0.0, 1.0] * 10, level=0.5).high < few.high


def test_interval_has_about_its_nominal_coverage():
    source = torch.Generator().manual_seed(0)
    hits = 0
    for number in range(200):
        values = torch.randn(60, generator=source)
        found = bootstrap_mean(values, draws=400, seed=number)
        hits += found.low <= 0 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_compare_pairs_by_item():
    found = compare({"a": True, "b": False, "c": True}, {"c": True, "b": True, "a": False})
    assert (found.count, found.first, found.second) == (3, 2 / 3, 2 / 3)
    assert found.gap.value == 0.0
    assert found.gap.low < 0 < found.gap.high
    assert found.mcnemar is not None
    assert found.mcnemar[:4] == (1, 1, 1, 0)
    assert [(one.id, one.gap) for one in found.differences] == [("a", -1.0), ("b", 1.0)]


def test_sign_test_equals_mcnemar_on_single_answers():
    first, second = pairs(3, 1, 5, 2)
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    assert sign_test(gaps) == mcnemar(first, second).p
    assert sign_test([]) == sign_test([0.0, 0.0]) == 1.0


def test_answers_to_one_item_are_compared_as_one_cluster():
    first = {(item, seed): False for item in range(6) for seed in range(3)}
    second = dict.fromkeys(first, True)
    found = compare(first, second, cluster=lambda key: key[0])
    assert (found.count, found.clusters) == (18, 6)
    assert found.mcnemar is None  # its pairs are not independent
    assert found.p == 2 / 2**6
    alone = compare(first, second)
    assert alone.mcnemar is not None
    assert alone.p == alone.mcnemar.p == 2 / 2**18


def test_pairing_makes_the_interval_narrow():
    """The same gap of 0.1 on items that differ among themselves by far more."""
    first = {i: float(i) for i in range(100)}
    second = {i: i + 0.1 for i in range(100)}
    found = compare(first, second)
    assert (found.gap.low, found.gap.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found.mcnemar is None
    assert len(found.differences) == 100


def test_largest_difference_comes_first():
    found = compare({1: 0.5, 2: 0.5, 3: 0.5}, {1: 0.6, 2: 0.0, 3: 0.5})
    assert [one.id for one in found.differences] == [2, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: mcnemar([1], [1, 0]),
        lambda: bootstrap_mean([]),
        lambda: bootstrap_mean([1.0, math.nan]),
        lambda: bootstrap_mean([1.0], level=1.5),
        lambda: compare({"a": 1}, {"b": 1}),
        lambda: compare({"a": 1, "b": 1}, {"a": 1}),
        lambda: compare({}, {}),
    ],
)
def test_unpaired_or_missing_values_are_refused(call):
    with pytest.raises(OptionError):
        call()
