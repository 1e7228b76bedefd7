"""The parts of the server, each by itself: what is failure, what is told, who gets a row."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import torch
from helpers.captured import Static

import wavefront
from wavefront.analysis.measures import mhco
from wavefront.cli.serve import find_key
from wavefront.core.errors import MissingExtraError, OptionError
from wavefront.engine.cuda_graphs import eagerly
from wavefront.server import request_models
from wavefront.server.batch_pools import BatchPools
from wavefront.server.decode_worker import DecodeWorker, fingerprint, run
from wavefront.server.fair_queue import FairQueue
from wavefront.server.middleware import SecurityMiddleware
from wavefront.server.openai_format import APIError, ASCIIResponse
from wavefront.server.request_builder import build_request
from wavefront.server.request_models import (
    LIBRARY_ONLY,
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
    DecodeBody,
    schema,
    validate,
)
from wavefront.server.request_state import RequestRegistry, RequestState
from wavefront.server.settings import Limits, Settings, Source
from wavefront.server.static_files import share
from wavefront.server.step_events import StepEvents, _hold_back
from wavefront.server.worker_messages import (
    Accepted,
    CancelJob,
    Finished,
    Fork,
    Heartbeat,
    Job,
    Progress,
    RequestFailed,
    Started,
)

MIXED: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 12, "strategy": "standard"},
    {"max_new_tokens": 20, "temperature": 0.7, "seed": 4},
    {"max_new_tokens": 16, "strategy": "block(size=4)", "steps": 8},
    {
        "max_new_tokens": 9,
        "strategy": "tide(revisable_band=4, remask_below=0.5, selector=threshold(tau=0.3))",
    },
    {"max_new_tokens": 24, "strategy": "rcr(size=16)"},
    {"max_new_tokens": 30, "eos": "stop"},
    {"max_new_tokens": 21, "priority": "entropy", "strategy": "wavefront(size=4)"},
)


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def make_worker(lm: Any, *, fit: bool = True, **limits: Any) -> DecodeWorker:
    return DecodeWorker(lm, Limits(**{"rows": 4, "length": 128} | limits), fit=fit)


def make_job(id: str, **more: Any) -> Job:
    options = {"max_new_tokens": 16, **more.pop("options", {})}
    if more.get("infill"):
        del options["max_new_tokens"]
    return Job(id=id, options=options, **{"prompt": "Once", **more})


def run_to_end(worker: DecodeWorker) -> list[Any]:
    """Step until nothing is left to do and return all messages."""
    messages: list[Any] = []
    for _ in range(2000):
        messages += worker.step()
        if not worker.busy:
            return messages
    raise AssertionError("the worker is still busy after 2000 steps")


def answers(messages: list[Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for one in messages:
        if isinstance(one, Progress | Finished):
            texts[one.id] = texts.get(one.id, "") + one.text
    return texts


# Request bodies


@pytest.mark.parametrize("name", sorted(UNSUPPORTED | LIBRARY_ONLY))
def test_what_is_not_supported_is_refused_by_its_name(name: str) -> None:
    given = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(APIError) as caught:
        validate(ChatBody, given | {name: ["anything", 7]})
    failure = caught.value.failure
    assert (failure.status, failure.param, failure.code) == (400, name, "unsupported_field")
    for harmless in (*UNSUPPORTED.get(name, ()), *LIBRARY_ONLY.get(name, ()), None):
        validate(ChatBody, given | {name: harmless})


@pytest.mark.parametrize(
    ("given", "param", "word"),
    [
        ({"prompt": "x", "stratgy": "block"}, "stratgy", "strategy"),
        ({"prompt": "x", "temperature": -1}, "temperature", "greater"),
        ({"prompt": "x", "temperature": "1"}, "temperature", "number"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "greater"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens", "integer"),
        ({"prompt": "x", "seed": 1.5}, "seed", "integer"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop", "empty"),
        ({"prompt": "x", "stop": ["a"] * 5}, "stop", "four"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"prompt": ["a", "b"]}, "prompt", "one"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [-1]}, "prompt", ""),
        ({}, "prompt", "required"),
        ([], None, "The body"),
        ({"prompt": "x", "n": True}, "n", "not supported"),
    ],
)
def test_a_wrong_body_is_refused_with_its_field(given: Any, param: str | None, word: str) -> None:
    with pytest.raises(APIError) as caught:
        validate(CompletionBody, given)
    assert caught.value.failure.status == 400
    assert caught.value.failure.param == param
    assert word in caught.value.failure.message


def test_lengths_under_all_their_names() -> None:
    for name in ("max_new_tokens", "max_tokens", "gen_length", "max_completion_tokens"):
        options = validate(CompletionBody, {"prompt": "x", name: 7}).options()
        assert list(options.values()) == [7]
    assert validate(CompletionBody, {"prompt": "x", "seed": 7.0}).options() == {"seed": 7}
    both = validate(CompletionBody, {"prompt": "x", "max_tokens": 7, "max_completion_tokens": 7})
    assert both.options() == {"max_new_tokens": 7}


def test_messages_of_parts_and_of_developers() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = validate(ChatBody, {"messages": [{"role": "developer", "content": parts}]})
    assert body.messages[0].plain() == {"role": "system", "content": "ab"}
    with pytest.raises(APIError):
        validate(ChatBody, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})


def test_a_viewer_gives_one_prompt() -> None:
    for given in ({}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}):
        with pytest.raises(APIError):
            validate(DecodeBody, given)


def test_words_are_the_library_s(lm: Any) -> None:
    """The schema lists the same words as the library."""
    for name, words in {
        "priority": request_models.Priority,
        "eos": request_models.Eos,
        "sampling": request_models.Rule,
        "remasking": request_models.Remasking,
        "alg": request_models.Algorithm,
    }.items():
        for word in get_args(words):
            lm.plan({name: word})
        with pytest.raises(OptionError) as caught:
            lm.plan({name: "nonsense"})
        assert all(word in str(caught.value) for word in get_args(words))


def test_schemas_stand_alone() -> None:
    for kind in (ChatBody, CompletionBody, DecodeBody):
        assert "$ref" not in str(schema(kind))


# Decoding


def test_text_grows_and_is_never_taken_back(lm: Any) -> None:
    for number, options in enumerate(MIXED):
        worker = make_worker(lm)
        list(worker.handle(make_job("a", options=options)))
        messages, text = run_to_end(worker), ""
        whole = lm.generate("Once", raw=True, **options).text
        pieces = [one.text for one in messages if isinstance(one, Progress | Finished)]
        for piece in pieces:
            text += piece
            assert whole.startswith(text), number
        assert text == whole
        assert "\N{REPLACEMENT CHARACTER}" not in pieces[0][-1:] or len(pieces) == 1


@pytest.mark.parametrize("fit", [True, False])
def test_together_each_gets_what_it_gets_alone(lm: Any, fit: bool) -> None:
    worker = make_worker(lm, fit=fit)
    for number, options in enumerate(MIXED):
        list(worker.handle(make_job(str(number), options=options, prompt="Once " * (number + 1))))
    texts = answers(run_to_end(worker))
    for number, options in enumerate(MIXED):
        prompt = "Once " * (number + 1)
        assert texts[str(number)] == lm.generate(prompt, raw=True, **options).text


def test_usage_counts_visible_tokens(lm: Any) -> None:
    worker = make_worker(lm)
    (taken,) = worker.handle(make_job("a"))
    assert taken.prompt_tokens == 4
    (ended,) = (one for one in run_to_end(worker) if isinstance(one, Finished))
    whole = lm.generate("Once", raw=True, max_new_tokens=16)
    counts = (ended.completion_tokens, ended.finish_reason, ended.forwards)
    assert counts == (len(whole.tokens), whole.finish_reason, whole.forwards)


def test_a_stop_string_cuts_the_text_and_frees_the_row(lm: Any) -> None:
    whole = lm.generate("Once", raw=True, max_new_tokens=40).text
    stop = whole[4:6]
    worker = make_worker(lm)
    list(worker.handle(make_job("a", options={"max_new_tokens": 40}, stop=(stop, "never"))))
    messages = run_to_end(worker)
    ended = messages[-2]
    assert answers(messages)["a"] == whole[: whole.index(stop)]
    assert ended.finish_reason == "stop"
    assert ended.completion_tokens <= whole.index(stop) + 1
    assert ended.forwards < 40
    assert not worker.active


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    assert _hold_back("one two E", ("END", "x")) == "one two "
    assert _hold_back("one two EN", ("END",)) == "one two "
    assert _hold_back("one two EX", ("END",)) == "one two EX"


def test_infilling_streams_the_text_around(lm: Any) -> None:
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
        ({"options": {"cfg_scale": 1.0}}, "cfg_scale"),
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
def test_what_cannot_be_decoded_is_refused_and_nothing_is_imported(
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


def test_without_a_length_there_is_room_for_what_fits(lm: Any) -> None:
    made = build_request(lm, Job(id="a", prompt="x" * 100), Limits(), length=128)
    assert made.request.plan.length == 28
    made = build_request(lm, Job(id="a", prompt="x"), Limits(new_tokens=48, steps=24), length=128)
    assert made.request.plan.length == 24


def test_a_client_that_goes_away_frees_its_row_before_the_next_step(lm: Any) -> None:
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


def test_clients_take_turns(lm: Any) -> None:
    queue = FairQueue()
    for id, client in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")]:
        job = make_job(id, client=client)
        queue.push(StepEvents(lm, job, build_request(lm, job, Limits(), length=64)))
    queue.remove("a2")
    order = []
    while events := queue.pop():
        order.append(events.job.id)
    assert order == ["a1", "b1", "a3", "b2"]


def test_lanes_are_as_large_as_what_is_in_them(lm: Any) -> None:
    pools = BatchPools(lm.model, rows=4, length=128, steps=64, fit=True)
    request = build_request(lm, make_job("a"), Limits(), length=128).request
    admitted = [pools.admit(request) for _ in range(4)]
    assert [batcher.rows for batcher in pools.batchers] == [1, 1, 2]
    assert {batcher.length for batcher in pools.batchers} == {32}
    assert (pools.busy, pools.free) == (4, 0)
    for batcher, active in admitted:
        batcher.release(active)
    pools.close_idle()
    assert pools.batchers == []
    fixed = BatchPools(lm.model, rows=4, length=128, steps=64, fit=False)
    fixed.admit(request)
    fixed.admit(request)
    assert [(batcher.rows, batcher.length) for batcher in fixed.batchers] == [(4, 128)]


class Narrow:
    """A model that raises an error for batches of more than `rows` rows."""

    def __init__(self, model: Any, rows: int, error: Exception) -> None:
        self._model, self._rows, self._error = model, rows, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def hidden(self, tokens: Any, *rest: Any, **more: Any) -> Any:
        if tokens.shape[0] > self._rows:
            raise self._error
        return self._model.hidden(tokens, *rest, **more)


def test_out_of_memory_fails_its_requests_and_the_rest_goes_on(lm: Any) -> None:
    narrow = wavefront.LM(Narrow(lm.model, 1, torch.OutOfMemoryError("no")), lm.tokenizer)
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


def test_a_step_that_fails_three_times_running_ends_the_process(lm: Any) -> None:
    broken = wavefront.LM(Narrow(lm.model, 0, RuntimeError("device lost")), lm.tokenizer)
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


def test_nan_is_the_request_s_own_error(lm: Any) -> None:
    class Spoilt(Narrow):
        def hidden(self, tokens: Any, *rest: Any, **more: Any) -> Any:
            return self._model.hidden(tokens, *rest, **more) * float("nan")

    spoilt = wavefront.LM(Spoilt(lm.model, 9, ValueError()), lm.tokenizer)
    worker = make_worker(spoilt)
    list(worker.handle(make_job("a")))
    (failure,) = (one for one in run_to_end(worker) if isinstance(one, RequestFailed))
    assert failure.code == "numerical_error"


def test_a_cache_serves_too(lm: Any) -> None:
    limits = Limits(rows=3, length=128)
    worker = DecodeWorker(lm, limits, fit=True, cache="wave(refresh=4)")
    for id in "abcd":
        list(worker.handle(make_job(id)))
    messages = run_to_end(worker)
    assert {one.id for one in messages if isinstance(one, Finished)} == set("abcd")
    own = make_job("e", options={"cache": "wave(refresh=9)"})
    (failure,) = worker.handle(own)
    assert failure.status == 400


@pytest.mark.parametrize("cache", [None, "wave(refresh=4)"])
def test_steps_that_own_their_memory_serve_the_same(
    lm: Any, cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Static, "KEPT", 5)  # some are dropped and captured again
    limits, found, made = Limits(rows=3, length=128), [], []
    for calls in (lambda: eagerly, lambda: made.append(Static()) or made[-1]):
        worker = DecodeWorker(lm, limits, fit=False, cache=cache, make_call=calls)
        worker.warm_up()
        assert not worker.busy
        for number, options in enumerate(MIXED):
            list(worker.handle(make_job(str(number), options=options)))
        found.append(answers(run_to_end(worker)))
    assert found[0] == found[1]
    assert len(found[0]) == len(MIXED)
    assert len(made) == 1
    assert len(made[0]._made) == 5


def test_what_only_a_gpu_can_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Any] = []

    class Pipe:
        def send(self, batch: list[Any]) -> None:
            messages.extend(batch)

    monkeypatch.setattr("signal.signal", lambda *_: None)  # keep the handlers of pytest
    run(Settings(source=Source(model="toy", device="cpu", capture=True)), Pipe())
    assert "captured on CUDA" in messages[0].message


# Events


def events_of(worker: DecodeWorker, job: Job) -> list[dict[str, Any]]:
    (taken,) = worker.handle(job)
    assert isinstance(taken, Accepted), taken
    messages = run_to_end(worker)
    events = [
        taken.start_event,
        *(one.event for one in messages if isinstance(one, Progress | Finished)),
    ]
    return [event for event in events if event is not None]


@pytest.mark.parametrize("strategy", ["wavefront(size=4)", "block(size=4)", "tbd(size=8, drop=2)"])
def test_events_tell_the_whole_decode(lm: Any, strategy: str) -> None:
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


def test_measuring_does_not_change_the_answer(lm: Any) -> None:
    for options in MIXED[:3]:
        texts = {
            answers([*worker.handle(make_job("a", options=options, **more)), *run_to_end(worker)])[
                "a"
            ]
            for more in ({}, {"events": True}, {"events": True, "measure": True})
            for worker in [make_worker(lm)]
        }
        assert len(texts) == 1


def test_too_much_to_measure_is_refused(lm: Any) -> None:
    worker = make_worker(lm, length=2000)
    options = {"max_new_tokens": 1000, "steps": 1000}
    (failure,) = worker.handle(make_job("a", options=options, measure=True, events=True))
    assert isinstance(failure, RequestFailed)
    assert "measure" in failure.message


def run_job(lm: Any, job: Job) -> RequestState:
    """Decode a job and return its final state."""
    worker = make_worker(lm)

    async def run() -> RequestState:
        state = RequestState(job)
        for message in [*worker.handle(job), *run_to_end(worker)]:
            if not isinstance(message, Heartbeat):
                state.update(message)
        return state

    return asyncio.run(run())


def test_a_fork_goes_on_from_the_board_of_that_step(lm: Any) -> None:
    state = run_job(lm, make_job("a", events=True, options={"eos": "keep"}))
    whole = lm.generate("Once", raw=True, max_new_tokens=16)
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
    assert all(whole.tokens[position] == token for position, token in kept.items())
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


@pytest.mark.parametrize("put", [{99: "a"}, {15: "ab"}, {0: ""}, {0: 99999}, {0: 257}])
def test_a_fork_that_cannot_be_is_refused(lm: Any, put: Any) -> None:
    state = run_job(lm, make_job("a", events=True))
    job = Job(id="f", fork=Fork(state.canvas_at(3), put), options={"steps": 4}, events=True)
    (failure,) = make_worker(lm).handle(job)
    assert isinstance(failure, RequestFailed)
    assert failure.status == 400


def test_what_has_ended_is_kept_for_a_while_and_not_beyond_a_size(lm: Any) -> None:
    states = [run_job(lm, make_job(id, events=True)) for id in "abc"]
    registry = RequestRegistry(event_ttl=1000, event_bytes=2 * states[0].event_bytes + 10)
    for state in states:
        registry.active[state.id] = state
        registry.close(state)
    assert [registry.find(id) is not None for id in "abc"] == [False, True, True]
    brief = RequestRegistry(event_ttl=0, event_bytes=1 << 30)
    brief.active["a"] = states[0]
    brief.close(states[0])
    assert brief.find("a") is None


# Middleware


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await ASCIIResponse({"size": size, "id": scope["state"]["request_id"]})(scope, receive, send)


def respond(path: str = "/v1/models", method: str = "GET", **more: Any) -> httpx.Response:
    settings = {
        "source": Source(model="toy"),
        "limits": Limits(body=100),
        **more.pop("settings", {}),
    }
    app = SecurityMiddleware(_echo, Settings(**settings), frozenset(("/", "/page.css")))
    base = more.pop("base", "http://localhost:8000")

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
            return await client.request(method, path, **more)

    return asyncio.run(asked())


def test_the_key_is_wanted_everywhere_but_at_the_probes() -> None:
    keyed = {"settings": {"api_key": "secret"}}
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/v1/wavefront/decodes/x"):
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = respond(path, headers=wrong, **keyed)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        right = respond(path, headers={"authorization": "Bearer secret"}, **keyed)
        assert right.status_code == 200
    for path in ("/health", "/ready", "/", "/page.css"):
        assert respond(path, **keyed).status_code == 200
    opened = {"settings": {"api_key": "secret", "open_metrics": True}}
    assert respond("/metrics", **opened).status_code == 200
    assert respond("/v1/models").status_code == 200  # no key is configured


def test_the_host_must_be_ours_on_loopback() -> None:
    assert respond(base="http://evil.example").status_code == 421
    for base in ("http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost"):
        assert respond(base=base).status_code == 200
    named = {"settings": {"hosts": ("box.local",)}}
    assert respond(base="http://box.local:1", **named).status_code == 200
    assert respond(base="http://any.example", settings={"host": "0.0.0.0"}).status_code == 200
    both = {"settings": {"host": "0.0.0.0", "hosts": ("box.local",)}}
    assert respond(base="http://any.example", **both).status_code == 421
    for base in (
        "http://box.local",
        "http://127.0.0.1:8000",
    ):  # the second is a health check on this machine
        assert respond(base=base, **both).status_code == 200


def test_bodies_are_json_and_small() -> None:
    json = {"content-type": "application/json; charset=utf-8"}
    assert respond(method="POST", content=b"x" * 100, headers=json).json()["size"] == 100
    assert respond(method="POST", content=b"x" * 101, headers=json).status_code == 413

    async def pieces() -> Any:
        for _ in range(11):
            yield b"x" * 10

    assert respond(method="POST", content=pieces(), headers=json).status_code == 413
    assert respond(method="POST", content=b"{}").status_code == 415
    plain = {"content-type": "text/plain"}
    assert respond(method="POST", content=b"{}", headers=plain).status_code == 415


def test_request_ids_are_honoured_when_sane() -> None:
    assert respond(headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for wild in ("a b", "x" * 129, "<script>", ""):
        answer = respond(headers={"x-request-id": wild})
        assert len(answer.headers["x-request-id"]) == 32
        assert answer.json()["id"] == answer.headers["x-request-id"]


def test_answers_forbid_what_a_page_need_not_do() -> None:
    headers = respond().headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_the_shared_page_loads_nothing_and_runs_one_script() -> None:
    page = share()
    assert page.count("__DATA__") == 1
    assert page.count("sha256-") == 2
    assert "http://" not in page
    assert "https://" not in page
    assert " src=" not in page


def test_the_key_is_found_where_it_was_put(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("WAVEFRONT_API_KEY", raising=False)
    monkeypatch.delenv("WAVEFRONT_API_KEY_FILE", raising=False)
    assert find_key(None) is None
    file = tmp_path / "key"
    monkeypatch.setenv("WAVEFRONT_API_KEY_FILE", str(file))
    with pytest.raises(OptionError, match="no such file or directory"):
        find_key(None)
    file.write_bytes(b"\xff")
    with pytest.raises(OptionError, match="not utf-8"):
        find_key(None)
    file.write_text("from the file\n")
    assert find_key(None) == "from the file"
    monkeypatch.setenv("WAVEFRONT_API_KEY", "from the variable")
    assert find_key(None) == "from the variable"
    assert find_key("from the command line") == "from the command line"
    monkeypatch.delenv("WAVEFRONT_API_KEY")
    monkeypatch.setenv("WAVEFRONT_API_KEY_FILE", "")
    assert find_key(None) is None


def test_settings_are_checked() -> None:
    source = Source(model="toy")
    for wrong in ({"port": 99999}, {"batch_shape": "two"}, {"api_key": " "}, {"api_key": "é"}):
        with pytest.raises(OptionError):
            Settings(source=source, **wrong)
    for wrong in ({"rows": 0}, {"queue": -1}, {"request_timeout": 0}, {"body": 1.5}):
        with pytest.raises(OptionError):
            Limits(**wrong)
    assert "secret" not in repr(Settings(source=source, api_key="secret"))


def test_a_fingerprint_is_of_the_weights(lm: Any) -> None:
    assert fingerprint(lm) == fingerprint(wavefront.load("toy"))
    other = wavefront.LM(wavefront.models.toy.toy(seed=5, vocab_size=258), lm.tokenizer)
    assert fingerprint(lm) != fingerprint(other)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.delitem(sys.modules, "wavefront.server")
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else known(name, *a)
    )
    with pytest.raises(MissingExtraError, match=r"wavefront\[serve\]"):
        importlib.import_module("wavefront.server")


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
    asked = {f"{q} {k}": (questions[q], kinds[k]) for q in range(2) for k in range(3)}
    for id, (question, options) in asked.items():
        messages = [{"role": "user", "content": question}]
        (taken,) = worker.handle(Job(id=id, messages=messages, options=options))
        assert isinstance(taken, Accepted)
    texts = answers(run_to_end(worker))
    for id, (question, options) in asked.items():
        assert texts[id] == lm.generate(question, **options).text
