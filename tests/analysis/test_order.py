"""How far from left to right, against loops over pairs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from helpers.decodes import basic, hand_trace, plain, sample

from wavefront.analysis.measures import order


def by_hand(row, visible):
    seen = row.visible()

    def kept(moment, place):
        return not visible or (place in seen and row.lasts(moment, place))

    time = {p: m.index for m in row.moments for p in m.commit if row.lasts(m, p) and kept(m, p)}
    agree = differ = ties = 0
    for left, right in itertools.combinations(sorted(time), 2):
        agree += time[left] < time[right]
        differ += time[left] > time[right]
        ties += time[left] == time[right]
    pairs = agree + differ
    tau = (agree - differ) / math.sqrt(pairs * (pairs + ties)) if pairs else math.nan
    path = [p for m in row.moments for p in sorted(m.commit) if kept(m, p)]
    jumps = [abs(b - a) for a, b in itertools.pairwise(path)]
    beside = [
        p - 1 in m.known or p + 1 in m.known for m in row.moments for p in m.commit if kept(m, p)
    ]
    return (
        tau,
        differ / pairs if pairs else math.nan,
        sum(jumps) / len(jumps) if jumps else math.nan,
        sum(beside) / len(beside) if beside else math.nan,
        len(path),
    )


@pytest.mark.parametrize("visible", [False, True])
def test_equals_brute_force_on_random_traces(visible):
    for trace in sample():
        found = order.measure(basic(trace), visible=visible)
        for index, row in enumerate(plain(trace)):
            ours = [
                float(part[index])
                for part in (
                    found.tau,
                    found.inversions,
                    found.jump,
                    found.adjacent,
                    found.commits,
                )
            ]
            assert ours == pytest.approx(by_hand(row, visible), nan_ok=True)


def test_order_matches_hand_arithmetic():
    forth = order.measure(hand_trace([[1], [2], [3]], places=3))
    assert [float(v) for v in (forth.tau, forth.inversions, forth.jump)] == [1, 0, 1]
    assert forth.adjacent.tolist() == [1.0]
    back = order.measure(hand_trace([[3], [2], [1]], places=3))
    assert [float(v) for v in (back.tau, back.inversions, back.jump)] == [-1, 1, 1]
    assert back.adjacent.tolist() == pytest.approx([2 / 3])  # the first stands alone
    # 1 and 3 together, then 2: pairs 1-2 right, 2-3 inverted, 1-3 tied.
    mixed = order.measure(hand_trace([[1, 3], [2]], places=3))
    assert [float(v) for v in (mixed.tau, mixed.inversions, mixed.jump)] == [0, 0.5, 1.5]
    at_once = order.measure(hand_trace([[1, 2, 3]], places=3))
    assert math.isnan(at_once.tau)
    assert at_once.jump.tolist() == [1.0]


def test_only_lasting_commits_are_paired():
    """Position 1 is committed first, remasked, and committed again at the end."""
    trace = hand_trace([[1], [2], [3], [1]], places=3, remask=[[], [1], [], []])
    found = order.measure(trace)
    assert found.inversions.tolist() == pytest.approx([2 / 3])
    assert found.commits.tolist() == [4]
    assert order.measure(trace, visible=True).commits.tolist() == [3]


def test_overridden_commits_do_not_last():
    """Before the third step, position 1 is overwritten and position 4 is written."""
    trace = hand_trace([[1], [2], [3]], places=4)
    trace = replace(trace, overrides=torch.tensor([[2, 0, 1, 8], [2, 0, 4, 8]]))
    found = order.measure(trace)
    assert (found.tau.tolist(), found.commits.tolist()) == ([1.0], [3])
    assert order.measure(trace, visible=True).commits.tolist() == [2]
    assert found.adjacent.tolist() == [1.0]


def test_left_to_right_has_tau_one():
    traces = [t for t in sample() if t.about["options"]["strategy"] == "left_to_right()"]
    joined = order.Order.join([order.measure(trace) for trace in traces])
    apart = joined.inversions[~joined.inversions.isnan()]
    assert len(apart) > 3
    assert torch.equal(apart, torch.zeros_like(apart))
