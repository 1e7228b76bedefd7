"""The reprs of results and of the parts of a decode are one short line."""

from __future__ import annotations

import html
import re

import pytest
import torch

import wavefront
from wavefront.core.state import start
from wavefront.core.tree import map_tree
from wavefront.engine.session import begin
from wavefront.models.toy import toy

LONGEST = 200  # characters


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def test_every_part_of_a_decode_has_a_short_repr(lm: wavefront.LM) -> None:
    options = {"max_new_tokens": 8, "steps": 4, "strategy": "block(size=8)"}
    trace = lm.generate("abc", trace="full", **options).trace
    shown = "Trace(4 steps, 1 row of 11 positions, 4 forward passes, block(size=8), full)"
    assert repr(trace) == shown
    model = toy()
    session = begin(model, [[5, 6], [7]], {"max_new_tokens": 4, "eos": "keep"})
    assert repr(session.canvas) == "Canvas(2 rows of 6 positions, 8 masked, 3 known)"
    config = session.plan.config
    state = start(session.canvas, config, [4, 4], seeds=[0, 0])
    assert repr(state) == "DecodeState(2 rows of 6 positions, 8 masked, 0 done)"
    assert "?" in repr(map_tree(state, lambda leaf: leaf.to("meta")))
    step = next(session)
    assert repr(step).startswith("Step(0: 2 committed, 0 rows done, 1 forward pass, Canvas(")
    assert repr(step._replace(done=step.done | torch.tensor([True, False]))).startswith(
        "Step(0: 2 committed, 1 row done"
    )
    assert repr(step.view.progress).startswith("RowProgress(length=int64[2], steps=int64[2]")
    found = wavefront.generate_ids(model, [[5, 6], [7]], max_new_tokens=4)
    assert repr(found) == "GeneratedIds(2 answers of 4 tokens, 4 forward passes)"
    batcher = wavefront.Batcher(lm.model, rows=2, length=16)
    request = lm.request("abc", max_new_tokens=4, strategy="standard")
    active = batcher.admit(request)
    [update] = batcher.step().updates
    assert repr(update) == "StepUpdate(row 0: 1 commit, 0 remasked, front of 0)"
    stream = lm.stream("abc", max_new_tokens=4)
    assert repr(stream).startswith("Stream(DecodeSession(Canvas(1 row of ")
    assert re.fullmatch(r"Tokenizer\(\d+ tokens, no chat template\)", repr(lm.tokenizer))
    parts = (
        lm,
        lm.tokenizer,
        stream,
        batcher,
        request,
        active,
        session,
        step.view,
        step.decision,
        step.view.stats,
    )
    for part in (trace, session.canvas, state, step, found, update, *parts):
        assert len(repr(part)) <= 2 * LONGEST
        assert "tensor(" not in repr(part)
        assert "\n" not in repr(part)


def test_trace_shows_the_player_in_a_notebook(lm: wavefront.LM) -> None:
    made = lm.generate(["abc", "d"], max_new_tokens=6, trace=True)[0].trace
    assert made is not None
    frame = made._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"]*" sandbox="allow-scripts" style="[^"]*".*', frame)
    page = html.unescape(frame.partition('srcdoc="')[2].partition('"')[0])
    assert page.lower().startswith("<!doctype html>")
    assert 'id="player"' in page
    assert page.count("row 0") == page.count("row 1") == 1
    empty = made.until(0)
    assert "<iframe" in empty._repr_html_()
    assert len(torch.cat([empty.step.flatten()])) == 0
