"""The fields of OpenAI's API, sent by its client to a real server, streamed and not."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, NamedTuple

import httpx
import jsonschema
import openai
import pydantic
import pytest
from helpers.commands import save_talker
from helpers.servers import PATIENCE, Running, serving
from openai.resources.chat.completions import Completions as Chat
from openai.resources.completions import Completions

import wavefront
from wavefront.server.request_models import UNSUPPORTED, ChatBody, CompletionBody

LENGTH = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_talker(tmp_path_factory.mktemp("talker"), max_length=1024)


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[Running]:
    with serving("-m", folder, "--name", "talker", "--rows", "4", "--max-choices", "5") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    url = f"{server.url}/v1"
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="module")
def alone(folder: str) -> wavefront.LM:
    return wavefront.load(folder)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": LENGTH}
    return client.chat.completions.create(model="talker", **{**given, **fields})


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"prompt": "Hi", "max_tokens": LENGTH}
    return client.completions.create(model="talker", **{**given, **fields})


def test_every_field_of_the_client_is_known() -> None:
    """A field is supported, has neutral values, or is refused by name; none is a surprise."""
    local = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for body, create in ((ChatBody, Chat.create), (CompletionBody, Completions.create)):
        names = inspect.signature(create).parameters
        assert len(names) > 15
        assert set(names) - local - set(body.model_fields) - set(UNSUPPORTED) == set()


# Log-probabilities


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client: openai.OpenAI, alone: wavefront.LM, stream: bool) -> None:
    want = alone.generate("Hi", max_new_tokens=LENGTH, logprobs=3)
    assert want.logprobs is not None
    answer = chat(client, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        content = [one for c in choices if c.logprobs for one in c.logprobs.content]
        text = "".join(c.delta.content or "" for c in choices)
    else:
        content = answer.choices[0].logprobs.content
        text = answer.choices[0].message.content
    assert text == want.text
    assert [one.token for one in content] == [one.text for one in want.logprobs]
    for one, other in zip(content, want.logprobs, strict=True):
        assert other.logprob is not None
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [each.token for each in one.top_logprobs] == [each.text for each in other.top]
        if one.bytes is not None:
            assert bytes(one.bytes).decode() == one.token


@pytest.mark.slow
def test_chat_without_logprobs_has_none(client: openai.OpenAI) -> None:
    for fields in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
        assert chat(client, **fields).choices[0].logprobs is None
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs") as caught:
        chat(client, top_logprobs=2)
    assert caught.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, logprobs=True, top_logprobs=21)
    assert caught.value.param == "top_logprobs"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs(client: openai.OpenAI, alone: wavefront.LM, stream: bool) -> None:
    want = alone.generate("Hi", raw=True, max_new_tokens=LENGTH, logprobs=2)
    assert want.logprobs is not None
    answer = complete(client, logprobs=2, stream=stream)
    parts = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    found = [part.logprobs for part in parts if part.logprobs is not None]
    tokens = [token for one in found for token in one.tokens]
    assert tokens == [one.text for one in want.logprobs]
    offsets = [offset for one in found for offset in one.text_offset]
    assert offsets == [len("".join(tokens[:n])) for n in range(len(tokens))]
    numbers = [number for one in found for number in one.token_logprobs]
    assert numbers == pytest.approx([one.logprob for one in want.logprobs], abs=1e-5)
    assert all(len(top) <= 2 for one in found for top in one.top_logprobs)
    assert complete(client, logprobs=0).choices[0].logprobs.top_logprobs is None


@pytest.mark.slow
def test_logprobs_end_with_the_text_at_a_stop_string(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=0).choices[0]
    stop = whole.text[5:7]
    cut = complete(client, logprobs=0, stop=stop).choices[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    count = len(cut.logprobs.tokens)
    assert cut.logprobs.tokens == whole.logprobs.tokens[:count]
    assert len("".join(cut.logprobs.tokens)) >= len(cut.text)
    assert len("".join(cut.logprobs.tokens[:-1])) < max(1, len(cut.text))
    chunks = [c.choices[0] for c in complete(client, logprobs=0, stop=stop, stream=True)]
    streamed = [token for c in chunks if c.logprobs for token in c.logprobs.tokens]
    assert streamed == cut.logprobs.tokens


@pytest.mark.slow
def test_infill_lists_given_tokens_without_a_logprob(client: openai.OpenAI) -> None:
    body = {"infill": True}
    made = client.completions.create(
        model="talker", prompt="a <mask:3> b", logprobs=1, extra_body=body
    ).choices[0]
    assert made.logprobs is not None
    tokens, numbers = made.logprobs.tokens, made.logprobs.token_logprobs
    assert tokens is not None
    assert numbers is not None
    assert sum(number is not None for number in numbers) <= 3
    assert sum(number is None for number in numbers) >= 3


# Choices and seeds


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_answers_with_consecutive_seeds(
    client: openai.OpenAI, alone: wavefront.LM, stream: bool
) -> None:
    want = [
        alone.generate("Hi", max_new_tokens=LENGTH, temperature=1.0, seed=7 + n, logprobs=0)
        for n in range(3)
    ]
    assert len({one.text for one in want}) > 1
    options: dict[str, Any] = {"n": 3, "seed": 7, "temperature": 1.0, "logprobs": True}
    if not stream:
        answer = chat(client, **options)
        assert [one.index for one in answer.choices] == [0, 1, 2]
        assert [one.message.content for one in answer.choices] == [one.text for one in want]
        assert [one.finish_reason for one in answer.choices] == [one.finish_reason for one in want]
        usage = answer.usage
    else:
        chunks = list(chat(client, **options, stream=True, stream_options={"include_usage": True}))
        texts, counts, ends = [""] * 3, [0] * 3, [""] * 3
        for one in (choice for chunk in chunks for choice in chunk.choices):
            texts[one.index] += one.delta.content or ""
            counts[one.index] += len(one.logprobs.content) if one.logprobs else 0
            ends[one.index] = one.finish_reason or ends[one.index]
        assert texts == [one.text for one in want]
        assert counts == [len(one.tokens) for one in want]
        assert ends == [one.finish_reason for one in want]
        assert len({chunk.id for chunk in chunks}) == 1
        usage = chunks[-1].usage
    assert usage.prompt_tokens == want[0].prompt_tokens
    assert usage.completion_tokens == sum(len(one.tokens) for one in want)


@pytest.mark.slow
def test_choices_at_temperature_0_are_equal(client: openai.OpenAI) -> None:
    texts = [one.text for one in complete(client, n=2).choices]
    assert texts[0] == texts[1] == complete(client).choices[0].text


@pytest.mark.slow
def test_too_many_choices_are_refused(client: openai.OpenAI, server: Running) -> None:
    for n in (6, 128):
        with pytest.raises(openai.BadRequestError, match="n must be at most 5 here") as caught:
            chat(client, n=n)
        assert caught.value.param == "n"
    for n in (0, 129, -1):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, n=n)
        assert caught.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="events needs n"):
        chat(client, n=2, extra_body={"events": True})
    with pytest.raises(openai.BadRequestError, match="strategy"):
        chat(client, n=3, extra_body={"strategy": "nothing"})
    assert server.metric("num_requests_running") == server.metric("num_requests_waiting") == 0


@pytest.mark.slow
def test_disconnect_cancels_every_choice(client: openai.OpenAI, server: Running) -> None:
    stream = chat(client, n=5, max_tokens=200, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_for(lambda: server.metric("num_requests_running") == 0)
    assert server.metric("num_requests_waiting") == 0


@pytest.mark.slow
def test_error_of_one_choice_ends_the_others(client: openai.OpenAI, server: Running) -> None:
    with pytest.raises(openai.APIError, match="seconds"):
        for _ in chat(client, n=4, max_tokens=200, stream=True, extra_body={"timeout": 0.2}):
            pass
    with pytest.raises(openai.APIStatusError) as caught:
        chat(client, n=4, max_tokens=200, extra_body={"timeout": 0.05})
    assert caught.value.status_code == 504
    server.wait_for(lambda: server.metric("num_requests_running") == 0)


# Logit bias


@pytest.mark.slow
def test_logit_bias(client: openai.OpenAI, alone: wavefront.LM) -> None:
    plain = chat(client, logprobs=True)
    token = alone.generate("Hi", max_new_tokens=LENGTH).tokens[0]
    want = alone.generate("Hi", max_new_tokens=LENGTH, logit_bias={token: -100})
    biased = chat(client, logit_bias={str(token): -100})
    assert biased.choices[0].message.content == want.text
    assert biased.choices[0].message.content != plain.choices[0].message.content
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in chat(client, logit_bias={str(token): -100}, stream=True)
    )
    assert text == want.text
    assert chat(client, logit_bias={}).choices[0].message.content == (
        plain.choices[0].message.content
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "bias", [{"x": 1}, {"-1": 1}, {"1": 101}, {"1": True}, {"99999999": 1}, [1], {"1": "2"}]
)
def test_wrong_logit_bias_is_refused(client: openai.OpenAI, bias: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body={"logit_bias": bias})
    assert caught.value.param == "logit_bias"


# Stop strings


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strategy", ["standard", "left_to_right", "wavefront(size=4)"])
def test_stop_strings_cut_across_token_borders(
    client: openai.OpenAI, alone: wavefront.LM, strategy: str, stream: bool
) -> None:
    whole = alone.generate("Hi", raw=True, max_new_tokens=LENGTH, strategy=strategy).text
    stops = [whole[6:9], whole[3:8], "never in the text"]
    expected = whole[: min(whole.index(stop) for stop in stops[:2])]
    for stop in (stops, stops[1]):
        if isinstance(stop, str):
            expected = whole[: whole.index(stop)]
        made = complete(client, stop=stop, stream=stream, extra_body={"strategy": strategy})
        parts = [chunk.choices[0] for chunk in made] if stream else [made.choices[0]]
        assert "".join(part.text for part in parts) == expected
        assert parts[-1].finish_reason == "stop"


# Answers you can parse


class Fruit(pydantic.BaseModel):
    name: Literal["fig", "pear"]
    count: Annotated[int, pydantic.Field(ge=0, le=99)]


TOOL = openai.pydantic_function_tool(Fruit, name="count_fruit", description="Counts fruit.")
OTHER = openai.pydantic_function_tool(Fruit, name="other")
NAMED = {"type": "function", "function": {"name": "count_fruit"}}
ASK: dict[str, Any] = {
    "model": "talker",
    "messages": [{"role": "user", "content": "Two figs."}],
    "max_tokens": 40,
}


def streamed(client: openai.OpenAI, **fields: Any) -> Any:
    """Return the choice that the client puts together from a stream."""
    with client.chat.completions.stream(**ASK | fields) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0]


@pytest.mark.slow
def test_client_parses_an_answer_into_a_pydantic_model(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"response_format": Fruit, "temperature": 1.0, "seed": 5}
    whole = client.chat.completions.parse(**ASK, **options).choices[0]
    assert isinstance(whole.message.parsed, Fruit)
    assert whole.finish_reason == "stop"
    part = streamed(client, **options)
    assert part.message.parsed == whole.message.parsed
    assert part.finish_reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "reason"), [(NAMED, "stop"), ("required", "tool_calls")])
def test_client_parses_a_tool_call(client: openai.OpenAI, choice: Any, reason: str) -> None:
    tools = [TOOL] if choice == "required" else [OTHER, TOOL]
    options: dict[str, Any] = {"tools": tools, "tool_choice": choice}
    whole = client.chat.completions.parse(**ASK, **options).choices[0]
    part = streamed(client, **options)
    for made in (whole, part):
        assert made.message.content is None
        (call,) = made.message.tool_calls or [None]
        assert call is not None
        assert call.function.name == "count_fruit"
        assert call.id.startswith("call_")
        assert isinstance(call.function.parsed_arguments, Fruit)
        assert made.finish_reason == reason
    calls = [(made.message.tool_calls or [])[0].function.arguments for made in (whole, part)]
    assert calls[0] == calls[1]


@pytest.mark.slow
def test_tool_choice_none_answers_with_text(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(**ASK).choices[0].message
    made = client.chat.completions.create(**ASK, tools=[TOOL], tool_choice="none").choices[0]
    assert made.message.content == plain.content
    assert made.message.tool_calls is None


@pytest.mark.slow
def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASK, response_format={"type": "json_object"}, n=2)
    for one in made.choices:
        assert isinstance(json.loads(one.message.content), dict)
        assert one.finish_reason == "stop"


@pytest.mark.slow
def test_regex_and_choices_constrain_an_answer(client: openai.OpenAI) -> None:
    made = complete(client, max_tokens=12, extra_body={"regex": "[a-c]{3}-[0-9]+"})
    assert re.fullmatch("[a-c]{3}-[0-9]+", made.choices[0].text)
    made = complete(client, max_tokens=12, extra_body={"choices": ["yes", "no"]})
    assert made.choices[0].text in ("yes", "no")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"tools": [TOOL]}, "tool_choice", "cannot choose"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice", "cannot choose"),
        ({"tools": [TOOL, OTHER], "tool_choice": "required"}, "tool_choice", "name the function"),
        ({"tool_choice": NAMED}, "tool_choice", "not in tools"),
        ({"response_format": {"type": "json_object"}, "max_tokens": 1}, "response_format", "few"),
        ({"response_format": {"type": "json_object"}, "stop": "a"}, "stop", "cut the answer"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        (
            {
                "response_format": {"type": "json_object"},
                "tools": [TOOL],
                "tool_choice": NAMED,
            },
            "response_format",
            "combined",
        ),
    ],
    ids=str,
)
def test_impossible_formats_are_refused(
    client: openai.OpenAI, fields: Any, param: str, sentence: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=sentence) as caught:
            client.chat.completions.create(**ASK | fields, stream=stream)
        assert caught.value.param == param


SLOW_SCHEMA: dict[str, Any] = {"type": "string", "pattern": "(a{1,500}){1,500}"}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"$ref": "#"},
    {"type": "object", "patternProperties": {".*": {}}},
    SLOW_SCHEMA,
    {"not": {}},
    {"type": "fruit"},
)


@pytest.mark.slow
def test_unsupported_schemas_are_refused_and_the_server_lives(
    client: openai.OpenAI, server: Running
) -> None:
    for schema in SCHEMAS:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**ASK, response_format=form)
        assert caught.value.param == "response_format"
    assert server.metric("engine_restarts_total") == 0
    assert chat(client).choices[0].message.content is not None


@pytest.mark.slow
def test_known_constraint_waits_for_no_compilation(client: openai.OpenAI, server: Running) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SLOW_SCHEMA}}
    known = {"extra_body": {"regex": "(ab|cd){3}"}}
    complete(client, **known)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.chat.completions.create, **ASK, response_format=form)
        server.wait_for(lambda: server.metric("num_requests_waiting") == 1)
        assert re.fullmatch("(ab|cd){3}", complete(client, **known).choices[0].text)
        assert not slow.done()
        with pytest.raises(openai.BadRequestError, match=r"takes \w+ than \d+ seconds"):
            slow.result()


@pytest.mark.slow
def test_200_constrained_requests_at_once(folder: str) -> None:
    limits = ("--rows", "16", "--queue", "400", "--client-rows", "16", "--client-queue", "400")
    with serving("-m", folder, "--name", "talker", *limits) as server:
        url = f"{server.url}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=3 * PATIENCE)

        def request(number: int) -> Fruit | None:
            # Different lengths and steps share a batch.
            length = (40, 64, 96)[number % 7 % 3]
            own = {**ASK, "max_tokens": length, "temperature": 1.0, "seed": number}
            options: dict[str, Any] = {"extra_body": {"steps": length // (1 + number % 4)}}
            if number % 10 == 9:  # an answer without a constraint
                client.chat.completions.create(**own, **options)
                return None
            if number % 3 == 0:
                made = streamed(client, **own, response_format=Fruit, **options).message.parsed
            elif number % 3 == 1:
                answer = client.chat.completions.parse(**own, response_format=Fruit, **options)
                made = answer.choices[0].message.parsed
            else:
                answer = client.chat.completions.parse(
                    **own, tools=[TOOL], tool_choice=NAMED, **options
                )
                call = (answer.choices[0].message.tool_calls or [])[0]
                made = call.function.parsed_arguments
            assert isinstance(made, Fruit)
            return made

        with ThreadPoolExecutor(200) as pool:
            found = list(pool.map(request, range(200)))
        assert len({one.count for one in found if one is not None}) > 3
        assert server.metric("engine_restarts_total") == 0


# Interrupted answers: what the client gets never looks complete unless it is


BASKET: dict[str, Any] = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 20}},
    "required": ["words"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "basket", "schema": BASKET}}
# Constrained steps of a long answer, so that there is time to interrupt them.
LONG: dict[str, Any] = {**ASK, "max_tokens": 400, "steps": 400, "response_format": FORM}
PATHS = {
    "format": {},
    "tool": {
        "response_format": None,
        "tools": [{"type": "function", "function": {"name": "fill", "parameters": BASKET}}],
        "tool_choice": {"type": "function", "function": {"name": "fill"}},
    },
}


def is_basket(text: str) -> bool:
    """Return whether a text satisfies the schema."""
    try:
        jsonschema.validate(json.loads(text), BASKET)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


class Heard(NamedTuple):
    """What a client got from a stream."""

    text: str  # of the answer, or the arguments of the tool
    reasons: list[str]  # every finish_reason
    errors: list[str]  # the code of every error
    id: str = ""


def listen(lines: Iterable[str]) -> Heard:
    """Put the events of a stream together."""
    text, reasons, errors, id = "", [], [], ""
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            errors.append(event["error"]["code"])
            continue
        id = event["id"]
        for choice in event["choices"]:
            delta = choice["delta"]
            calls = delta.get("tool_calls") or []
            text += (delta.get("content") or "") + "".join(
                call["function"].get("arguments") or "" for call in calls
            )
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return Heard(text, reasons, errors, id)


def check_honest(heard: Heard) -> bool:
    """Require a complete answer or an error, and return whether it was interrupted."""
    if heard.errors:
        assert heard.reasons == []
        return True
    assert heard.reasons in (["stop"], ["tool_calls"])
    assert is_basket(heard.text)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("kind", PATHS)
def test_time_limit_is_an_error_and_not_an_answer(server: Running, kind: str) -> None:
    with server.paused():
        late = server.post("/v1/chat/completions", **LONG | PATHS[kind], timeout=0.05)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    assert "choices" not in late.json()
    whole = server.post("/v1/chat/completions", **LONG | PATHS[kind]).json()["choices"][0]
    assert whole["finish_reason"] == "stop"
    calls = whole["message"].get("tool_calls") or [{"function": {"arguments": ""}}]
    assert is_basket(whole["message"]["content"] or calls[0]["function"]["arguments"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", PATHS)
def test_time_limit_ends_a_stream_with_an_error(server: Running, kind: str) -> None:
    body, heard = LONG | PATHS[kind] | {"timeout": 1.0, "stream": True}, Heard("", [], [])
    for _ in range(10):  # a fast decode may end before it is paused
        with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            with server.paused():
                heard = listen([first, *lines])
        if check_honest(heard):
            break
    assert heard.errors == ["timeout"]
    assert not is_basket(heard.text)


def finished(server: Running) -> float:
    """Return how many requests ended with an answer."""
    line = r'^wavefront:request_success_total{reason="(?:stop|length)"} (\S+)$'
    return sum(map(float, re.findall(line, server.client.get("/metrics").text, re.M)))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_leaves_no_answer(server: Running, stream: bool) -> None:
    """Nobody reads the rest: the request is cancelled and never counts as a finished one."""
    ended, cancelled, heard = finished(server), False, Heard("", [], [])
    body = LONG | {"stream": stream, "events": stream}
    url = server.client.base_url
    for _ in range(10):  # a fast decode may end before it is paused
        with httpx.Client(base_url=url, timeout=PATIENCE if stream else 0.5) as client:
            if stream:
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    lines = (line for line in answer.iter_lines() if line)
                    heard = listen([next(lines)])
                    with server.paused():
                        answer.close()
            else:
                with server.paused(), pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/chat/completions", json=body)
        for name in ("num_requests_waiting", "num_requests_running"):
            server.wait_for(lambda name=name: server.metric(name) == 0)
        now = finished(server)
        cancelled, ended = now == ended, now
        if stream:
            events = server.events(heard.id)
            ends = [event["end"] for event in events if "end" in event]
            assert all(is_basket(end["text"]) for end in ends)
            assert cancelled == (not ends)
        if cancelled:
            break
    assert cancelled
    assert heard.reasons == []


# Everything else


NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "n": 1,
    "user": "someone",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "seed": 3,
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "reasoning_effort": "none",
    "verbosity": "medium",
    "prompt_cache_key": "key",
    "safety_identifier": "someone",
    "top_p": 1,
    "temperature": 0,
}


@pytest.mark.slow
def test_neutral_fields_change_nothing(client: openai.OpenAI) -> None:
    plain = chat(client).choices[0].message.content
    for name, value in NEUTRAL.items():
        assert chat(client, **{name: value}).choices[0].message.content == plain
    assert chat(client, **NEUTRAL).choices[0].message.content == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"modalities": ["audio"]},
        {"prediction": {"type": "content", "content": "x"}},
        {"store": True},
        {"web_search_options": {}},
        {"functions": [{"name": "f"}]},
        {"reasoning_effort": "high"},
    ],
    ids=str,
)
def test_fields_with_an_effect_elsewhere_are_refused(client: openai.OpenAI, fields: Any) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, **fields, stream=stream)
        assert caught.value.param == next(iter(fields))
        assert caught.value.code == "unsupported_field"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length_fields(client: openai.OpenAI, name: str) -> None:
    given: dict[str, Any] = {"max_tokens": None, name: 6, "extra_body": {"eos": "keep"}}
    answer = chat(client, **given, logprobs=True)
    assert len(answer.choices[0].logprobs.content) <= 6
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content)


# The server's own defaults


@pytest.mark.slow
def test_plain_client_gets_the_defaults_of_the_server(folder: str, alone: wavefront.LM) -> None:
    given = {
        "strategy": "wavefront(size=4)",
        "steps": 10,
        "eos": "keep",
        "cache": "wave(refresh=4)",
    }
    arguments = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    with serving("-m", folder, "--name", "talker", *arguments) as server:
        about = server.client.get("/v1/models").json()["data"][0]["wavefront"]
        assert about["defaults"] == given
        assert about["summary"] == ""  # only a built-in model has one
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        answer = chat(client)
        want = alone.generate("Hi", max_new_tokens=LENGTH, **given)
        assert answer.choices[0].message.content == want.text
        assert answer.usage.to_dict()["wavefront"]["forwards"] == want.forwards == 10
        other = chat(client, extra_body={"strategy": "standard", "steps": 4, "cache": "none"})
        want = alone.generate("Hi", max_new_tokens=LENGTH, strategy="standard", steps=4, eos="keep")
        assert other.choices[0].message.content == want.text


@pytest.mark.slow
def test_wrong_default_stops_the_server_with_one_sentence(folder: str) -> None:
    command = [sys.executable, "-m", "wavefront", "serve", "--port", "0", "-m", folder]
    ended = subprocess.run(
        [*command, "--strategy", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ended.returncode == 1
    assert "no strategy 'nothing'" in ended.stderr
    assert "Traceback" not in ended.stderr
