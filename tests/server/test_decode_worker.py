"""The decode worker: answers, rejected requests, cancellation and failures."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from helpers.captured import Static
from helpers.workers import MIXED, answers, make_job, make_worker, run_to_end

import wavefront
from wavefront.engine.cuda_graphs import run_eagerly
from wavefront.server.decode_worker import DecodeWorker, fingerprint, run
from wavefront.server.request_builder import build_request
from wavefront.server.settings import Limits, Settings, Source
from wavefront.server.worker_messages import (
    Accepted,
    CancelJob,
    CheckJob,
    Finished,
    Heartbeat,
    Job,
    Progress,
    RequestFailed,
    Started,
)


def test_streamed_text_only_grows(lm: Any) -> None:
    for number, options in enumerate(MIXED):
        worker = make_worker(lm)
        list(worker.handle(make_job("a", options=options)))
        messages, text = run_to_end(worker), ""
        alone = lm.generate("Once", raw=True, **options).text
        pieces = [one.text for one in messages if isinstance(one, Progress | Finished)]
        for piece in pieces:
            text += piece
            assert alone.startswith(text), number
        assert text == alone
        assert "\N{REPLACEMENT CHARACTER}" not in pieces[0][-1:] or len(pieces) == 1


@pytest.mark.parametrize("fit", [True, False])
def test_batched_requests_equal_lone_decodes(lm: Any, fit: bool) -> None:
    worker = make_worker(lm, fit=fit)
    for number, options in enumerate(MIXED):
        list(worker.handle(make_job(str(number), options=options, prompt="Once " * (number + 1))))
    texts = answers(run_to_end(worker))
    for number, options in enumerate(MIXED):
        prompt = "Once " * (number + 1)
        assert texts[str(number)] == lm.generate(prompt, raw=True, **options).text


@pytest.mark.slow
def test_mixed_requests_on_the_embedded_model() -> None:
    lm = wavefront.load("ripple")
    worker = make_worker(lm, rows=3, length=256)
    questions = ("I have two figs and a pear. How many fruits?", "What is 17 + 25?")
    kinds: tuple[dict[str, Any], ...] = (
        {"strategy": "wavefront(size=8, radius=2)", "max_new_tokens": 24},
        {"strategy": "block(size=8)", "max_new_tokens": 32, "steps": 16, "eos": "stop"},
        {"temperature": 0.7, "seed": 11, "max_new_tokens": 16},
    )
    cases = {f"{q} {k}": (questions[q], kinds[k]) for q in range(2) for k in range(3)}
    for id, (question, options) in cases.items():
        messages = [{"role": "user", "content": question}]
        (taken,) = worker.handle(Job(id=id, messages=messages, options=options))
        assert isinstance(taken, Accepted)
    texts = answers(run_to_end(worker))
    for id, (question, options) in cases.items():
        assert texts[id] == lm.generate(question, **options).text


def test_usage_counts_visible_tokens(lm: Any) -> None:
    worker = make_worker(lm)
    (taken,) = worker.handle(make_job("a"))
    assert taken.prompt_tokens == 4
    (ended,) = (one for one in run_to_end(worker) if isinstance(one, Finished))
    alone = lm.generate("Once", raw=True, max_new_tokens=16)
    counts = (ended.completion_tokens, ended.finish_reason, ended.forwards)
    assert counts == (len(alone.tokens), alone.finish_reason, alone.forwards)


def test_stop_string_cuts_the_text_and_frees_the_row(lm: Any) -> None:
    alone = lm.generate("Once", raw=True, max_new_tokens=40).text
    stop = alone[4:6]
    worker = make_worker(lm)
    list(worker.handle(make_job("a", options={"max_new_tokens": 40}, stop=(stop, "never"))))
    messages = run_to_end(worker)
    ended = messages[-2]
    assert answers(messages)["a"] == alone[: alone.index(stop)]
    assert ended.finish_reason == "stop"
    assert ended.completion_tokens <= alone.index(stop) + 1
    assert ended.forwards < 40
    assert not worker.active


def test_infilling_streams_the_surrounding_text(lm: Any) -> None:
    text = "Once <mask:6> upon <mask:4> end"
    worker = make_worker(lm)
    list(worker.handle(make_job("a", prompt=text, infill=True)))
    messages = run_to_end(worker)
    assert answers(messages)["a"] == lm.infill(text).text
    assert next(one.text for one in messages if isinstance(one, Progress)).startswith("Once")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"options": {"strategy": "antigravity.Anything()"}}, "strategy"),
        ({"options": {"strategy": "block(size=4, selector=antigravity.Take())"}}, "strategy"),
        ({"options": {"strategy": "nonsense"}}, "strategy"),
        ({"options": {"strategy": "block(size=0)"}}, "strategy"),
        ({"options": {"max_new_tokens": 4000}}, None),
        ({"options": {"steps": 100_000}}, "steps"),
        ({"options": {"eos": "never"}}, "eos"),
        ({"options": {"cfg_scale": -1.0}}, "cfg_scale"),
        ({"options": {"cache": "antigravity.Anything()"}}, "cache"),
        ({"options": {"speculate": 65}}, "speculate"),
        ({"options": {"fixed_budget": "yes"}}, "fixed_budget"),
        ({"options": {"stop_ids": [9999]}}, "stop_ids"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 500}, "prompt"),
        ({"prompt": "half \ud800"}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": "no hole", "infill": True}, "prompt"),
        ({"prompt": [1], "infill": True}, "prompt"),
        ({"messages": [{"role": "user", "content": "x"}], "prompt": None}, "messages"),
    ],
)
def test_invalid_request_is_rejected_and_imports_nothing(
    lm: Any, more: Any, param: str | None
) -> None:
    sys.modules.pop("antigravity", None)
    worker = make_worker(lm)
    (failure,) = worker.handle(make_job("a", **more))
    assert isinstance(failure, RequestFailed)
    assert failure.status == 400
    assert param is None or failure.param == param
    assert "antigravity" not in sys.modules
    assert not worker.busy


def test_default_length_fits_the_limits(lm: Any) -> None:
    prepared = build_request(lm, Job(id="a", prompt="x" * 100), Limits(), length=128)
    assert prepared.request.plan.length == 28
    prepared = build_request(
        lm, Job(id="a", prompt="x"), Limits(new_tokens=48, steps=24), length=128
    )
    assert prepared.request.plan.length == 24


def test_cancelled_request_frees_its_row_before_the_next_step(lm: Any) -> None:
    worker = make_worker(lm, rows=1)
    list(worker.handle(make_job("a")))
    list(worker.handle(make_job("b")))
    messages = list(worker.step())
    assert [one.id for one in messages if isinstance(one, Started)] == ["a"]
    list(worker.handle(CancelJob("a")))
    messages = list(worker.step())
    assert [one.id for one in messages if isinstance(one, Started)] == ["b"]
    list(worker.handle(CancelJob("b")))
    list(worker.handle(CancelJob("nobody")))
    assert not worker.busy
    (beat,) = worker.step()
    assert beat == Heartbeat(0, 0, 0, beat.seconds)


class FailingModel:
    """A model that raises an error for batches of more than `rows` rows."""

    def __init__(self, model: Any, rows: int, error: Exception) -> None:
        self._model, self._rows, self._error = model, rows, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def hidden(self, tokens: Any, *rest: Any, **more: Any) -> Any:
        if tokens.shape[0] > self._rows:
            raise self._error
        return self._model.hidden(tokens, *rest, **more)


def test_out_of_memory_fails_only_its_own_requests(lm: Any) -> None:
    narrow = wavefront.LM(FailingModel(lm.model, 1, torch.OutOfMemoryError("no")), lm.tokenizer)
    worker = make_worker(narrow)
    for id in "abcd":
        list(worker.handle(make_job(id)))
    messages = run_to_end(worker)
    failed = {one.id: one for one in messages if isinstance(one, RequestFailed)}
    assert failed.keys() == {"c", "d"}
    assert {(one.status, one.code) for one in failed.values()} == {(503, "out_of_memory")}
    assert {one.id for one in messages if isinstance(one, Finished)} == {"a", "b"}
    assert worker.pools.rows == 3
    list(worker.handle(make_job("e")))
    assert [one.id for one in run_to_end(worker) if isinstance(one, Finished)] == ["e"]


def test_three_consecutive_failures_end_the_process(lm: Any) -> None:
    broken = wavefront.LM(FailingModel(lm.model, 0, RuntimeError("device lost")), lm.tokenizer)
    worker = make_worker(broken, rows=1)
    for attempt in range(3):
        list(worker.handle(make_job(str(attempt))))
        messages = []
        if attempt == 2:
            with pytest.raises(RuntimeError, match="device lost"):
                messages += worker.step()
        else:
            messages += worker.step()
            (failure,) = (one for one in messages if isinstance(one, RequestFailed))
            assert (failure.status, failure.code) == (500, "decode_failed")


def test_nan_fails_the_request(lm: Any) -> None:
    class NaNModel(FailingModel):
        def hidden(self, tokens: Any, *rest: Any, **more: Any) -> Any:
            return self._model.hidden(tokens, *rest, **more) * float("nan")

    broken = wavefront.LM(NaNModel(lm.model, 9, ValueError()), lm.tokenizer)
    worker = make_worker(broken)
    list(worker.handle(make_job("a")))
    (failure,) = (one for one in run_to_end(worker) if isinstance(one, RequestFailed))
    assert failure.code == "numerical_error"


def test_worker_decodes_with_a_cache(lm: Any) -> None:
    limits = Limits(rows=3, length=128)
    worker = DecodeWorker(lm, limits, fit=True, cache="wave(refresh=4)")
    for id in "abcd":
        list(worker.handle(make_job(id)))
    messages = run_to_end(worker)
    assert {one.id for one in messages if isinstance(one, Finished)} == set("abcd")
    for number, options in enumerate(SERVED_OPTIONS):
        list(worker.handle(make_job(str(number), options=options)))
    finished = {one.id for one in run_to_end(worker) if isinstance(one, Finished)}
    assert finished == set(map(str, range(len(SERVED_OPTIONS))))


SERVED_OPTIONS: tuple[dict[str, Any], ...] = (
    {"cache": "wave(refresh=9)"},
    {"cache": "none"},
    {"cfg_scale": 0.8},
    {"cfg_scale": 0.8, "cache": "dual(refresh=4)"},
    {"speculate": 3},
    {"fixed_budget": True},
    {"strategy": "tide(cascade_rounds=2, horizon=8, selector=threshold(tau=0.3))"},
)


@pytest.mark.parametrize("options", SERVED_OPTIONS)
@pytest.mark.parametrize("fit", [True, False])
def test_every_option_gives_the_answer_of_a_lone_decode(lm: Any, options: Any, fit: bool) -> None:
    """Among requests of other kinds, in batches of either shape."""
    worker = DecodeWorker(lm, Limits(rows=4, length=128), fit=fit)
    jobs = [make_job("mine", options=options)]
    jobs += [make_job(str(n), options=other) for n, other in enumerate(SERVED_OPTIONS)]
    for job in jobs:
        list(worker.handle(job))
    found = answers(run_to_end(worker))
    assert len(found) == len(jobs)
    alone = lm.generate(jobs[0].prompt, raw=jobs[0].raw, **jobs[0].options)
    assert found["mine"] == alone.text


@pytest.mark.parametrize("cache", [None, "wave(refresh=4)"])
def test_steps_with_static_buffers_give_the_same_answers(
    lm: Any, cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Static, "KEPT", 5)  # some are dropped and captured again
    limits, texts, static = Limits(rows=3, length=128), [], []
    for calls in (lambda: run_eagerly, lambda: static.append(Static()) or static[-1]):
        worker = DecodeWorker(lm, limits, fit=False, cache=cache, make_call=calls)
        worker.warm_up()
        assert not worker.busy
        for number, options in enumerate(MIXED):
            list(worker.handle(make_job(str(number), options=options)))
        texts.append(answers(run_to_end(worker)))
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(MIXED)
    assert len(static) == 1
    assert len(static[0]._graphs) == 5


def test_capture_without_a_gpu_is_reported_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Any] = []

    class Pipe:
        def send(self, batch: list[Any]) -> None:
            messages.extend(batch)

    monkeypatch.setattr("signal.signal", lambda *_: None)  # keep the handlers of pytest
    run(Settings(source=Source(model="toy", device="cpu", cuda_graphs=True)), Pipe())
    assert "cuda_graphs needs a CUDA device" in messages[0].message


def test_fingerprint_depends_on_the_weights(lm: Any) -> None:
    assert fingerprint(lm) == fingerprint(wavefront.load("toy"))
    other = wavefront.LM(wavefront.models.toy.toy(seed=5, vocab_size=258), lm.tokenizer)
    assert fingerprint(lm) != fingerprint(other)


def test_checked_job_takes_no_row() -> None:
    lm = wavefront.load("toy")
    worker = DecodeWorker(lm, Limits(rows=2, length=64), fit=True)
    job = Job(id="a", prompt="Once", options={"max_new_tokens": 8}, events=True)
    (accepted,) = worker.handle(CheckJob(job))
    assert not worker.busy
    assert [accepted] == list(worker.handle(job))
    (wrong,) = worker.handle(CheckJob(Job(id="b", prompt="Once", options={"strategy": "nothing"})))
    assert isinstance(wrong, RequestFailed)
    assert (wrong.status, wrong.param) == (400, "strategy")
