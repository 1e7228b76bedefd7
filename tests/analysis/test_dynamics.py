"""Frontier and heat map against loops over sets."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.decodes import basic, hand_trace, plain, sample

from wavefront.analysis.measures import dynamics
from wavefront.core.errors import OptionError, TraceError


def frontier_by_hand(row):
    """Return (t, leftmost masked, furthest decided, active) before and after every step."""
    size = len(row.slots)
    masked = set(row.slots)
    states = [(0, 0, -1, True)]
    longest = run = t = 0
    for moment in row.moments:
        masked = (masked - moment.commit) | moment.remask
        left = min((row.slots[p] for p in masked), default=size)
        done = max((row.slots[p] for p in row.slots if p not in masked), default=-1)
        if moment.counts:
            t = moment.t
            run = run + 1 if left == states[-1][1] else 0
            longest = max(longest, run)
        states.append((t, left, done, moment.counts))
    return states, longest


def test_frontier_equals_brute_force_on_random_traces():
    for trace in sample():
        found = dynamics.frontier(basic(trace))
        for index, row in enumerate(plain(trace)):
            states, longest = frontier_by_hand(row)
            columns = (found.t, found.leftmost, found.furthest, found.live)
            ours = list(zip(*(c[:, index].tolist() for c in columns), strict=True))
            assert ours == states
            assert int(found.plateau[index]) == longest
            assert int(found.length[index]) == len(row.slots)


def test_frontier_matches_hand_arithmetic():
    """A wave that skips slot 0 for two steps, then fills it and continues."""
    found = dynamics.frontier(hand_trace([[2], [3], [1], [4]], places=4))
    assert found.t[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.leftmost[:, 0].tolist() == [0, 0, 0, 3, 4]
    assert found.furthest[:, 0].tolist() == [-1, 1, 2, 2, 3]
    assert found.plateau.tolist() == [2]


def test_remasking_moves_the_frontier_back():
    found = dynamics.frontier(hand_trace([[1], [2, 3], [1, 3]], places=3, remask=[[], [1, 3], []]))
    assert found.leftmost[:, 0].tolist() == [0, 1, 0, 3]
    assert found.furthest[:, 0].tolist() == [-1, 0, 1, 2]


def test_heat_map_equals_brute_force_on_random_traces():
    for trace in sample()[::2]:
        for index, row in enumerate(plain(trace)):
            moments = [moment for moment in row.moments if moment.counts]
            for of in ("score", "probability", "entropy"):
                found = dynamics.heat_map(trace, index, of)
                assert found.t.tolist() == [moment.t for moment in moments]
                for line, moment in enumerate(moments):
                    values = {
                        "score": moment.score,
                        "probability": moment.confidence,
                        "entropy": moment.entropy,
                    }[of]
                    for place, slot in row.slots.items():
                        value = float(found.values[line, slot])
                        assert math.isnan(value) == (place not in moment.masked)
                        assert math.isnan(value) or value == values[place]
                        assert bool(found.commit[line, slot]) == (place in moment.commit)
                        assert bool(found.candidates[line, slot]) == (place in moment.scope)


def test_heat_map_matches_hand_arithmetic():
    trace = hand_trace([[2], [1]], places=2, probability=[{1: 0.25, 2: 0.75}, {1: 0.5}])
    values = dynamics.heat_map(trace, of="probability").values
    assert values[0].tolist() == pytest.approx([0.25, 0.75])
    assert values[1, 0] == 0.5
    assert math.isnan(values[1, 1])


def test_joined_batches_repeat_their_last_value():
    long = dynamics.frontier(hand_trace([[2], [3], [1]], places=3))
    short = dynamics.frontier(hand_trace([[1]], places=1))
    joined = dynamics.Frontier.join([short, long])
    assert joined.leftmost.T.tolist() == [[0, 1, 1, 1], [0, 0, 0, 3]]
    assert joined.live.T.tolist() == [[True, True, False, False], [True] * 4]
    assert joined.plateau.tolist() == [0, 2]
    assert joined.length.tolist() == [1, 3]


def test_invalid_input_raises():
    trace = sample()[0]
    with pytest.raises(TraceError, match="trace='full'"):
        dynamics.heat_map(basic(trace))
    with pytest.raises(OptionError, match="entropy"):
        dynamics.heat_map(trace, of="entropi")
    with pytest.raises(OptionError, match="row"):
        dynamics.heat_map(trace, row=99)


def test_empty_trace_has_empty_results():
    trace = hand_trace([], places=3)
    assert dynamics.frontier(trace).leftmost.tolist() == [[0]]
    assert dynamics.heat_map(trace).values.shape == (0, 3)
    assert torch.equal(dynamics.frontier(trace).plateau, torch.tensor([0]))
