"""Edit: rewriting committed tokens, and its bounds."""

from __future__ import annotations

import pytest
import torch

import wavefront
from wavefront.engine.batcher import Batcher, Request
from wavefront.engine.options import plan
from wavefront.engine.replay import difference, rerun
from wavefront.engine.session import model_properties
from wavefront.models.toy import toy
from wavefront.strategies.edit import Edit
from wavefront.testing import check
from wavefront.traces import trace_file

OPTIONS = {"max_new_tokens": 12, "eos": "keep"}
EAGER = "edit(tau=0.0, extra_steps=3, selector=threshold(tau=0.2))"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Edit(), Edit(tau=0.1, extra_steps=2)], ids=repr)
def test_edit_obeys_the_laws(strategy):
    check(strategy)


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_edit_that_never_settles_ends_after_the_extra_steps(family):
    """With tau=0 every different proposal is written, so tokens can alternate for ever."""
    model = toy(seed=3, family=family)
    found = wavefront.generate_ids(model, [[5, 6, 7, 8]], strategy=EAGER, trace=True, **OPTIONS)
    assert found.trace is not None
    assert found.trace.edit is not None
    assert bool(found.trace.edit.any())
    blocks = 3 if family == "sdar" else 1
    filled = sum(map(bool, found.order[0]))
    assert filled < found.forwards <= filled + 3 * blocks
    assert model.mask_id not in found.tokens[0]


def test_edit_changes_only_committed_tokens_of_the_current_block():
    model = toy(seed=3, family="sdar")
    found = wavefront.generate_ids(model, [[5, 6, 7]], strategy=EAGER, trace=True, **OPTIONS)
    trace = found.trace
    assert trace is not None
    assert trace.edit is not None
    canvases = [trace.first, *trace.replay()]
    for number, edit in enumerate(trace.edit):
        before, after = canvases[number], canvases[number + 1]
        assert not bool((edit & ~before.known).any())
        assert not bool((edit & (before.slot < 0)).any())
        assert not bool((edit & (before.tokens == after.tokens)).any())
        current = before.masked | edit | trace.commit[number]
        blocks = {place // 4 for place in (edit[0]).nonzero()[:, 0].tolist()}
        assert blocks <= {int(current[0].long().argmax()) // 4}


def test_steps_without_an_edit_end_the_answer():
    """tau=1 edits nothing, so a filled answer takes one extra step; without extra steps, none."""
    model = toy(seed=3)
    for extra, expected in ((5, 13), (0, 12)):
        strategy = f"edit(tau=1.0, extra_steps={extra}, selector=threshold(tau=1.0))"
        found = wavefront.generate_ids(model, [[5, 6, 7]], strategy=strategy, **OPTIONS)
        assert found.forwards == expected
    plain = wavefront.generate_ids(
        model, [[5, 6, 7]], strategy="standard(selector=threshold(tau=1.0))", **OPTIONS
    )
    assert plain.tokens == found.tokens


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_trace_file_keeps_edits_and_replays_them(family, tmp_path):
    model = toy(seed=3, family=family)
    found = wavefront.generate_ids(model, [[5, 6, 7, 8]], strategy=EAGER, trace=True, **OPTIONS)
    assert found.trace is not None
    path = trace_file.save(found.trace, tmp_path / "edits.npz")
    loaded = trace_file.load(path)
    *_, first = found.trace.replay()
    *_, again = loaded.replay()
    assert torch.equal(first.tokens, again.tokens)
    assert loaded.edit is not None
    assert torch.equal(loaded.edit, found.trace.edit)
    assert torch.equal(loaded.logp[loaded.edit], found.trace.logp[loaded.edit])
    joined = loaded.until(4).followed_by(found.trace.until(0))
    assert torch.equal(joined.edit, loaded.edit[:4])
    assert difference(loaded, rerun(model, loaded)) is None


def test_stream_reports_edits_as_written_tokens():
    model = toy(seed=3, family="sdar")
    found = wavefront.generate_ids(model, [[5, 6, 7, 8]], strategy=EAGER, **OPTIONS)
    resolved = plan({"strategy": EAGER, **OPTIONS}, model_properties(model))
    ids = [5, 6, 7, 8, *[model.mask_id] * 12]
    batcher = Batcher(model, rows=1, length=16)
    seat = batcher.admit(Request(ids, [False] * 4 + [True] * 12, resolved))
    board = list(ids)
    while batcher.busy:
        for update in batcher.step().updates:
            for commit in update.commits:
                board[commit.position] = commit.token
    assert seat.error is None
    assert board == seat.tokens == [*ids[:4], *found.tokens[0]]
