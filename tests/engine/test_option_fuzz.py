"""Every option with every odd value: one sentence or a decode, in time, and no harm to others."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.option_cases import (
    LITERALS,
    LONGEST_MESSAGE,
    OBJECTS,
    as_strategy,
    check_sentence,
    is_accepted,
    json_values,
    option_cases,
    spec_cases,
    spec_texts,
    time_limit,
)
from helpers.workers import make_worker

import wavefront
from wavefront.core import spec
from wavefront.core.errors import WavefrontError, quote
from wavefront.server.openai_format import APIError
from wavefront.server.request_builder import compile_automaton, encode_texts
from wavefront.server.request_models import (
    ChatBody,
    CompletionBody,
    DecodeBody,
    OpenAIBody,
    validate,
)
from wavefront.server.worker_messages import (
    Job,
    RequestFailed,
    RequestFinished,
    RequestProgress,
    constraint_option,
    has_text,
)
from wavefront.text.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")

PROMPT, TOKENS = "Hi", 5
FEW = 60  # cases of each path in the unit tests
LENGTHS = {"max_new_tokens", "gen_length", "max_tokens"}
TOTAL_SECONDS = 600  # of all cases of a test; they take half a minute on two busy cores
TOGETHER = 12  # requests that share a batch with a normal one


@contextmanager
def total_time_limit() -> Iterator[None]:
    """Fail if all cases of a test together take too long."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < TOTAL_SECONDS


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def decode(lm: wavefront.LM, options: dict[str, Any]) -> bool:
    """Decode with these options; return False if they are refused with a sentence."""
    given = {**options}
    if not given.keys() & LENGTHS:
        given["max_new_tokens"] = TOKENS

    def generate() -> None:
        made = lm.generate(PROMPT, raw=True, **given)  # pyright: ignore[reportArgumentType]
        assert isinstance(made.text, str)

    return is_accepted(generate, quote(options))


def library_cases() -> list[dict[str, Any]]:
    """Return the decode options of the library: objects, spec strings and plain options."""
    found: list[dict[str, Any]] = []
    for case in spec_cases((*LITERALS, *OBJECTS)):
        try:
            found.append(as_strategy(case.registry, case.build()))
        except WavefrontError as error:  # refused when it is created: nothing to decode
            check_sentence(error)
        except Exception as error:
            raise AssertionError(f"{case.name}.{case.option}={quote(case.value)}") from error
    return found + list(option_cases())


def refused_or_known(texts: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Resolve spec strings, and return the options of those that are accepted."""
    found = []
    for registry, text in texts:
        try:
            with time_limit():
                made = spec.resolve_builtin(text, registry)
            found.append(as_strategy(registry, repr(made)))
        except WavefrontError as error:
            check_sentence(error)
    return found


def sample(cases: list[Any], count: int) -> list[Any]:
    return random.Random(0).sample(cases, min(count, len(cases)))


def unique(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases without repetitions: many values of a spec mean the same object."""
    return list({str({n: shown(v) for n, v in case.items()}): case for case in cases}.values())


def shown(value: Any) -> str:
    """Return a text that is the same for an object and for its spec."""
    if isinstance(value, spec.Spec):
        return repr(value)
    return value if isinstance(value, str) else f"{type(value)} {quote(value)}"


def test_sample_of_options_in_the_library(lm: wavefront.LM) -> None:
    for options in sample(list(option_cases()), FEW):
        decode(lm, options)


def test_sample_of_specs_in_the_library(lm: wavefront.LM) -> None:
    for registry, text in sample(list(spec_texts()), 4 * FEW):
        for options in refused_or_known([(registry, text)]):
            decode(lm, options)


@pytest.mark.slow
def test_all_options_in_the_library(lm: wavefront.LM) -> None:
    cases, texts = library_cases(), list(spec_texts())
    assert len(cases) + len(texts) > 5000
    with total_time_limit():
        cases = unique(cases + refused_or_known(texts))
        accepted = [decode(lm, options) for options in cases]
    assert any(accepted)
    assert not all(accepted)


# The server


def bodies() -> Iterator[dict[str, Any]]:
    """Yield request bodies: spec strings, and options with values that JSON can express."""
    for registry, text in spec_texts():
        yield as_strategy(registry, text)
    for options in option_cases(LITERALS):
        try:
            yield json.loads(json.dumps(options))
        except TypeError:
            continue  # no JSON value


def serve_together(worker: Any, group: list[dict[str, Any]], expected: str) -> int:
    """Send requests beside a normal one. Return how many were decoded; its text stays the same."""
    normal = {"max_new_tokens": 9, "eos": "keep"}
    jobs = [Job(id="normal", prompt="Once", options=normal)]
    messages: list[Any] = []
    with time_limit():
        for number, body in enumerate(group):
            length = {} if body.keys() & LENGTHS else {"max_new_tokens": TOKENS}
            try:
                options = validate(DecodeBody, {"prompt": PROMPT, **length, **body}).options()
                jobs.append(Job(id=str(number), prompt=PROMPT, options=options))
            except APIError as error:
                messages.append(error.failure)
        for job in jobs:
            messages += worker.handle(job)
        while worker.busy:
            messages += worker.step()
    for one in messages:
        if isinstance(one, RequestFailed):
            assert one.id != "normal"
            assert 400 <= one.status < 500, one
            assert len(one.message) <= LONGEST_MESSAGE, one
            assert not one.message.startswith("This request cannot be decoded"), one
    parts = [one for one in messages if isinstance(one, RequestProgress | RequestFinished)]
    assert "".join(one.text for one in parts if one.id == "normal") == expected, group
    return sum(isinstance(one, RequestFinished) for one in messages) - 1


def serve_all(lm: wavefront.LM, cases: list[dict[str, Any]]) -> int:
    worker = make_worker(lm, rows=TOGETHER + 1, length=64, steps=64, new_tokens=48)
    expected = lm.generate("Once", raw=True, max_new_tokens=9, eos="keep").text
    groups = [cases[start : start + TOGETHER] for start in range(0, len(cases), TOGETHER)]
    return sum(serve_together(worker, group, expected) for group in groups)


def test_sample_of_requests_does_not_hurt_a_neighbour(lm: wavefront.LM) -> None:
    assert serve_all(lm, sample(list(bodies()), FEW)) >= 0


@pytest.mark.slow
def test_no_request_hurts_a_neighbour(lm: wavefront.LM) -> None:
    accepted = unique(refused_or_known(list(spec_texts())))
    cases = [*accepted, *(body for body in bodies() if not body.keys() & {"strategy", "cache"})]
    with total_time_limit():
        assert serve_all(lm, cases) > 500


def handled(worker: Any, number: int, body: dict[str, Any]) -> RequestFailed | None:
    """Send one body to the decode process; return why it was refused, or None if it was not."""
    length = {} if body.keys() & LENGTHS else {"max_new_tokens": TOKENS}
    id = str(number)
    try:
        options = validate(DecodeBody, {"prompt": PROMPT, **length, **body}).options()
    except APIError as error:
        return error.failure
    messages = list(worker.handle(Job(id=id, prompt=PROMPT, options=options)))
    worker.queue.remove(id)
    return next((one for one in messages if isinstance(one, RequestFailed)), None)


@pytest.mark.slow
def test_every_request_is_taken_or_refused_with_a_sentence(lm: wavefront.LM) -> None:
    """Refused specs reach the decode process too: the HTTP process does not resolve them."""
    worker = make_worker(lm, rows=TOGETHER + 1, length=64, steps=64, new_tokens=48)
    cases = list(bodies())
    assert len(cases) > 5000
    refused = 0
    with total_time_limit():
        for number, body in enumerate(cases):
            with time_limit():
                failure = handled(worker, number, body)
            if failure is not None:
                refused += 1
                assert 400 <= failure.status < 500, (body, failure)
                assert len(failure.message) <= LONGEST_MESSAGE, (body, failure)
                assert not failure.message.startswith("This request cannot be decoded"), body
    assert 0 < refused < len(cases)


# The fields that only OpenAI's routes have

CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS}
COMPLETION = {"prompt": PROMPT, "max_tokens": TOKENS}
FUNCTION = {"type": "function", "function": {"name": "f"}}


def openai_bodies() -> list[tuple[type[OpenAIBody], dict[str, Any]]]:
    """Return bodies of both routes: every field of its own with every value of JSON."""
    found: list[tuple[type[OpenAIBody], dict[str, Any]]] = []
    for kind, base in ((ChatBody, CHAT), (CompletionBody, COMPLETION)):
        own = set(kind.model_fields) - set(DecodeBody.model_fields) | {"messages", "prompt"}
        for name in sorted(own & set(kind.model_fields)):
            for value in json_values():
                found.append((kind, {**base, name: value}))
    for value in json_values():
        for key in ("type", "enum", "const", "properties", "required", "items", "format", "$ref"):
            form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {key: value}}}
            found.append((ChatBody, {**CHAT, "response_format": form}))
        tool = {"type": "function", "function": {"name": "f", "parameters": value}}
        found.append((ChatBody, {**CHAT, "tools": [tool], "tool_choice": FUNCTION}))
    return found


def check_openai_body(tokenizer: Tokenizer, kind: type[OpenAIBody], body: dict[str, Any]) -> bool:
    """Validate a body and encode its texts. Return False if it is refused with a sentence."""

    rejected: list[APIError] = []

    def check() -> None:
        try:
            valid = validate(kind, body)
            options = valid.options()
            messages = valid.plain_messages() if isinstance(valid, ChatBody) else None
            prompt = valid.prompt if isinstance(valid, CompletionBody) else None
            job = Job(id="1", prompt=prompt, messages=messages, options=options)
            if has_text(job):
                encode_texts(tokenizer, job, length=64)
            if constraint_option(job) is not None:
                compile_automaton(tokenizer, job)
        except APIError as error:
            assert_client_error(error)
            rejected.append(error)

    return is_accepted(check, quote(body, 400)) and not rejected


def assert_client_error(error: APIError) -> None:
    assert 400 <= error.failure.status < 500


def test_sample_of_openai_bodies(lm: wavefront.LM) -> None:
    # Some schemas take seconds to compile.
    quick = [case for case in openai_bodies() if not {*case[1]} & {"response_format", "tools"}]
    for kind, body in sample(quick, FEW):
        check_openai_body(lm.tokenizer, kind, body)


@pytest.mark.slow
def test_all_openai_bodies(lm: wavefront.LM) -> None:
    cases = openai_bodies()
    assert len(cases) > 900
    with total_time_limit():
        accepted = [check_openai_body(lm.tokenizer, kind, body) for kind, body in cases]
    assert any(accepted)
    assert not all(accepted)


# The command line


def arguments(options: dict[str, Any]) -> list[str]:
    words = ["generate", PROMPT, "--raw", "--model", "toy", "--quiet"]
    words += [] if "max_new_tokens" in options else ["-n", str(TOKENS)]
    for name, value in options.items():
        flag = {"choices": "choice"}.get(name, name.replace("_", "-"))
        words += [f"--{flag}={value}"]
    return words


def command_line_cases() -> list[dict[str, Any]]:
    """Return the options as words of a command line; flags and lists have another form there."""
    found = [as_strategy(registry, text) for registry, text in spec_texts()]
    shown = ("fixed_budget", "stop_ids", "output_history", "gen_length", "max_tokens", "mask_id")
    for options in option_cases(LITERALS):
        if not {*options} & {*shown, "logits_eos_inf", "confidence_eos_eot_inf"}:
            found.append(options)
    return [case for case in found if "\x00" not in str(case)]


def check_command(options: dict[str, Any]) -> None:
    from typer.testing import CliRunner

    from wavefront.cli.app import app

    with time_limit():
        made = CliRunner().invoke(app, arguments(options), prog_name="wavefront")
    raw = made.exception is not None and not isinstance(made.exception, SystemExit)
    assert not raw, (options, made.exception)
    assert made.exit_code in (0, 1, 2), options
    if made.exit_code:
        assert made.stderr.startswith("error: "), (options, made.stderr)
        assert "Traceback" not in made.stderr


def test_sample_of_command_lines() -> None:
    for options in sample(command_line_cases(), FEW // 6):
        check_command(options)


@pytest.mark.slow
def test_many_command_lines() -> None:
    with total_time_limit():
        for options in sample(command_line_cases(), 16 * FEW):
            check_command(options)
