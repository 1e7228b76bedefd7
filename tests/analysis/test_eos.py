"""Premature EOS against loops, and a case by hand."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.decodes import STOP, bare, basic, hand_trace, plain, sample

from wavefront.analysis.measures import eos
from wavefront.core.errors import OptionError, TraceError


def test_equals_brute_force_on_random_traces():
    for trace in sample():
        found = eos.measure(basic(trace))
        for index, row in enumerate(plain(trace)):
            commits = [(m.t, m.token[p]) for m in row.moments for p in m.commit]
            ends = [t for t, token in commits if token == STOP]
            assert int(found.first[index]) == min(ends, default=0)
            assert int(found.ends[index]) == len(ends)
            assert int(found.commits[index]) == len(commits)
            assert int(found.visible[index]) == len(row.visible())
            assert float(found.share[index]) == pytest.approx(len(ends) / len(commits))
            assert int(found.steps[index]) == trace.about["options"]["steps"]


def test_endings_match_hand_arithmetic():
    """The stop token is committed first, at slot 2, after two other slots."""
    trace = hand_trace([[3], [1], [4], [2]], places=4, tokens={3: STOP, 4: STOP})
    found = eos.measure(trace, reference=[4])
    assert (found.first.tolist(), found.when.tolist()) == ([1], [0.25])
    assert (found.share.tolist(), found.visible.tolist()) == ([0.5], [2])
    assert found.ratio.tolist() == [0.5]


def test_any_stop_token_counts():
    trace = hand_trace([[1], [2]], places=2, tokens={2: 8})
    assert eos.measure(trace).first.tolist() == [0]
    assert math.isnan(eos.measure(trace).when[0])
    assert math.isnan(eos.measure(trace).ratio[0])
    assert eos.measure(trace, stop_ids=(STOP, 8)).first.tolist() == [2]


def test_undecided_positions_are_not_visible():
    """The decode stopped early, so the tail was never decided."""
    trace = hand_trace([[1], [2]], places=4, tokens={2: STOP})
    assert eos.measure(trace).visible.tolist() == [1]
    assert eos.measure(trace, stop_ids=()).visible.tolist() == [2]


def test_remasked_stop_token_still_counts_as_committed():
    trace = hand_trace([[1], [2], [1]], places=2, remask=[[], [1], []], tokens={1: STOP})
    trace.tokens[2, 0, 1] = 7
    found = eos.measure(trace)
    assert (found.first.tolist(), found.ends.tolist(), found.commits.tolist()) == ([1], [1], [3])
    assert found.visible.tolist() == [2]


def test_budget_without_a_header_is_the_last_active_step():
    trace = bare(hand_trace([[1], [2], []], places=2, tokens={2: STOP}))
    assert eos.measure(trace, stop_ids=(STOP,)).when.tolist() == [1.0]
    with pytest.raises(TraceError, match="stop_ids"):
        eos.measure(trace)


def test_join_and_mismatched_references():
    trace = hand_trace([[1], [2]], places=2, tokens={1: STOP})
    one = eos.measure(trace, reference=[2])
    both = eos.Endings.join([one, one])
    assert both.ratio.tolist() == [0.0, 0.0]
    assert both.first.tolist() == [1, 1]
    assert eos.Endings.join([one, eos.measure(trace)]).reference is None
    with pytest.raises(OptionError, match="1 rows"):
        eos.measure(trace, reference=[2, 3])
    assert torch.isnan(eos.measure(trace, reference=[0]).ratio).all()
