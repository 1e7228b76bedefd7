"""The terms of a comparison: halves, grids, choices, and AUP."""

from __future__ import annotations

import math
import re

import pytest

from wavefront.core.errors import OptionError
from wavefront.core.spec import names, resolve
from wavefront.evaluation import protocol
from wavefront.evaluation.protocol import accuracy_under_parallelism, choose, half_of, settings_of
from wavefront.evaluation.task_spec import samples_of
from wavefront.tasks.base import Ask


def test_halves_are_disjoint_stable_and_about_equal() -> None:
    def ids(half: str = "", count: int = 200) -> list[str]:
        ask = Ask(count=count, style="bare", half=half)
        return [one.id for one in samples_of("boolean_expressions", ask)[1]]

    every, halves = ids(), [ids(half) for half in protocol.HALVES]
    assert not {*halves[0]} & {*halves[1]}
    assert sorted(halves[0] + halves[1]) == sorted(every)
    assert 70 <= len(halves[0]) <= 130
    assert all((item in halves[0]) == (half_of(item) == "tune") for item in ids(count=50))
    # These values may never change: a setting chosen on one half would be shown on the same items.
    assert [half_of(f"item/{n}") for n in range(8)] == [
        "tune", "tune", "report", "tune", "report", "report", "tune", "report",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="half must be one of"):
        samples_of("boolean_expressions", Ask(count=4, half="middle"))


def test_every_adaptive_strategy_has_the_same_number_of_settings() -> None:
    sizes = {len(settings_of(family)) for family in protocol.ADAPTIVE}
    assert sizes == {7}
    for family in (*protocol.FIXED, *protocol.ADAPTIVE):
        specs = settings_of(family)
        assert len({repr(resolve(spec, "strategies")) for spec in specs}) == len(specs) or (
            family.startswith(("adablock", "dsb", "dcd"))  # they do not show their default selector
        )
    assert all(settings_of(family) == [family] for family in protocol.FIXED)


def test_every_strategy_and_selector_is_compared_or_left_out_for_a_reason() -> None:
    compared = " ".join((*protocol.FIXED, *protocol.ADAPTIVE))
    left_out = {
        "blockwise": "decodes another strategy block by block",
        "quota": "the default selector of the fixed budgets",
        "share": "the counts of quota, rounded in another way",
        "dream": "rules of Dream's sampler, which are reproduced token for token",
        "origin": "rules of Dream's sampler, which are reproduced token for token",
    }
    known = {*names("strategies"), *names("selectors")}
    assert {one for one in known if not re.search(rf"\b{one}\b", compared)} == {*left_out}


def test_grid_with_fewer_values_is_refused() -> None:
    for values in ((0.9,), (0.9, 0.9, 0.9, 0.9, 0.9), (0.6, 0.7, 0.8, 0.9)):
        with pytest.raises(OptionError, match="at least 5 different values"):
            protocol.check_grids({"tau": values})
    with pytest.raises(OptionError, match="give every option the same number of values"):
        protocol.check_grids({"tau": (1, 2, 3, 4, 5), "gamma": (1, 2, 3, 4, 5, 6)})
    protocol.check_grids(protocol.GRIDS)


@pytest.mark.parametrize("family", ["block(size={size})", "edit(tau={tau}, x={gamma})", "a({})"])
def test_knob_without_a_grid_is_refused(family: str) -> None:
    with pytest.raises(OptionError, match="may leave at most one option open"):
        settings_of(family)


def test_aup_of_one_setting_is_its_rectangle() -> None:
    assert accuracy_under_parallelism([(2.0, 80.0)], 80.0) == 160.0


def test_aup_matches_a_hand_computed_value() -> None:
    """Two settings, the second two points below the best: W = exp(-3 * 2 / 80)."""
    found = accuracy_under_parallelism([(3.0, 78.0), (1.0, 80.0)], 80.0)
    weight = math.exp(-3 * (1 - 78 / 80))
    assert found == pytest.approx(80.0 + 2 * (78 * weight + 80) / 2)
    # A setting more than five points below the least parallel one is left out.
    assert accuracy_under_parallelism([(1.0, 80.0), (3.0, 78.0), (9.0, 70.0)], 80.0) == found
    # A lower accuracy never helps.
    assert accuracy_under_parallelism([(1.0, 80.0), (3.0, 76.0)], 80.0) < found
    assert accuracy_under_parallelism([(1.0, 0.0)], 0.0) == 0.0
    for wrong in ([], [(0.0, 1.0)]):
        with pytest.raises(OptionError, match="AUP needs"):
            accuracy_under_parallelism(wrong, 80.0)


def test_choice_is_the_cheapest_good_one_or_the_best_cheap_one() -> None:
    known = {"a": (80.0, 30.0), "b": (79.5, 8.0), "c": (70.0, 3.0), "d": (79.6, 8.0)}

    def chosen(**limits: float) -> str | None:
        return choose(
            [*known], quality=lambda one: known[one][0], cost=lambda one: known[one][1], **limits
        )

    assert chosen(least=79.0) == "d"
    assert chosen(least=80.0) == "a"
    assert chosen(most=10.0) == "d"
    assert chosen(most=5.0) == "c"
    assert chosen(most=1.0) is None
    assert chosen(least=99.0) is None
