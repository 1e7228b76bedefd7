"""The parts of the server, each by itself: what is refused, what is told, who gets a row."""

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
from wavefront.server.batch_pools import Lanes
from wavefront.server.decode_worker import Decoder, fingerprint, run
from wavefront.server.fair_queue import Queue
from wavefront.server.middleware import Guard
from wavefront.server.openai_format import Refusal, Reply
from wavefront.server.request_builder import prepare
from wavefront.server.request_models import NOT_HERE, UNSUPPORTED, Begin, Chat, Complete
from wavefront.server.request_parser import check, schema
from wavefront.server.request_state import Shelf, Ticket
from wavefront.server.settings import Limits, Settings, Source
from wavefront.server.static_files import share
from wavefront.server.step_events import Teller, _withheld
from wavefront.server.worker_messages import (
    Beat,
    Drop,
    Ended,
    Fork,
    Job,
    Refused,
    Seated,
    Taken,
    Told,
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


def decoder_of(lm: Any, *, fit: bool = True, **limits: Any) -> Decoder:
    return Decoder(lm, Limits(**{"rows": 4, "length": 128} | limits), fit=fit)


def job_of(id: str, **more: Any) -> Job:
    options = {"max_new_tokens": 16, **more.pop("options", {})}
    if more.get("infill"):
        del options["max_new_tokens"]
    return Job(id=id, options=options, **{"prompt": "Once", **more})


def drained(decoder: Decoder) -> list[Any]:
    """All that it says until nothing is left to do."""
    said: list[Any] = []
    for _ in range(2000):
        said += decoder.step()
        if not decoder.busy:
            return said
    raise AssertionError("it never ends")


def answers(said: list[Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for one in said:
        if isinstance(one, Told | Ended):
            texts[one.id] = texts.get(one.id, "") + one.text
    return texts


# Bodies


@pytest.mark.parametrize("name", sorted(UNSUPPORTED | NOT_HERE))
def test_what_is_not_supported_is_refused_by_its_name(name: str) -> None:
    given = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(Refusal) as caught:
        check(Chat, given | {name: ["anything", 7]})
    refused = caught.value.refused
    assert (refused.status, refused.param, refused.code) == (400, name, "unsupported_field")
    for harmless in (*UNSUPPORTED.get(name, ()), *NOT_HERE.get(name, ()), None):
        check(Chat, given | {name: harmless})


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
    with pytest.raises(Refusal) as caught:
        check(Complete, given)
    assert caught.value.refused.status == 400
    assert caught.value.refused.param == param
    assert word in caught.value.refused.message


def test_lengths_under_all_their_names() -> None:
    for name in ("max_new_tokens", "max_tokens", "gen_length", "max_completion_tokens"):
        options = check(Complete, {"prompt": "x", name: 7}).options()
        assert list(options.values()) == [7]
    assert check(Complete, {"prompt": "x", "seed": 7.0}).options() == {"seed": 7}
    both = check(Complete, {"prompt": "x", "max_tokens": 7, "max_completion_tokens": 7})
    assert both.options() == {"max_new_tokens": 7}


def test_messages_of_parts_and_of_developers() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = check(Chat, {"messages": [{"role": "developer", "content": parts}]})
    assert body.messages[0].plain() == {"role": "system", "content": "ab"}
    with pytest.raises(Refusal):
        check(Chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})


def test_a_viewer_gives_one_prompt() -> None:
    for given in ({}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}):
        with pytest.raises(Refusal):
            check(Begin, given)


def test_words_are_the_library_s(lm: Any) -> None:
    """What the schema lists is what the library takes."""
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
    for kind in (Chat, Complete, Begin):
        assert "$ref" not in str(schema(kind))


# DecodeSession


def test_text_grows_and_is_never_taken_back(lm: Any) -> None:
    for number, options in enumerate(MIXED):
        decoder = decoder_of(lm)
        list(decoder.selector(job_of("a", options=options)))
        said, text = drained(decoder), ""
        whole = lm.generate("Once", raw=True, **options).text
        pieces = [one.text for one in said if isinstance(one, Told | Ended)]
        for piece in pieces:
            text += piece
            assert whole.startswith(text), number
        assert text == whole
        assert "\N{REPLACEMENT CHARACTER}" not in pieces[0][-1:] or len(pieces) == 1


@pytest.mark.parametrize("fit", [True, False])
def test_together_each_gets_what_it_gets_alone(lm: Any, fit: bool) -> None:
    decoder = decoder_of(lm, fit=fit)
    for number, options in enumerate(MIXED):
        list(decoder.selector(job_of(str(number), options=options, prompt="Once " * (number + 1))))
    texts = answers(drained(decoder))
    for number, options in enumerate(MIXED):
        prompt = "Once " * (number + 1)
        assert texts[str(number)] == lm.generate(prompt, raw=True, **options).text


def test_usage_counts_visible_tokens(lm: Any) -> None:
    decoder = decoder_of(lm)
    (taken,) = decoder.selector(job_of("a"))
    assert taken.prompt_tokens == 4
    (ended,) = (one for one in drained(decoder) if isinstance(one, Ended))
    whole = lm.generate("Once", raw=True, max_new_tokens=16)
    told = (ended.completion_tokens, ended.finish_reason, ended.forwards)
    assert told == (len(whole.tokens), whole.finish_reason, whole.forwards)


def test_a_stop_string_cuts_the_text_and_frees_the_row(lm: Any) -> None:
    whole = lm.generate("Once", raw=True, max_new_tokens=40).text
    stop = whole[4:6]
    decoder = decoder_of(lm)
    list(decoder.selector(job_of("a", options={"max_new_tokens": 40}, stop=(stop, "never"))))
    said = drained(decoder)
    ended = said[-2]
    assert answers(said)["a"] == whole[: whole.index(stop)]
    assert ended.finish_reason == "stop"
    assert ended.completion_tokens <= whole.index(stop) + 1
    assert ended.forwards < 40
    assert not decoder.seated


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    assert _withheld("one two E", ("END", "x")) == "one two "
    assert _withheld("one two EN", ("END",)) == "one two "
    assert _withheld("one two EX", ("END",)) == "one two EX"


def test_infilling_streams_the_text_around(lm: Any) -> None:
    text = "Once <mask:6> upon <mask:4> end"
    decoder = decoder_of(lm)
    list(decoder.selector(job_of("a", prompt=text, infill=True)))
    said = drained(decoder)
    assert answers(said)["a"] == lm.infill(text).text
    assert next(one.text for one in said if isinstance(one, Told)).startswith("Once")


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
    decoder = decoder_of(lm)
    (refused,) = decoder.selector(job_of("a", **more))
    assert isinstance(refused, Refused)
    assert refused.status == 400
    assert param is None or refused.param == param
    assert "antigravity" not in sys.modules
    assert not decoder.busy


def test_without_a_length_there_is_room_for_what_fits(lm: Any) -> None:
    made = prepare(lm, Job(id="a", prompt="x" * 100), Limits(), length=128)
    assert made.request.plan.length == 28
    made = prepare(lm, Job(id="a", prompt="x"), Limits(new_tokens=48, steps=24), length=128)
    assert made.request.plan.length == 24


def test_a_client_that_goes_away_frees_its_row_before_the_next_step(lm: Any) -> None:
    decoder = decoder_of(lm, rows=1)
    list(decoder.selector(job_of("a")))
    list(decoder.selector(job_of("b")))
    said = list(decoder.step())
    assert [one.id for one in said if isinstance(one, Seated)] == ["a"]
    list(decoder.selector(Drop("a")))
    said = list(decoder.step())
    assert [one.id for one in said if isinstance(one, Seated)] == ["b"]
    list(decoder.selector(Drop("b")))
    list(decoder.selector(Drop("nobody")))
    assert not decoder.busy
    (beat,) = decoder.step()
    assert beat == Beat(0, 0, 0, beat.seconds)


def test_clients_take_turns(lm: Any) -> None:
    queue = Queue()
    for id, client in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")]:
        job = job_of(id, client=client)
        queue.add(Teller(lm, job, prepare(lm, job, Limits(), length=64)))
    queue.remove("a2")
    order = []
    while teller := queue.next():
        order.append(teller.job.id)
    assert order == ["a1", "b1", "a3", "b2"]


def test_lanes_are_as_large_as_what_is_in_them(lm: Any) -> None:
    lanes = Lanes(lm.model, rows=4, length=128, steps=64, fit=True)
    request = prepare(lm, job_of("a"), Limits(), length=128).request
    seats = [lanes.admit(request) for _ in range(4)]
    assert [lane.rows for lane in lanes.lanes] == [1, 1, 2]
    assert {lane.length for lane in lanes.lanes} == {32}
    assert (lanes.busy, lanes.free) == (4, 0)
    for lane, seat in seats:
        lane.release(seat)
    lanes.settle()
    assert lanes.lanes == []
    one = Lanes(lm.model, rows=4, length=128, steps=64, fit=False)
    one.admit(request)
    one.admit(request)
    assert [(lane.rows, lane.length) for lane in one.lanes] == [(4, 128)]


class Narrow:
    """A model that has memory for so many rows."""

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
    decoder = decoder_of(narrow)
    for id in "abcd":
        list(decoder.selector(job_of(id)))
    said = drained(decoder)
    failed = {one.id: one for one in said if isinstance(one, Refused)}
    assert failed.keys() == {"c", "d"}
    assert {(one.status, one.code) for one in failed.values()} == {(503, "out_of_memory")}
    assert {one.id for one in said if isinstance(one, Ended)} == {"a", "b"}
    assert decoder.lanes.rows == 3
    list(decoder.selector(job_of("e")))
    assert [one.id for one in drained(decoder) if isinstance(one, Ended)] == ["e"]


def test_a_step_that_fails_three_times_running_ends_the_process(lm: Any) -> None:
    broken = wavefront.LM(Narrow(lm.model, 0, RuntimeError("device lost")), lm.tokenizer)
    decoder = decoder_of(broken, rows=1)
    for attempt in range(3):
        list(decoder.selector(job_of(str(attempt))))
        said = []
        if attempt == 2:
            with pytest.raises(RuntimeError, match="device lost"):
                said += decoder.step()
        else:
            said += decoder.step()
            (refused,) = (one for one in said if isinstance(one, Refused))
            assert (refused.status, refused.code) == (500, "decode_failed")


def test_nan_is_the_request_s_own_error(lm: Any) -> None:
    class Spoilt(Narrow):
        def hidden(self, tokens: Any, *rest: Any, **more: Any) -> Any:
            return self._model.hidden(tokens, *rest, **more) * float("nan")

    spoilt = wavefront.LM(Spoilt(lm.model, 9, ValueError()), lm.tokenizer)
    decoder = decoder_of(spoilt)
    list(decoder.selector(job_of("a")))
    (refused,) = (one for one in drained(decoder) if isinstance(one, Refused))
    assert refused.code == "numerical_error"


def test_a_cache_serves_too(lm: Any) -> None:
    limits = Limits(rows=3, length=128)
    decoder = Decoder(lm, limits, fit=True, cache="wave(refresh=4)")
    for id in "abcd":
        list(decoder.selector(job_of(id)))
    said = drained(decoder)
    assert {one.id for one in said if isinstance(one, Ended)} == set("abcd")
    own = job_of("e", options={"cache": "wave(refresh=9)"})
    (refused,) = decoder.selector(own)
    assert refused.status == 400


@pytest.mark.parametrize("cache", [None, "wave(refresh=4)"])
def test_steps_that_own_their_memory_serve_the_same(
    lm: Any, cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Static, "KEPT", 5)  # so that some are dropped, and made again
    limits, found, made = Limits(rows=3, length=128), [], []
    for calls in (lambda: eagerly, lambda: made.append(Static()) or made[-1]):
        decoder = Decoder(lm, limits, fit=False, cache=cache, calls=calls)
        decoder.warm()
        assert not decoder.busy
        for number, options in enumerate(MIXED):
            list(decoder.selector(job_of(str(number), options=options)))
        found.append(answers(drained(decoder)))
    assert found[0] == found[1]
    assert len(found[0]) == len(MIXED)
    assert len(made) == 1
    assert len(made[0]._made) == 5


def test_what_only_a_gpu_can_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    class Pipe:
        def send(self, messages: list[Any]) -> None:
            said.extend(messages)

    monkeypatch.setattr("signal.signal", lambda *_: None)  # this is no process of its own
    run(Settings(source=Source(model="toy", device="cpu", capture=True)), Pipe())
    assert "captured on CUDA" in said[0].message


# Events


def events_of(decoder: Decoder, job: Job) -> list[dict[str, Any]]:
    (taken,) = decoder.selector(job)
    assert isinstance(taken, Taken), taken
    said = drained(decoder)
    told = [taken.first, *(one.event for one in said if isinstance(one, Told | Ended))]
    return [event for event in told if event is not None]


@pytest.mark.parametrize("strategy", ["wavefront(size=4)", "block(size=4)", "tbd(size=8, drop=2)"])
def test_events_tell_the_whole_decode(lm: Any, strategy: str) -> None:
    options = {"strategy": strategy, "max_new_tokens": 16, "eos": "keep"}
    job = job_of("a", options=options, events=True, measure=True)
    first, *steps = events_of(decoder_of(lm), job)
    assert first["places"] == 16
    board: dict[int, int] = {}
    for step in steps:
        assert {place for place, _ in step["sure"]} == set(range(16)) - set(board)
        for place, token, _, p in step["commits"]:
            board[place] = token
            assert 0 <= p <= 1
        for place in step["back"]:
            del board[place]
    full = lm.generate("Once", raw=True, trace="full", **options)
    assert [board[place] for place in range(len(full.tokens))] == full.tokens
    assert board.keys() == set(range(16))
    measured = mhco.measure(full.trace)
    told = steps[-1]["end"]["mhco"]
    assert told["candidates"] == pytest.approx(measured.candidates.mean(), abs=1e-4)
    assert told["extent"] == pytest.approx(measured.extent.mean(), abs=1e-4)
    assert steps[-1]["end"]["text"] == full.text


def test_measuring_does_not_change_the_answer(lm: Any) -> None:
    for options in MIXED[:3]:
        texts = {
            answers([*decoder.selector(job_of("a", options=options, **more)), *drained(decoder)])[
                "a"
            ]
            for more in ({}, {"events": True}, {"events": True, "measure": True})
            for decoder in [decoder_of(lm)]
        }
        assert len(texts) == 1


def test_too_much_to_measure_is_refused(lm: Any) -> None:
    decoder = decoder_of(lm, length=2000)
    options = {"max_new_tokens": 1000, "steps": 1000}
    (refused,) = decoder.selector(job_of("a", options=options, measure=True, events=True))
    assert isinstance(refused, Refused)
    assert "measure" in refused.message


def ticket_of(lm: Any, job: Job) -> Ticket:
    """A ticket that has heard a whole decode."""
    decoder = decoder_of(lm)

    async def heard() -> Ticket:
        ticket = Ticket(job)
        for message in [*decoder.selector(job), *drained(decoder)]:
            if not isinstance(message, Beat):
                ticket.hear(message)
        return ticket

    return asyncio.run(heard())


def test_a_fork_goes_on_from_the_board_of_that_step(lm: Any) -> None:
    ticket = ticket_of(lm, job_of("a", events=True, options={"eos": "keep"}))
    whole = lm.generate("Once", raw=True, max_new_tokens=16)
    board = ticket.board_at(6)
    assert sum(board.holes) == 10
    decoder = decoder_of(lm)
    options = {"steps": 10, "eos": "keep", "strategy": "standard"}
    job = Job(id="f", fork=Fork(board, {3: "zz"}), options=options, events=True)
    first, *steps = events_of(decoder, job)
    given = {place: token for place, token, *_ in first["given"]}
    z = lm.tokenizer.encode("z")[0]
    assert given[3] == given[4] == z
    kept = {place: token for place, token in given.items() if place not in (3, 4)}
    assert all(whole.tokens[place] == token for place, token in kept.items())
    final = steps[-1]["end"]
    assert "zz" in final["text"]
    filled = [place for step in steps for place, *_ in step["commits"]]
    assert sorted([*filled, *given]) == list(range(16))
    # Nothing changed, same strategy of no memory: the rest is the rest.
    options = {"max_new_tokens": 16, "strategy": "standard", "eos": "keep"}
    plain = ticket_of(lm, job_of("a", events=True, options=options))
    same = Job(
        id="g", fork=Fork(plain.board_at(6), {}), options=options | {"steps": 10}, events=True
    )
    same = replace(same, options={k: v for k, v in same.options.items() if k != "max_new_tokens"})
    _, *steps = events_of(decoder, same)
    assert steps[-1]["end"]["text"] == lm.generate("Once", raw=True, **options).text


@pytest.mark.parametrize("put", [{99: "a"}, {15: "ab"}, {0: ""}, {0: 99999}, {0: 257}])
def test_a_fork_that_cannot_be_is_refused(lm: Any, put: Any) -> None:
    ticket = ticket_of(lm, job_of("a", events=True))
    job = Job(id="f", fork=Fork(ticket.board_at(3), put), options={"steps": 4}, events=True)
    (refused,) = decoder_of(lm).selector(job)
    assert isinstance(refused, Refused)
    assert refused.status == 400


def test_what_has_ended_is_kept_for_a_while_and_not_beyond_a_size(lm: Any) -> None:
    tickets = [ticket_of(lm, job_of(id, events=True)) for id in "abc"]
    shelf = Shelf(seconds=1000, most=2 * tickets[0].size + 10)
    for ticket in tickets:
        shelf.open[ticket.id] = ticket
        shelf.close(ticket)
    assert [shelf.find(id) is not None for id in "abc"] == [False, True, True]
    brief = Shelf(seconds=0, most=1 << 30)
    brief.open["a"] = tickets[0]
    brief.close(tickets[0])
    assert brief.find("a") is None


# The border


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await Reply({"size": size, "id": scope["state"]["request_id"]})(scope, receive, send)


def guarded(path: str = "/v1/models", method: str = "GET", **more: Any) -> httpx.Response:
    settings = {
        "source": Source(model="toy"),
        "limits": Limits(body=100),
        **more.pop("settings", {}),
    }
    app = Guard(_echo, Settings(**settings), frozenset(("/", "/page.css")))
    base = more.pop("base", "http://localhost:8000")

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
            return await client.request(method, path, **more)

    return asyncio.run(asked())


def test_the_key_is_wanted_everywhere_but_at_the_probes() -> None:
    keyed = {"settings": {"api_key": "secret"}}
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/v1/wavefront/decodes/x"):
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = guarded(path, headers=wrong, **keyed)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        right = guarded(path, headers={"authorization": "Bearer secret"}, **keyed)
        assert right.status_code == 200
    for path in ("/health", "/ready", "/", "/page.css"):
        assert guarded(path, **keyed).status_code == 200
    opened = {"settings": {"api_key": "secret", "open_metrics": True}}
    assert guarded("/metrics", **opened).status_code == 200
    assert guarded("/v1/models").status_code == 200  # there is no key


def test_the_host_must_be_ours_on_loopback() -> None:
    assert guarded(base="http://evil.example").status_code == 421
    for base in ("http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost"):
        assert guarded(base=base).status_code == 200
    named = {"settings": {"hosts": ("box.local",)}}
    assert guarded(base="http://box.local:1", **named).status_code == 200
    assert guarded(base="http://any.example", settings={"host": "0.0.0.0"}).status_code == 200
    both = {"settings": {"host": "0.0.0.0", "hosts": ("box.local",)}}
    assert guarded(base="http://any.example", **both).status_code == 421
    for base in ("http://box.local", "http://127.0.0.1:8000"):  # the second is a probe from inside
        assert guarded(base=base, **both).status_code == 200


def test_bodies_are_json_and_small() -> None:
    json = {"content-type": "application/json; charset=utf-8"}
    assert guarded(method="POST", content=b"x" * 100, headers=json).json()["size"] == 100
    assert guarded(method="POST", content=b"x" * 101, headers=json).status_code == 413

    async def pieces() -> Any:
        for _ in range(11):
            yield b"x" * 10

    assert guarded(method="POST", content=pieces(), headers=json).status_code == 413
    assert guarded(method="POST", content=b"{}").status_code == 415
    plain = {"content-type": "text/plain"}
    assert guarded(method="POST", content=b"{}", headers=plain).status_code == 415


def test_request_ids_are_honoured_when_sane() -> None:
    assert guarded(headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for wild in ("a b", "x" * 129, "<script>", ""):
        answer = guarded(headers={"x-request-id": wild})
        assert len(answer.headers["x-request-id"]) == 32
        assert answer.json()["id"] == answer.headers["x-request-id"]


def test_answers_forbid_what_a_page_need_not_do() -> None:
    headers = guarded().headers
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
    for wrong in ({"port": 99999}, {"lanes": "two"}, {"api_key": " "}, {"api_key": "é"}):
        with pytest.raises(OptionError):
            Settings(source=source, **wrong)
    for wrong in ({"rows": 0}, {"queue": -1}, {"seconds": 0}, {"body": 1.5}):
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
    decoder = decoder_of(lm, rows=3, length=256)
    questions = ("I have two figs and a pear. How many fruits?", "What is 17 + 25?")
    kinds: tuple[dict[str, Any], ...] = (
        {"strategy": "wavefront(size=8, radius=2)", "max_new_tokens": 24},
        {"strategy": "block(size=8)", "max_new_tokens": 32, "steps": 16, "eos": "stop"},
        {"temperature": 0.7, "seed": 11, "max_new_tokens": 16},
    )
    asked = {f"{q} {k}": (questions[q], kinds[k]) for q in range(2) for k in range(3)}
    for id, (question, options) in asked.items():
        messages = [{"role": "user", "content": question}]
        (taken,) = decoder.selector(Job(id=id, messages=messages, options=options))
        assert isinstance(taken, Taken)
    texts = answers(drained(decoder))
    for id, (question, options) in asked.items():
        assert texts[id] == lm.generate(question, **options).text
