"""Regret against a loop that asks the published model about one token at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.decodes import basic, plain

from wavefront import generate_ids
from wavefront.analysis.measures import regret
from wavefront.core.canvas import infill
from wavefront.core.errors import OptionError
from wavefront.core.spec import resolve
from wavefront.core.state import Config
from wavefront.engine.batcher import decode
from wavefront.models.toy import toy
from wavefront.traces.trace import Recorder

READINGS = ("direct", "leave-one-out")
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def decoded(model, strategy, steps=7, places=7, fixed=False):
    done = generate_ids(
        model, PROMPTS, strategy=strategy, steps=steps, max_new_tokens=places, trace=True,
        fixed_budget=fixed,
    )  # fmt: skip
    return done.trace


def by_hand(trace, model, reading):
    """Return {(row, position, t, lag): (probability, initial)}, one forward pass per entry."""
    found = {}
    for number, row in enumerate(plain(trace)):
        real = trace.first.real[number]
        offset = int(real.long().argmax())
        text = dict(enumerate(trace.first.tokens[number].tolist()))
        committed = {}
        for moment in row.moments:
            if moment.counts:
                for place, (when, first) in committed.items():
                    board = dict(text)
                    if reading == "leave-one-out":
                        board[place] = model.mask_id
                    ids = [board[p] for p in sorted(board) if real[p]]
                    at = place - offset
                    if model.family == "dream":
                        at = max(at - 1, 0)
                    p = model.raw_logits([ids])[0, at].softmax(-1)[text[place]]
                    found[number, place, moment.t, moment.t - when] = (float(p), first)
            for place in moment.commit:
                text[place] = moment.token[place]
                committed[place] = (moment.t, moment.confidence[place])
            for place in moment.remask:
                text[place] = model.mask_id
                committed.pop(place, None)
    return found


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    ("family", "strategy", "steps"),
    [
        ("llada", "wavefront(size=3, radius=1)", 7),
        ("llada", "rcr(size=4)", 7),
        ("llada", "block(size=3)", 10),
        ("dream", "standard", 4),
    ],
)
def test_equals_brute_force(family, strategy, steps, reading):
    model = toy(seed=5, family=family, dtype="float64", layers=1)
    trace = decoded(model, strategy, steps)
    found = regret.measure(trace, model, reading=reading, rows_at_once=5)
    expected = by_hand(trace, model, reading)
    keys = list(
        zip(*(getattr(found, n).tolist() for n in ("row", "place", "t", "lag")), strict=True)
    )
    assert len(keys) == len(expected) > 20
    for key, p, first in zip(keys, found.probability, found.initial, strict=True):
        assert (float(p), float(first)) == pytest.approx(expected[key], abs=1e-6)
    assert found.reading == reading
    assert found.mean == pytest.approx(
        sum(p for p, _ in expected.values()) / len(expected), abs=1e-6
    )
    gone = sum(first - p for p, first in expected.values()) / len(expected)
    assert found.drop == pytest.approx(gone, abs=1e-6)
    for curve, axis in ((found.by_lag(), 3), (found.by_step(), 2)):
        groups = {}
        for key, (p, _) in expected.items():
            groups.setdefault(key[axis], []).append(p)
        assert curve.x.tolist() == sorted(groups)
        assert curve.count.tolist() == [len(groups[x]) for x in sorted(groups)]
        means = [sum(groups[x]) / len(groups[x]) for x in sorted(groups)]
        assert curve.mean.tolist() == pytest.approx(means, abs=1e-6)


def test_readings_differ():
    model = toy(seed=5)
    trace = decoded(model, "wavefront(size=3, radius=1)")
    direct, left_out = (regret.measure(trace, model, reading=one) for one in READINGS)
    assert torch.equal(direct.lag, left_out.lag)
    assert not torch.allclose(direct.probability, left_out.probability, atol=1e-3)


def test_leave_one_out_after_one_step_equals_the_commit_probability():
    """With one token per step, masking it again gives the canvas it was chosen on."""
    model = toy(seed=5, dtype="float64")
    found = regret.measure(decoded(model, "standard"), model, reading="leave-one-out")
    soon = found.lag == 1
    assert soon.sum() == 2 * 6  # the last token has no later step
    assert torch.allclose(found.probability[soon], found.initial[soon], atol=1e-6)


def test_chunking_and_every_do_not_change_probabilities():
    model = toy(seed=5, dtype="float64")
    trace = decoded(model, "wavefront(size=3, radius=1)")
    for reading in READINGS:
        whole = regret.measure(trace, model, reading=reading)
        parts = regret.measure(trace, model, reading=reading, rows_at_once=1)
        assert torch.allclose(whole.probability, parts.probability, atol=1e-6)
        third = regret.measure(trace, model, reading=reading, every=3)
        kept = (whole.t - 1) % 3 == 0
        assert torch.equal(third.t, whole.t[kept])
        assert torch.allclose(third.probability, whole.probability[kept], atol=1e-6)


def test_infill_and_rows_that_finish_early():
    model = toy(seed=5, dtype="float64")
    holes = [[i in (0, 2, 3, 7) for i in range(9)], [i in (4, 5) for i in range(7)]]
    canvas = infill([[1] * 9, [2] * 7], holes, mask_id=model.mask_id, pad_id=model.pad_id)
    config = Config(strategy=resolve("standard", "strategies"), fixed_budget=True)
    recorder = Recorder(canvas, config, model.mask_id)
    for _ in recorder.watch(decode(model, canvas, config, steps=[4, 2], seeds=[0, 0])):
        pass
    trace = recorder.trace()
    for reading in READINGS:
        found = regret.measure(trace, model, reading=reading)
        expected = by_hand(trace, model, reading)
        assert len(found.t) == len(expected) == 1 + 2 + 3 + 1
        assert sorted(found.probability.tolist()) == pytest.approx(
            sorted(p for p, _ in expected.values()), abs=1e-6
        )


def test_overridden_tokens_are_not_commits():
    model = toy(seed=5, dtype="float64")
    trace = decoded(model, "left_to_right").row(1)
    place = int(trace.commit[0, 0].nonzero())
    forked = replace(trace, overrides=torch.tensor([[3, 0, place, 11]]))
    for reading in READINGS:
        found = regret.measure(forked, model, reading=reading)
        whole = regret.measure(trace, model, reading=reading)
        mine = found.place == place
        assert found.t[mine].tolist() == [2, 3]
        assert whole.t[whole.place == place].tolist() == [2, 3, 4, 5, 6, 7]
        # Later answers are those of the canvas with the other token in it.
        late = found.t > 3
        assert not torch.allclose(
            found.probability[late], whole.probability[(whole.t > 3) & (whole.place != place)]
        )


def test_join_and_invalid_input():
    model = toy(seed=5)
    trace = decoded(model, "standard", 3)
    one = regret.measure(basic(trace), model)
    both = regret.Regret.join([one, one])
    assert both.mean == pytest.approx(one.mean)
    assert both.row.max() == 3
    with pytest.raises(OptionError, match="leave-one-out"):
        regret.measure(trace, model, reading="leave-one-in")
    with pytest.raises(OptionError, match="every"):
        regret.measure(trace, model, every=0)
    at_once = regret.measure(decoded(model, "standard", 1), model)
    assert len(at_once.t) == 0  # nothing came later
    assert at_once.by_lag().x.tolist() == []
