"""The decode worker: answers, rejected requests, cancellation and failures."""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.captured import AutomaticStatic, Static
from helpers.commands import refused
from helpers.failing_strategies import Failing
from helpers.workers import (
    MIXED,
    answers,
    make_job,
    make_worker,
    push_failing,
    run_to_end,
)

import wavefront
from wavefront.core.bounds import FloatRange, IntRange
from wavefront.engine.batcher import Batcher
from wavefront.engine.cuda_graphs import run_eagerly
from wavefront.engine.options import SPEEDS, resolve_cache
from wavefront.models.quantize import KINDS
from wavefront.server import batch_pools, decode_worker
from wavefront.server.batch_pools import constraint_work
from wavefront.server.decode_worker import DecodeWorker, fingerprint, run
from wavefront.server.openai_format import APIError
from wavefront.server.request_builder import build_request, compile_automaton, encode_texts
from wavefront.server.request_models import CompletionBody, validate
from wavefront.server.settings import QUANTIZATIONS, Limits, ModelSource, Settings
from wavefront.server.worker_messages import (
    AutomatonMissing,
    CancelJob,
    CheckJob,
    Heartbeat,
    Job,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    RequestProgress,
    RequestStarted,
)
from wavefront.text import constraint


def test_streamed_text_only_grows(lm: Any) -> None:
    for number, options in enumerate(MIXED):
        worker = make_worker(lm)
        list(worker.handle(make_job("a", options=options)))
        messages, text = run_to_end(worker), ""
        alone = lm.generate("Once", raw=True, **options).text
        pieces = [
            one.text for one in messages if isinstance(one, RequestProgress | RequestFinished)
        ]
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
        assert isinstance(taken, RequestAccepted)
    texts = answers(run_to_end(worker))
    for id, (question, options) in cases.items():
        assert texts[id] == lm.generate(question, **options).text


def test_usage_counts_visible_tokens(lm: Any) -> None:
    worker = make_worker(lm)
    (taken,) = worker.handle(make_job("a"))
    assert taken.prompt_tokens == 4
    (ended,) = (one for one in run_to_end(worker) if isinstance(one, RequestFinished))
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


@pytest.mark.slow
def test_streamed_logprobs_follow_the_text(lm: Any) -> None:
    """Each message has the log-probabilities of the tokens whose text it completes."""
    for stop in ((), ("\N{REPLACEMENT CHARACTER}", "a")):
        for options in MIXED:
            worker = make_worker(lm)
            list(worker.handle(make_job("a", options={**options, "logprobs": 2}, stop=stop)))
            sent, entries = "", []
            alone = lm.generate("Once", raw=True, logprobs=2, **options)
            for one in run_to_end(worker):
                if not isinstance(one, RequestProgress | RequestFinished):
                    continue
                sent += one.text
                entries += one.logprobs
                if isinstance(one, RequestProgress):
                    known = lm.tokenizer.decode(alone.tokens[: len(entries)])
                    assert len(known) <= len(sent)
                else:
                    assert len(entries) == one.completion_tokens
            assert [one["token"] for one in entries] == [
                one.text for one in alone.logprobs[: len(entries)]
            ]
            for one, other in zip(entries, alone.logprobs, strict=False):
                assert one["logprob"] == pytest.approx(other.logprob, abs=1e-5)
                assert len(one["top_logprobs"]) == 2
            if not stop:
                assert len(entries) == len(alone.tokens)


def test_tokens_of_one_character_are_counted_and_reported_together(lm: Any) -> None:
    options = {"choices": ["a😀b"], "strategy": "left_to_right", "logprobs": 0}
    for stop, parts in (((), [("a", 1), ("😀", 4), ("b", 1)]), (("b",), [("a", 1), ("😀", 4)])):
        worker = make_worker(lm)
        list(worker.handle(make_job("a", options=options, stop=stop)))
        sent = [
            one for one in run_to_end(worker) if isinstance(one, RequestProgress | RequestFinished)
        ]
        found = [(one.text, len(one.logprobs)) for one in sent if one.text or one.logprobs]
        assert found == parts
        assert isinstance(sent[-1], RequestFinished)
        assert sent[-1].completion_tokens == sum(count for _, count in parts)


def test_requests_without_logprobs_get_none(lm: Any) -> None:
    worker = make_worker(lm)
    list(worker.handle(make_job("a")))
    ended = [
        one for one in run_to_end(worker) if isinstance(one, RequestProgress | RequestFinished)
    ]
    assert all(not one.logprobs for one in ended)


def test_constraint_is_compiled_outside_the_decode_process(
    lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process compiles it; the decode process only reads the result."""
    choices = ["yes", "no", "perhaps"]
    job = make_job("a", options={"max_new_tokens": 12, "choices": choices})
    encoded = encode_texts(lm.tokenizer, job, length=128)
    encoded = replace(encoded, automaton=compile_automaton(lm.tokenizer, encoded))
    monkeypatch.setattr(constraint, "_cache", constraint._Cache())  # as in another process
    monkeypatch.setattr(constraint, "_compile", None)
    worker = make_worker(lm)
    list(worker.handle(encoded))
    messages = run_to_end(worker)
    assert answers(messages)["a"] in choices
    (ended,) = (one for one in messages if isinstance(one, RequestFinished))
    assert ended.finish_reason == "stop"
    assert answers(messages)["a"] == lm.generate("Once", raw=True, **job.options).text


def test_sent_constraint_is_used_again_or_asked_for(
    lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decode process unpickles an automaton once, and again only if it removed it."""
    job = make_job("a", options={"max_new_tokens": 12, "choices": ["yes", "no", "perhaps"]})
    job = encode_texts(lm.tokenizer, job, length=128)
    with_bytes = replace(job, automaton=compile_automaton(lm.tokenizer, job))
    without = replace(job, automaton_was_sent=True)
    monkeypatch.setattr(constraint, "_cache", constraint._Cache())  # as in another process
    monkeypatch.setattr(constraint, "_compile", None)
    reads = []
    read = pickle.loads
    monkeypatch.setattr(pickle, "loads", lambda packed: (reads.append(packed), read(packed))[1])
    worker = make_worker(lm)

    for message in (without, CheckJob(without)):
        assert list(worker.handle(message)) == [AutomatonMissing(message)]
        assert not worker.queue
    for message in (with_bytes, replace(without, id="b"), CheckJob(replace(without, id="c"))):
        (accepted,) = worker.handle(message)
        assert isinstance(accepted, RequestAccepted)
    assert reads == [with_bytes.automaton]
    found = answers(run_to_end(worker))
    assert found["a"] == found["b"]
    assert found["a"] in job.options["choices"]

    constraint._cache._kept.clear()
    assert list(worker.handle(without)) == [AutomatonMissing(without)]


@pytest.mark.parametrize(
    ("options", "field", "param"),
    [
        ({"schema": '{"type": "fruit"}'}, "response_format", "response_format"),
        ({"schema": '{"type": "fruit"}'}, "tools", "tools"),
        ({"choices": ["x" * 40]}, None, "choices"),
    ],
)
def test_wrong_constraint_names_the_field_of_the_request(
    lm: Any, options: dict[str, Any], field: str | None, param: str
) -> None:
    job = make_job("a", options=options, fields={} if field is None else {"schema": field})
    (refused,) = make_worker(lm).handle(job)
    assert isinstance(refused, RequestFailed)
    assert (refused.status, refused.param) == (400, param)


DEFAULTS = {"strategy": "block(size=4)", "steps": 8, "eos": "keep"}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, {}),
        ({"strategy": "standard"}, {"strategy": "standard"}),
        ({"steps": 12, "eos": "stop"}, {"steps": 12, "eos": "stop"}),
        ({"block_length": 8}, {"strategy": "block(size=8)"}),
        ({"radius": 3}, {"strategy": "wavefront(radius=3)"}),
        ({"alg": "entropy"}, {"strategy": None, "alg": "entropy"}),
        ({"logits_eos_inf": True}, {"eos": "suppress-logit"}),
        ({"logits_eos_inf": False}, {}),
        ({"fixed_budget": True, "steps": 8}, {"eos": None, "fixed_budget": True}),
        ({"speculate": 2}, {"speculate": 2}),
    ],
    ids=str,
)
def test_server_defaults_apply_to_options_that_a_request_leaves_out(
    lm: Any, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    worker = DecodeWorker(lm, Limits(rows=2, length=64, new_tokens=32), fit=True, defaults=DEFAULTS)
    list(worker.handle(make_job("a", options=options)))
    want = {"max_new_tokens": 16, **DEFAULTS, **changed}
    assert worker.queue.pop().prepared.request.plan == lm.plan(want)


def test_server_defaults_leave_infilling_and_forks_as_they_are(lm: Any) -> None:
    worker = DecodeWorker(lm, Limits(rows=2, length=64, new_tokens=32), fit=True, defaults=DEFAULTS)
    list(worker.handle(make_job("a", prompt="a <mask:8>", infill=True)))
    plan = worker.queue.pop().prepared.request.plan
    stopping = DecodeWorker(lm, Limits(rows=2, length=64), fit=True, defaults={"eos": "stop"})
    list(stopping.handle(make_job("a", prompt="a <mask:8>", infill=True)))
    assert stopping.queue.pop().prepared.request.plan.config.sampling.eos == "keep"
    assert (repr(plan.config.strategy), plan.steps) == ("block(size=4)", 8)


def test_default_strategy_may_be_a_class_of_the_operator(lm: Any) -> None:
    """A client cannot name a module, but the person who starts the server can."""
    name = "wavefront.strategies.standard.Standard"
    worker = DecodeWorker(lm, Limits(rows=2, length=64), fit=True, defaults={"strategy": name})
    list(worker.handle(make_job("a")))
    assert answers(run_to_end(worker))["a"] == (
        lm.generate("Once", raw=True, max_new_tokens=16, strategy="standard").text
    )


@pytest.mark.parametrize(
    "defaults",
    [{"strategy": "nothing"}, {"eos": "never"}, {"cache": "x"}, {"strategy": "block", "steps": 2}],
    ids=str,
)
def test_wrong_defaults_are_refused_at_the_start(lm: Any, defaults: dict[str, Any]) -> None:
    with pytest.raises(wavefront.OptionError) as caught:
        DecodeWorker(lm, Limits(rows=2, length=128), fit=True, defaults=defaults)
    assert caught.value.option in defaults


def test_infilling_streams_the_surrounding_text(lm: Any) -> None:
    text = "Once <mask:6> upon <mask:4> end"
    worker = make_worker(lm)
    list(worker.handle(make_job("a", prompt=text, infill=True)))
    messages = run_to_end(worker)
    assert answers(messages)["a"] == lm.infill(text).text
    assert next(one.text for one in messages if isinstance(one, RequestProgress)).startswith("Once")
    (ended,) = [one for one in messages if isinstance(one, RequestFinished)]
    assert ended.finish_reason == "filled"


def test_infilling_streams_the_text_of_a_sentencepiece_model() -> None:
    story = wavefront.load("tale")
    text = "One day, a <mask:3> saw a cat. She <mask:4>."
    worker = make_worker(story)
    (accepted,) = worker.handle(make_job("a", prompt=text, infill=True, events=True))
    messages = run_to_end(worker)
    whole = story.infill(text).text
    assert answers(messages)["a"] == whole
    assert whole.startswith("One day, a ")
    assert " saw a cat. She " in whole
    assert accepted.start_event["around"] == ["One day, a", 3, " saw a cat. She", 4, "."]


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
        ({"prompt": "a <mask:4096>" * 10_000, "infill": True}, "prompt"),
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


OBJECT = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"max_tokens": 4000}, "max_tokens", "max_tokens must be at most 2048 here, not 4000."),
        ({"max_completion_tokens": 4000}, "max_completion_tokens", "^max_completion_tokens must"),
        ({"gen_length": 4000}, "gen_length", "^gen_length must"),
        ({"max_new_tokens": 4000}, "max_new_tokens", "^max_new_tokens must"),
        ({"max_tokens": 1, **OBJECT}, "response_format", "has 2; increase max_tokens.$"),
        ({"max_tokens": 4, "choices": ["x" * 9]}, "choices", "choices: .* increase max_tokens.$"),
        ({"max_completion_tokens": 1, "regex": "[a-z]{9}"}, "regex", "max_completion_tokens.$"),
        ({"prompt": "x" * 90, "max_tokens": 90}, "prompt", "or reduce max_tokens.$"),
        (
            {"prompt": "A <mask:3>.", "infill": True, "max_tokens": 3},
            "max_tokens",
            "leave out max_tokens.$",
        ),
        ({"block_size": 4, "strategy": "standard"}, "block_size", "^block_size belongs to block"),
        ({"eos_policy": "stop-block", "strategy": "standard"}, "eos_policy", "^eos_policy='stop-b"),
        ({"max_tokens": 40, "speculate": 2, **OBJECT}, "speculate", "with the schema"),
        # A name in quotes is quoted from the request.
        ({"max_tokens": 8, "strategy": "max_new_tokens"}, "strategy", "'max_new_tokens'"),
    ],
    ids=str,
)
def test_errors_name_the_fields_of_the_request(
    lm: Any, fields: dict[str, Any], param: str, sentence: str
) -> None:
    body = validate(CompletionBody, {"prompt": "Once", **fields})
    job = Job(
        id="a",
        prompt=body.prompt,  # pyright: ignore[reportArgumentType]
        infill=body.infill,
        options=body.options(),
        fields=body.field_names(),
    )
    (failure,) = make_worker(lm).handle(job)
    assert isinstance(failure, RequestFailed)
    assert (failure.status, failure.param) == (400, param)
    assert re.search(sentence, failure.message), failure.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_new_tokens": 4, "max_tokens": 5}, "max_tokens"),
        ({"block_length": 4, "block_size": 8}, "block_size"),
        ({"eos": "keep", "eos_policy": "stop"}, "eos_policy"),
    ],
    ids=str,
)
def test_fields_of_one_option_must_agree(fields: dict[str, Any], param: str) -> None:
    first, other = fields
    with pytest.raises(APIError, match="set the same thing: give one of them") as caught:
        validate(CompletionBody, {"prompt": "Once", **fields})
    assert caught.value.failure.param == param
    equal = validate(CompletionBody, {"prompt": "Once", first: fields[first], other: fields[first]})
    assert [*equal.options().values()] == [fields[first]]


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
    assert [one.id for one in messages if isinstance(one, RequestStarted)] == ["a"]
    list(worker.handle(CancelJob("a")))
    messages = list(worker.step())
    assert [one.id for one in messages if isinstance(one, RequestStarted)] == ["b"]
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
    assert {one.id for one in messages if isinstance(one, RequestFinished)} == {"a", "b"}
    assert worker.pools.rows == 3
    list(worker.handle(make_job("e")))
    assert [one.id for one in run_to_end(worker) if isinstance(one, RequestFinished)] == ["e"]


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


FAILURES: tuple[dict[str, Any], ...] = (
    {"at": 3},
    {"at": 0, "method": "candidates"},
    {"at": 4, "method": "candidates"},
    {"method": "init"},
    {"at": 2, "manner": "nan"},
    {"at": 5, "manner": "huge"},
    {"method": "init", "manner": "huge"},
)
NEIGHBOURS: tuple[dict[str, Any], ...] = (
    {},
    {"cache": "wave(refresh=4)"},
    {"cache": "dual(refresh=3)", "cfg_scale": 0.8},
    {"cfg_scale": 0.8},
    {"speculate": 3},
    {"regex": "[a-z ]{0,40}"},
    {"logit_bias": {"101": 5.0, "7": -100.0}, "logprobs": 3},
)


@pytest.mark.slow
@pytest.mark.parametrize("shared", NEIGHBOURS)
@pytest.mark.parametrize("fit", [True, False])
def test_failing_requests_do_not_affect_others(lm: Any, shared: dict[str, Any], fit: bool) -> None:
    """Requests that share a batch with failing ones give the tokens of a lone decode."""
    rows = len(FAILURES) + len(MIXED)
    worker = make_worker(lm, fit=fit, rows=rows)
    for number, options in enumerate(MIXED):
        list(worker.handle(make_job(f"good {number}", options={**options, **shared})))
        bad = make_job(f"bad {number}", options=shared)
        push_failing(worker, bad, Failing(**FAILURES[number % len(FAILURES)]))
    messages = run_to_end(worker)
    failed = {one.id: one for one in messages if isinstance(one, RequestFailed)}
    assert sorted(failed) == [f"bad {number}" for number in range(len(MIXED))]
    assert {(one.status, one.code) for one in failed.values()} == {(500, "decode_failed")}
    texts = answers([one for one in messages if getattr(one, "id", "").startswith("good")])
    for number, options in enumerate(MIXED):
        alone = lm.generate("Once", raw=True, **{**options, **shared})
        assert texts[f"good {number}"] == alone.text, (number, shared)
    assert worker.failures == 0
    assert not worker.active


@pytest.mark.parametrize(
    "strategy",
    [
        f"block(size={10**31})",
        f"wavefront(size={10**31})",
        "tide(cascade_rounds=8, horizon=0, risk=1e300, selector=threshold(tau=0.98))",
        "standard(selector=factor(factor=1e300))",
    ],
)
@pytest.mark.parametrize("bounded", [True, False])
def test_extreme_options_do_not_affect_other_requests(
    lm: Any, strategy: str, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option is refused. If it had no bounds, a step would fail, and its neighbours go on."""
    worker = make_worker(lm, fit=False)
    if not bounded:
        for kind in (IntRange, FloatRange):
            monkeypatch.setattr(kind, "check", lambda *_: None)
    list(worker.handle(make_job("good")))
    for number in range(6):
        job = make_job(f"bad {number}", options={"strategy": strategy})
        (answer,) = worker.handle(job)
        assert isinstance(answer, RequestFailed) == bounded
    messages = run_to_end(worker)
    assert {one.id for one in messages if isinstance(one, RequestFailed)}.isdisjoint({"good"})
    assert answers(messages)["good"] == lm.generate("Once", raw=True, max_new_tokens=16).text


CONSTRAINED = {"regex": "[a-z ]{3,40}", "max_new_tokens": 20}


def test_large_constraints_get_at_most_half_of_the_time(
    lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with a large constraint takes ten times as long; another request hardly waits."""
    monkeypatch.setattr(batch_pools, "SLOW_WORK", 0)
    clock, taken, step = [0.0], list[bool](), Batcher.step
    monkeypatch.setattr(decode_worker, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    worker = make_worker(lm)

    def timed(batcher: Batcher) -> Any:
        taken.append(worker.pools.is_slow(batcher))
        clock[0] += 1.0 if taken[-1] else 0.1
        return step(batcher)

    monkeypatch.setattr(Batcher, "step", timed)
    good = {"max_new_tokens": 40, "strategy": "standard"}
    for id, options in (("slow", CONSTRAINED), ("good", good)):
        list(worker.handle(make_job(id, options=options)))
    messages = list(worker.step())
    while "good" in worker.active:
        messages += worker.step()
    assert taken.count(False) == 40
    assert 2 <= taken.count(True) <= 5
    messages += run_to_end(worker)
    monkeypatch.undo()
    assert answers(messages)["good"] == lm.generate("Once", raw=True, **good).text
    assert answers(messages)["slow"] == lm.generate("Once", raw=True, **CONSTRAINED).text


def test_large_constraints_wait_for_each_other_but_not_others_for_them(
    lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_pools, "SLOW_WORK", 0)
    worker = make_worker(lm)
    jobs = {id: make_job(id, options=CONSTRAINED) for id in ("slow 1", "slow 2", "slow 3")}
    jobs["good"] = make_job("good")
    work = constraint_work(build_request(lm, jobs["slow 1"], worker.limits, length=128).request)
    assert work > 0
    monkeypatch.setattr(batch_pools, "MAX_STEP_WORK", 2 * work)
    for job in jobs.values():
        list(worker.handle(job))
    messages = list(worker.step())
    assert set(worker.active) == {"slow 1", "slow 2", "good"}
    messages += run_to_end(worker)
    texts = answers(messages)
    assert texts["slow 1"] == texts["slow 2"] == texts["slow 3"] != ""
    # One that is larger than the limit still gets its turn.
    monkeypatch.setattr(batch_pools, "MAX_STEP_WORK", work - 1)
    list(worker.handle(make_job("large", options=CONSTRAINED)))
    assert answers(run_to_end(worker))["large"] == texts["slow 1"]


def test_many_failing_requests_do_not_end_the_process(lm: Any) -> None:
    worker = make_worker(lm, rows=1)
    for number in range(8):
        push_failing(worker, make_job(str(number)), Failing())
    failed = [one for one in run_to_end(worker) if isinstance(one, RequestFailed)]
    assert [one.id for one in failed] == list(map(str, range(8)))
    list(worker.handle(make_job("good")))
    assert answers(run_to_end(worker))["good"]


def test_failure_in_the_events_ends_only_that_request(lm: Any) -> None:
    worker = make_worker(lm)
    for id in ("good", "bad"):
        list(worker.handle(make_job(id, events=True)))
    list(worker.step())
    worker.active["bad"].events.position.clear()  # the next commit has no position
    messages = run_to_end(worker)
    assert [one.id for one in messages if isinstance(one, RequestFailed)] == ["bad"]
    assert "good" in {one.id for one in messages if isinstance(one, RequestFinished)}
    assert not worker.pools.busy


def test_fatal_device_error_ends_the_process_at_once(lm: Any) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    broken = wavefront.LM(FailingModel(lm.model, 0, error), lm.tokenizer)
    worker = make_worker(broken)
    list(worker.handle(make_job("a")))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        list(worker.step())


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
    worker = DecodeWorker(lm, limits, fit=True, defaults={"cache": "wave(refresh=4)"})
    for id in "abcd":
        list(worker.handle(make_job(id)))
    messages = run_to_end(worker)
    assert {one.id for one in messages if isinstance(one, RequestFinished)} == set("abcd")
    for number, options in enumerate(SERVED_OPTIONS):
        list(worker.handle(make_job(str(number), options=options)))
    finished = {one.id for one in run_to_end(worker) if isinstance(one, RequestFinished)}
    assert finished == set(map(str, range(len(SERVED_OPTIONS))))


@pytest.mark.parametrize(
    ("server", "options", "cache"),
    [
        ({}, {}, None),
        ({"speed": "fast"}, {}, SPEEDS["fast"].cache),
        ({"speed": "fast"}, {"speed": "exact"}, None),
        ({"speed": "fast"}, {"cache": "none"}, None),
        ({"speed": "fast"}, {"speculate": 2}, None),
        ({"speed": "fast", "cache": "dual"}, {}, "dual"),
        ({"speed": "fast", "cache": "none"}, {}, None),
        ({"cache": "dual"}, {"speed": "exact"}, None),
        ({"cache": "dual"}, {"speed": "balanced"}, SPEEDS["balanced"].cache),
        ({"cache": "dual"}, {"cache": "none"}, None),
        ({"cache": "dual"}, {"speculate": 2}, None),
    ],
)
def test_request_wins_over_the_cache_of_the_server_which_wins_over_its_speed(
    lm: Any, server: dict[str, str], options: dict[str, Any], cache: str | None
) -> None:
    loaded = wavefront.LM(lm.model, lm.tokenizer, speed=server.get("speed", "exact"))
    defaults = {"cache": server["cache"]} if "cache" in server else {}
    worker = DecodeWorker(loaded, Limits(rows=2, length=64), fit=True, defaults=defaults)
    list(worker.handle(make_job("a", options=options)))
    list(worker.step())
    (batcher,) = worker.pools.batchers
    assert batcher.kind.cache == resolve_cache(cache)


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
@pytest.mark.parametrize("fit", [True, pytest.param(False, marks=pytest.mark.slow)])
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


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "wave(refresh=4)"])
def test_steps_with_static_buffers_give_the_same_answers(
    lm: Any, cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Static, "KEPT", 5)  # some are dropped and captured again
    limits, texts, static = Limits(rows=3, length=128), [], []
    for calls in (lambda: run_eagerly, lambda: static.append(Static()) or static[-1]):
        worker = DecodeWorker(lm, limits, fit=False, defaults={"cache": cache}, make_call=calls)
        worker.warm_up()
        assert not worker.busy
        for number, options in enumerate(MIXED):
            list(worker.handle(make_job(str(number), options=options)))
        texts.append(answers(run_to_end(worker)))
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(MIXED)
    assert len(static) == 1
    assert len(static[0]._graphs) == 5


@pytest.mark.parametrize("cache", [None, "wave(refresh=8, size=32, near=4)"])
def test_requests_after_the_warm_up_need_no_capture(lm: Any, cache: str | None) -> None:
    limits, calls = Limits(rows=4, length=128), []
    worker = DecodeWorker(
        lm,
        limits,
        fit=False,
        defaults={"cache": cache, "eos": "keep", "strategy": "wavefront(size=8, radius=2)"},
        make_call=lambda: calls.append(AutomaticStatic()) or calls[-1],
    )
    worker.warm_up()
    assert not worker.busy
    (graphs,) = calls
    captured = set(graphs._graphs)
    for number in range(6):  # they begin at different steps
        list(worker.handle(make_job(str(number), options={"max_new_tokens": 48})))
        list(worker.step())
    run_to_end(worker)
    assert set(graphs._graphs) == captured
    assert len(captured) == (1 if cache is None else 4)  # with a cache: window, 4, 2 and 1 rows


def test_capture_without_a_gpu_is_reported_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Any] = []

    class Pipe:
        def send(self, batch: list[Any]) -> None:
            messages.extend(batch)

    monkeypatch.setattr("signal.signal", lambda *_: None)  # keep the handlers of pytest
    run(Settings(source=ModelSource(model="toy", device="cpu", cuda_graphs=True)), Pipe())
    assert "cuda_graphs needs a CUDA device" in messages[0].message
    source = ModelSource(model="wavefront.bench.model_shapes:llada_8b", quantize="int7")
    run(Settings(source=source), Pipe())
    assert "There is no quantisation 'int7'" in messages[1].message


def test_unknown_quantisation_is_refused_before_the_server_starts() -> None:
    assert QUANTIZATIONS == KINDS
    line = refused("serve", "-m", "toy", "--quantize", "int5", "--port", "0")
    assert "quantize" in line
    assert "http://" not in line


def test_fingerprint_depends_on_the_weights(lm: Any) -> None:
    assert fingerprint(lm) == fingerprint(wavefront.load("toy"))
    other = wavefront.LM(wavefront.models.toy.toy(seed=5, vocab_size=258), lm.tokenizer)
    assert fingerprint(lm) != fingerprint(other)
    assert fingerprint(lm) != fingerprint(wavefront.load("toy", quantize="int8"))


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


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "planted.Mine()"},
        {"strategy": "standard(selector=planted.Mine())"},
        {"cache": "planted.Mine()"},
    ],
)
def test_request_never_imports_a_module(lm: Any, planted_module: Any, options: Any) -> None:
    (failure,) = make_worker(lm).handle(make_job("a", options=options))
    assert (failure.status, failure.param) == (400, next(iter(options)))
    assert "dotted names are not accepted" in failure.message
    assert not planted_module()
