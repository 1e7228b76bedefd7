"""MHCO against sets, and against rules that are each wrong in one word."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.decodes import bare, basic, hand_trace, plain, random_trace, sample

from wavefront.analysis.measures import mhco
from wavefront.analysis.measures._shared import rank_correlation
from wavefront.core import spec
from wavefront.core.errors import OptionError, TraceError
from wavefront.strategies.block import Block
from wavefront.testing.simulation import random_canvas

RADII = (1, 3)


def extent_of(row, moment, block):
    """Return all positions from the first to the last candidate, or complete blocks of slots."""
    if not moment.scope:
        return set()
    of_slot = {slot: place for place, slot in row.slots.items()}
    touched = [row.slots[place] for place in moment.scope]
    first = min(touched) // block * block
    last = min(max(touched) // block * block + block - 1, max(of_slot))
    return set(range(of_slot[first], of_slot[last] + 1))


def by_hand(trace, radius, reading, wrong=""):
    """Return (violations, commits, commits a visible token) per row and step."""
    strategy = spec.resolve(trace.about["options"]["strategy"], "strategies")
    block = strategy.size if isinstance(strategy, Block) else 1
    result = []
    for row in plain(trace):
        visible = row.visible()
        steps = []
        for moment in row.moments:
            scope = moment.scope
            if reading == "extent":
                scope = extent_of(row, moment, 1 if wrong == "edges" else block)
            outside = set()
            for place in moment.masked if wrong != "masked" else moment.masked | moment.known:
                if place in moment.commit and wrong != "committed":
                    continue
                if place in scope and wrong != "outside":
                    continue
                if wrong == "within" or any(abs(place - one) <= radius for one in scope):
                    outside.add(place)
            found = 0
            for place in moment.commit:
                own = moment.confidence[place]
                others = [moment.confidence[one] for one in outside]
                if wrong == "score":
                    own, others = moment.score[place], [moment.score[one] for one in outside]
                found += any(p >= own if wrong == "strictly" else p > own for p in others)
            seen = any(p in visible and row.lasts(moment, p) for p in moment.commit)
            steps.append((found, len(moment.commit), seen))
        result.append(steps)
    return result


def rate(steps, visible=False):
    kept = [(v, c) for v, c, seen in steps if seen or not visible]
    commits = sum(c for _, c in kept)
    return sum(v for v, _ in kept) / commits if commits else math.nan


def same(a, b):
    return a == pytest.approx(b, nan_ok=True, abs=1e-12)


@pytest.mark.parametrize("reading", ["candidates", "extent"])
def test_equals_brute_force_on_random_traces(reading):
    for trace in sample():
        for radius in RADII:
            found = getattr(mhco.measure(trace, radius), reading)
            expected = by_hand(trace, radius, reading)
            assert found.reading == reading
            for row, steps in enumerate(expected):
                assert found.violations[:, row].tolist() == [v for v, _, _ in steps]
                assert found.commits[:, row].tolist() == [c for _, c, _ in steps]
                assert found.visible[:, row].tolist() == [seen for _, _, seen in steps]
                shares = [v / c if c else math.nan for v, c, _ in steps]
                assert same(found.by_step[:, row].tolist(), shares)
            together = [step for steps in expected for step in steps]
            for visible in (False, True):
                assert same(found.rows(visible).tolist(), [rate(s, visible) for s in expected])
                assert same(found.mean(visible), rate(together, visible))


@pytest.mark.parametrize(
    ("wrong", "readings"),
    [
        ("outside", ("candidates", "extent")),
        ("committed", ("candidates", "extent")),
        ("masked", ("candidates", "extent")),
        ("within", ("candidates", "extent")),
        ("strictly", ("candidates", "extent")),
        ("score", ("candidates", "extent")),
        ("edges", ("extent",)),
    ],
)
def test_sample_detects_a_changed_rule(wrong, readings):
    """If the measure lacked this part of the rule, the test above would fail."""
    for reading in readings:
        assert any(
            by_hand(trace, 2, reading) != by_hand(trace, 2, reading, wrong) for trace in sample()
        )


def test_mhco_matches_hand_arithmetic():
    """Four positions, blocks of two. Position 1 is committed while 3, then 2, is likelier."""
    sure = [{1: 0.4, 2: 0.3, 3: 0.5, 4: 0.9}, {2: 0.6, 3: 0.6, 4: 0.9}, {3: 0.2, 4: 0.9}, {}]
    trace = hand_trace(
        [[1], [2], [3], [4]],
        places=4,
        scope=[[1, 2], [2], [3, 4], [4]],
        probability=sure,
        strategy="block(size=2)",
    )
    # Step 1: outside are 3 and, for R = 2, 4. Step 2: 3 ties with 2, 4 beats it. Step 3: 4 is a
    # candidate, so nothing lies outside.
    one = mhco.measure(trace, 1)
    assert one.candidates.violations[:, 0].tolist() == [1, 0, 0, 0]
    two = mhco.measure(trace, 2)
    assert two.candidates.violations[:, 0].tolist() == [1, 1, 0, 0]
    assert two.candidates.mean() == 0.5
    assert two.extent.mean() == 0.5


def test_readings_differ_inside_a_block_and_inside_a_wave():
    # A block of four of which only the first place is left: its edge is three places further on.
    trace = hand_trace(
        [[2, 3, 4], [1]],
        places=6,
        scope=[[1, 2, 3, 4], [1]],
        probability=[{}, {1: 0.4, 5: 0.9}],
        strategy="block(size=4)",
    )
    found = mhco.measure(trace, 1)
    assert found.candidates.violations[:, 0].tolist() == [0, 0]
    assert found.extent.violations[:, 0].tolist() == [0, 1]
    # A wave that left out place 2: outside its candidates, inside its extent.
    trace = hand_trace(
        [[1]],
        places=3,
        scope=[[1, 3]],
        probability=[{1: 0.4, 2: 0.9}],
        strategy="wavefront(size=2, radius=2)",
    )
    found = mhco.measure(trace, 2)
    assert (found.candidates.mean(), found.extent.mean()) == (1.0, 0.0)


def test_saturated_probabilities_are_equal():
    """-1e-9 is above -2e-9, and both are 1 in float32."""
    trace = hand_trace([[1]], places=2, scope=[[1]])
    trace.logp[0, 0, 1], trace.logp[0, 0, 2] = -2e-9, -1e-9
    assert mhco.measure(trace).candidates.mean() == 0.0


def test_visible_steps_commit_visible_tokens():
    trace = hand_trace(
        [[3], [1], [2]],
        places=3,
        scope=[[3], [1], [2]],
        probability=[{3: 0.1, 2: 0.9}, {1: 0.2, 2: 0.9}, {}],
        tokens={2: 9},
    )
    found = mhco.measure(trace, 1).candidates
    assert found.visible[:, 0].tolist() == [False, True, False]  # 2 ends the text, 3 is past it
    assert (found.mean(), found.mean(visible=True)) == (pytest.approx(2 / 3), 1.0)


def test_standard_is_zero_by_construction():
    for seed in range(5):
        trace = random_trace("standard()", random_canvas(seed), steps=7, seed=seed)
        found = mhco.measure(trace, 3)
        assert found.candidates.mean() == found.extent.mean() == 0.0


def test_radius_is_the_callers_not_the_strategys():
    trace = hand_trace(
        [[1]],
        places=6,
        scope=[[1]],
        probability=[{1: 0.6, 5: 0.9}],
        strategy="wavefront(size=1, radius=5)",
    )
    assert mhco.measure(trace).candidates.mean() == 0.0
    assert mhco.measure(trace, 4).candidates.mean() == 1.0


def test_joined_batches_equal_one_batch():
    traces = [
        t for t in sample() if t.about["options"]["strategy"] == "wavefront(size=3, radius=1)"
    ]
    parts = [mhco.measure(trace) for trace in traces]
    joined = mhco.Readings.join(parts)
    for index in (0, 1):
        one = joined[index]
        rows = torch.cat([part[index].rows() for part in parts])
        assert torch.allclose(one.rows(), rows, equal_nan=True)
        total = sum(int(part[index].violations.sum()) for part in parts)
        assert one.mean() == pytest.approx(total / sum(int(p[index].commits.sum()) for p in parts))


def test_correlation_with_correctness():
    """Of three items at 0, 0.5 and 1, the two lower ones are right."""
    commits = torch.full((1, 3), 2)
    found = mhco.Mhco("extent", torch.tensor([[0, 1, 2]]), commits, commits > 0)
    # Ranks 1, 2, 3 against 2.5, 2.5, 1: covariance -1.5, variances 2 and 1.5.
    assert found.correlation([True, True, False]) == pytest.approx(-1.5 / 3**0.5)
    assert math.isnan(found.correlation([True, True, True]))


def test_ranks_share_ties():
    """x ranks 1, 2.5, 2.5, 4 against 4, 2, 3, 1: Σ (products about 2.5) = -4.5."""
    assert rank_correlation([1, 2, 2, 9], [8, 2, 3, 1]) == pytest.approx(-4.5 / (4.5 * 5) ** 0.5)
    assert rank_correlation([1, 2, 3, math.nan], [1, 4, 9, 0]) == 1.0
    with pytest.raises(OptionError):
        rank_correlation([1, 2], [1])


def test_invalid_input_raises():
    trace = sample()[0]
    with pytest.raises(TraceError, match="trace='full'"):
        mhco.measure(basic(trace))
    with pytest.raises(OptionError, match="radius"):
        mhco.measure(trace, -1)
    headless = bare(hand_trace([[1]], places=1))
    with pytest.raises(TraceError, match="stop_ids"):
        mhco.measure(headless)
    assert mhco.measure(headless, stop_ids=()).extent.mean() == 0.0


def test_unknown_strategy_has_the_extent_of_its_candidates():
    trace = hand_trace([[1]], places=4, scope=[[1]], probability=[{1: 0.1, 3: 0.9}])
    trace.about["options"]["strategy"] = "somewhere.else.Mine(size=4)"
    assert mhco.measure(trace).extent.mean() == 1.0
    assert mhco.measure(trace, block=4).extent.mean() == 0.0
