"""Entropy by distance and the theorem's containment, against loops over sets."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.decodes import basic, hand_trace, plain, sample

from wavefront.analysis.measures import gradient
from wavefront.core.errors import OptionError, TraceError


def spearman(x, y):
    """Return Pearson's correlation of mean ranks, in plain Python."""

    def ranks(values):
        return [
            sum(other < one for other in values) + (sum(other == one for other in values) + 1) / 2
            for one in values
        ]

    a, b = ranks(x), ranks(y)
    middle = (len(x) + 1) / 2
    top = sum((p - middle) * (q - middle) for p, q in zip(a, b, strict=True))
    down = sum((p - middle) ** 2 for p in a) * sum((q - middle) ** 2 for q in b)
    return top / math.sqrt(down) if down else math.nan


def by_hand(trace, radius, block, k):
    """Return entropies by distance, and one line per active step in order."""
    by_distance, lines = {}, []
    rows = plain(trace)
    for index in range(len(trace)):
        for number, row in enumerate(rows):
            moment = row.moments[index]
            if not moment.counts:
                continue
            away = {
                place: min(abs(place - one) for one in moment.known)
                for place in moment.masked
                if moment.known
            }
            for place, far in away.items():
                by_distance.setdefault(far, []).append(moment.entropy[place])
            rho = spearman([*away.values()], [moment.entropy[p] for p in away])
            best = sorted(moment.masked, key=lambda p, m=moment: (m.entropy[p], p))
            chosen = set(best[: len(moment.commit) if k is None else k])
            index_of = {place: row.slots[place] // block for place in moment.masked}
            first = min(index_of.values(), default=0)
            scopes = [
                {place for place, far in away.items() if far <= radius},
                {place for place, b in index_of.items() if b == first},
                moment.scope,
            ]
            lines.append(
                {
                    "row": number,
                    "t": moment.t,
                    "rho": rho,
                    "k": len(chosen),
                    "masked": len(moment.masked),
                    "inside": [len(chosen & scope) for scope in scopes],
                    "sizes": [len(scope) for scope in scopes],
                }
            )
    return by_distance, lines


@pytest.mark.parametrize(("radius", "block", "k"), [(2, 3, None), (1, 8, 3)])
def test_equals_brute_force_on_random_traces(radius, block, k):
    for trace in sample():
        found = gradient.measure(trace, radius=radius, block=block, k=k)
        by_distance, lines = by_hand(trace, radius, block, k)
        curve = found.by_distance
        assert curve.x.tolist() == sorted(by_distance)
        for far, mean, count in zip(curve.x, curve.mean, curve.count, strict=True):
            values = by_distance[int(far)]
            assert int(count) == len(values)
            assert float(mean) == pytest.approx(sum(values) / len(values))
        for name in ("row", "t", "k", "masked"):
            assert getattr(found, name).tolist() == [line[name] for line in lines]
        assert found.rho.tolist() == pytest.approx([line["rho"] for line in lines], nan_ok=True)
        assert found.inside.T.tolist() == [line["inside"] for line in lines]
        assert found.sizes.T.tolist() == [line["sizes"] for line in lines]
        asked = [line for line in lines if line["k"]]
        for index, one in enumerate(found.containment.values()):
            held = [line["inside"][index] / line["k"] for line in asked]
            room = [line["sizes"][index] / line["masked"] for line in asked]
            assert one.steps == len(asked)
            assert one.whole == pytest.approx(sum(h == 1 for h in held) / len(held))
            assert one.part == pytest.approx(sum(held) / len(held))
            assert one.chance == pytest.approx(sum(room) / len(room))


def test_gradient_matches_hand_arithmetic():
    """A prompt, then four positions. Entropy grows to the right except for the last."""
    rising = {1: 0.125, 2: 0.25, 3: 0.5, 4: 0.375}
    trace = hand_trace(
        [[1], [4]], places=4, scope=[[1, 2], [4]], entropy=[rising, rising], strategy="standard()"
    )
    found = gradient.measure(trace, radius=1, block=2)
    assert found.by_distance.x.tolist() == [1, 2, 3, 4]
    # Step 2 knows 0 and 1: place 2 is then at distance 1, 3 at 2, 4 at 3.
    assert found.by_distance.mean.tolist() == [0.1875, 0.375, 0.4375, 0.375]
    assert found.rho.tolist() == pytest.approx([0.8, 0.5])
    assert found.correlation == pytest.approx(0.65)
    assert found.of_means == pytest.approx(2 / 10**0.5)  # ranks 1, 2.5, 4, 2.5
    found = gradient.measure(trace, radius=1, block=2, k=2).containment
    # Step 1: the two lowest are 1 and 2; within 1 of the known is 1, block one is {1, 2}.
    # Step 2: they are 2 and 4; within 1 is 2, the unfinished block is {2}, the scope {4}.
    assert found["wave"] == (0.0, 0.5, pytest.approx((1 / 4 + 1 / 3) / 2), 1.0, 2)
    assert found["block"] == (0.5, 0.75, pytest.approx((2 / 4 + 1 / 3) / 2), 1.5, 2)
    assert found["own"] == (0.5, 0.75, pytest.approx((2 / 4 + 1 / 3) / 2), 1.5, 2)


def test_scope_of_everything_contains_the_lowest_entropies():
    traces = [t for t in sample() if t.about["options"]["strategy"] == "standard()"]
    found = gradient.Gradient.join([gradient.measure(trace, radius=50) for trace in traces])
    assert found.containment["own"].whole == found.containment["own"].chance == 1.0
    assert found.containment["wave"].whole < 1.0  # where nothing is known there is no distance


def test_joined_batches_equal_one_batch():
    traces = sample()[4:6]
    joined = gradient.Gradient.join([gradient.measure(trace) for trace in traces])
    found = {}
    for trace in traces:
        for far, values in by_hand(trace, 2, 8, None)[0].items():
            found.setdefault(far, []).extend(values)
    curve = joined.by_distance
    assert curve.count.tolist() == [len(found[far]) for far in sorted(found)]
    deviations = [torch.tensor(found[far]).double().std(correction=0) for far in sorted(found)]
    assert curve.std.tolist() == pytest.approx([float(d) for d in deviations], abs=1e-6)
    assert joined.row.max() == sum(t.first.tokens.shape[0] for t in traces) - 1


def test_invalid_input_raises():
    trace = sample()[0]
    with pytest.raises(TraceError, match="trace='full'"):
        gradient.measure(basic(trace))
    with pytest.raises(OptionError, match="k must"):
        gradient.measure(trace, k=0)
    empty = gradient.measure(hand_trace([], places=2))
    assert math.isnan(empty.correlation)
    assert empty.by_distance.x.tolist() == []


def test_rows_measured_at_once_equal_each_row_alone():
    for trace in sample():
        parts = gradient.measure_rows(trace, radius=1, block=3)
        for row, part in enumerate(parts):
            alone = gradient.measure(trace.row(row), radius=1, block=3)
            for name in ("row", "t", "k", "masked", "inside", "sizes"):
                assert torch.equal(getattr(part, name), getattr(alone, name))
            assert torch.equal(part.rho.nan_to_num(), alone.rho.nan_to_num())
            for one, other in zip(part.entropies, alone.entropies, strict=True):
                assert one.tolist() == pytest.approx(other.tolist())
            assert part.rows == 1
        joined = gradient.Gradient.join(parts)
        if joined.entropies.many.numel():
            many, total = joined.entropies[:2]
            found = float(gradient.correlation_of_means(many, total))
            assert found == pytest.approx(joined.of_means, nan_ok=True)
