"""Text and events of a decode, and forks that start from them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from helpers.workers import MIXED, answers, make_job, make_worker, run_job, run_to_end
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

import wavefront
from wavefront.analysis.measures import mhco
from wavefront.server.decode_worker import DecodeWorker
from wavefront.server.step_events import _hold_back
from wavefront.server.worker_messages import (
    Fork,
    Job,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    RequestProgress,
)
from wavefront.text.tokenizer import Tokenizer


def test_beginning_of_a_stop_string_is_held_back() -> None:
    assert _hold_back("one two E", ("END", "x")) == "one two "
    assert _hold_back("one two EN", ("END",)) == "one two "
    assert _hold_back("one two EX", ("END",)) == "one two EX"


def events_of(worker: DecodeWorker, job: Job) -> list[dict[str, Any]]:
    (taken,) = worker.handle(job)
    assert isinstance(taken, RequestAccepted), taken
    messages = run_to_end(worker)
    events = [
        taken.start_event,
        *(one.event for one in messages if isinstance(one, RequestProgress | RequestFinished)),
    ]
    return [event for event in events if event is not None]


@pytest.mark.parametrize("strategy", ["wavefront(size=4)", "block(size=4)", "tbd(size=8, drop=2)"])
def test_events_describe_the_whole_decode(lm: Any, strategy: str) -> None:
    options = {"strategy": strategy, "max_new_tokens": 16, "eos": "keep"}
    job = make_job("a", options=options, events=True, measure=True)
    first, *steps = events_of(make_worker(lm), job)
    assert first["places"] == 16
    board: dict[int, int] = {}
    for step in steps:
        assert {position for position, _ in step["sure"]} == set(range(16)) - set(board)
        for position, token, _, p in step["commits"]:
            board[position] = token
            assert 0 <= p <= 1
        for position in step["back"]:
            del board[position]
    full = lm.generate("Once", raw=True, trace="full", **options)
    assert [board[position] for position in range(len(full.tokens))] == full.tokens
    assert board.keys() == set(range(16))
    measured = mhco.measure(full.trace)
    streamed = steps[-1]["end"]["mhco"]
    assert streamed["candidates"] == pytest.approx(measured.candidates.mean(), abs=1e-4)
    assert streamed["extent"] == pytest.approx(measured.extent.mean(), abs=1e-4)
    assert steps[-1]["end"]["text"] == full.text


def test_measure_does_not_change_the_answer(lm: Any) -> None:
    for options in MIXED[:3]:
        texts = {
            answers([*worker.handle(make_job("a", options=options, **more)), *run_to_end(worker)])[
                "a"
            ]
            for more in ({}, {"events": True}, {"events": True, "measure": True})
            for worker in [make_worker(lm)]
        }
        assert len(texts) == 1


def test_measure_of_a_large_decode_is_rejected(lm: Any) -> None:
    worker = make_worker(lm, length=2000)
    options = {"max_new_tokens": 1000, "steps": 1000}
    (failure,) = worker.handle(make_job("a", options=options, measure=True, events=True))
    assert isinstance(failure, RequestFailed)
    assert "measure" in failure.message


def test_fork_continues_from_the_canvas_of_that_step(lm: Any) -> None:
    state = run_job(lm, make_job("a", events=True, options={"eos": "keep"}))
    alone = lm.generate("Once", raw=True, max_new_tokens=16)
    canvas = state.canvas_at(6)
    assert sum(canvas.holes) == 10
    worker = make_worker(lm)
    options = {"steps": 10, "eos": "keep", "strategy": "standard"}
    job = Job(id="f", fork=Fork(canvas, {3: "zz"}), options=options, events=True)
    first, *steps = events_of(worker, job)
    given = {position: token for position, token, *_ in first["given"]}
    z = lm.tokenizer.encode("z")[0]
    assert given[3] == given[4] == z
    kept = {position: token for position, token in given.items() if position not in (3, 4)}
    assert all(alone.tokens[position] == token for position, token in kept.items())
    final = steps[-1]["end"]
    assert "zz" in final["text"]
    filled = [position for step in steps for position, *_ in step["commits"]]
    assert sorted([*filled, *given]) == list(range(16))
    # With the same strategy, which keeps no state, the fork gives the same answer.
    options = {"max_new_tokens": 16, "strategy": "standard", "eos": "keep"}
    plain = run_job(lm, make_job("a", events=True, options=options))
    same = Job(
        id="g", fork=Fork(plain.canvas_at(6), {}), options=options | {"steps": 10}, events=True
    )
    same = replace(same, options={k: v for k, v in same.options.items() if k != "max_new_tokens"})
    _, *steps = events_of(worker, same)
    assert steps[-1]["end"]["text"] == lm.generate("Once", raw=True, **options).text


@pytest.mark.parametrize(
    "put", [{99: "a"}, {15: "ab"}, {0: ""}, {0: 99999}, {0: 257}, {4: "ab", 5: "c"}]
)
def test_invalid_fork_is_rejected(lm: Any, put: Any) -> None:
    state = run_job(lm, make_job("a", events=True))
    job = Job(id="f", fork=Fork(state.canvas_at(3), put), options={"steps": 4}, events=True)
    (failure,) = make_worker(lm).handle(job)
    assert isinstance(failure, RequestFailed)
    assert failure.status == 400


def test_fork_that_contradicts_the_constraint_is_rejected(lm: Any) -> None:
    options = {"regex": "[ab]{3,9}", "strategy": "left_to_right"}
    state = run_job(lm, make_job("a", events=True, options=options))
    for put, new, param in (({0: "z"}, {}, "put"), ({}, {"regex": "c+"}, "regex")):
        job = Job(id="f", fork=Fork(state.canvas_at(3), put), options=options | new, events=True)
        (failure,) = make_worker(lm).handle(job)
        assert isinstance(failure, RequestFailed)
        assert (failure.status, failure.param) == (400, param)
        assert "already written contradict the pattern" in failure.message
    job = Job(id="f", fork=Fork(state.canvas_at(3), {0: "b"}), options=options, events=True)
    _, *steps = events_of(make_worker(lm), job)
    assert re.fullmatch("b[ab]{2,8}", steps[-1]["end"]["text"])


def test_constrained_fork_reads_its_text_as_the_first_decode_did(lm: Any) -> None:
    """Llama 2's tokenizer drops the first space of a text, so its first token may have one."""
    pieces = ["</s>", "▁yes", "yes", "▁no", "no"]
    backend = Backend(models.BPE({piece: id for id, piece in enumerate(pieces)}, []))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(pieces[:1])
    spaced = wavefront.LM(lm.model, Tokenizer(backend, {"eos_token": "</s>"}, {}))
    options = {"choices": ["yes no"], "strategy": "left_to_right", "logit_bias": {"1": 50}}
    state = run_job(spaced, make_job("a", prompt=[2], events=True, options=options))
    assert state.text == "yes no"
    for at in (0, 1):
        fork = Fork(state.canvas_at(at), {})
        assert run_job(spaced, Job(id="f", fork=fork, options=options)).text == "yes no"
