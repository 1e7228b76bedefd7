"""Request bodies: what is accepted, what is rejected, and the schema."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from wavefront.core.errors import OptionError
from wavefront.server import request_models
from wavefront.server.openai_format import APIError
from wavefront.server.request_models import (
    LIBRARY_ONLY,
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
    DecodeBody,
    ForkBody,
    FunctionSpec,
    read_json,
    schema,
    validate,
)


@pytest.mark.parametrize(
    "name", sorted((UNSUPPORTED | LIBRARY_ONLY).keys() - ChatBody.model_fields)
)
def test_unsupported_field_is_rejected_by_name(name: str) -> None:
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
        ({"prompt": "x", "n": True}, "n", "integer"),
        ({"prompt": "x", "n": 0}, "n", "greater"),
        ({"prompt": "x", "n": 2, "events": True}, "events", "n: 1"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "integer"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "less"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", "not a token id"),
        ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
        ({"prompt": "x", "logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias", "1024"),
        ({"prompt": "x", "best_of": 2}, "best_of", "not supported"),
    ],
)
def test_invalid_body_is_rejected_with_its_field(given: Any, param: str | None, word: str) -> None:
    with pytest.raises(APIError) as caught:
        validate(CompletionBody, given)
    assert caught.value.failure.status == 400
    assert caught.value.failure.param == param
    assert word in caught.value.failure.message
    # One code for one meaning.
    own = {
        "strategy": "unknown_field",
        "not supported": "unsupported_field",
        "one": "unsupported_value",
        "required": "missing_field",
    }
    assert caught.value.failure.code == own.get(word, "invalid_value")


def test_every_name_of_the_length_is_accepted() -> None:
    for name in ("max_new_tokens", "max_tokens", "gen_length", "max_completion_tokens"):
        options = validate(CompletionBody, {"prompt": "x", name: 7}).options()
        assert list(options.values()) == [7]
    assert validate(CompletionBody, {"prompt": "x", "seed": 7.0}).options() == {"seed": 7}
    both = validate(CompletionBody, {"prompt": "x", "max_tokens": 7, "max_completion_tokens": 7})
    assert both.options() == {"max_new_tokens": 7}


def test_logprobs_become_one_option() -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for given, want in (
        ({}, {}),
        ({"logprobs": False, "top_logprobs": 0}, {}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 7}, {"logprobs": 7}),
    ):
        assert validate(ChatBody, chat | given).options() == want
    for value, want in ((None, {}), (False, {}), (0, {"logprobs": 0}), (5, {"logprobs": 5})):
        assert validate(CompletionBody, {"prompt": "x", "logprobs": value}).options() == want
    with pytest.raises(APIError, match="top_logprobs needs logprobs"):
        validate(ChatBody, chat | {"top_logprobs": 1})


def test_formats_and_tools_become_a_schema() -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = validate(ChatBody, chat | {"response_format": form})
    assert body.options() == {"schema": json.dumps(schema)}
    assert body.schema_source() == ("response_format", schema)
    loose = validate(ChatBody, chat | {"response_format": {"type": "json_object"}})
    assert json.loads(loose.options()["schema"])["type"] == "object"
    assert validate(ChatBody, chat | {"response_format": {"type": "text"}}).options() == {}
    with pytest.raises(APIError, match=r"no field .*schema\. Put .*json_schema\.schema\.$"):
        validate(ChatBody, chat | {"response_format": {"type": "json_schema", "schema": schema}})
    function = {"name": "f", "description": "Does f.", "parameters": schema}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    called = validate(ChatBody, chat | tools)
    assert called.schema_source() == ("tools", schema)
    system, user = called.plain_messages()
    assert (system["role"], user) == ("system", {"role": "user", "content": "x"})
    assert all(text in system["content"] for text in ("f", "Does f.", json.dumps(schema)))
    first = {"messages": [{"role": "system", "content": "Be brief."}, *chat["messages"]]}
    (system, _) = validate(ChatBody, first | tools).plain_messages()
    assert system["content"].startswith("Be brief.\n\nCall the function f.")
    plain = validate(ChatBody, chat | tools | {"tool_choice": "none"})
    assert (plain.options(), plain.plain_messages()) == ({}, chat["messages"])
    for empty in (None, {"type": "object", "properties": {}}):
        bare = {"tools": [{"type": "function", "function": {"name": "f", "parameters": empty}}]}
        body = validate(ChatBody, chat | bare | {"tool_choice": "required"})
        assert body.schema_source() == ("tools", {"type": "object", "additionalProperties": False})


def test_text_parts_and_developer_messages_are_accepted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = validate(ChatBody, {"messages": [{"role": "developer", "content": parts}]})
    assert body.plain_messages() == [{"role": "system", "content": "ab"}]
    with pytest.raises(APIError):
        validate(ChatBody, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})


def test_decode_body_needs_exactly_one_prompt() -> None:
    for given in ({}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}):
        with pytest.raises(APIError):
            validate(DecodeBody, given)


def test_literals_match_the_library(lm: Any) -> None:
    """The schema lists the same words as the library."""
    for name, words in {
        "priority": request_models.Priority,
        "eos": request_models.Eos,
        "sampling": request_models.Rule,
        "remasking": request_models.Remasking,
        "alg": request_models.Algorithm,
    }.items():
        for word in get_args(words):
            # One policy ends an answer after a block, so it needs a strategy with blocks.
            blocks = {"strategy": "blockwise(size=32)"} if word == "stop-block" else {}
            lm.plan({name: word, **blocks})
        with pytest.raises(OptionError) as caught:
            lm.plan({name: "nonsense"})
        assert all(word in str(caught.value) for word in get_args(words))


def test_schemas_have_no_references() -> None:
    for kind in (ChatBody, CompletionBody, DecodeBody):
        assert "$ref" not in str(schema(kind))


# Bodies that no client should send

REQUIRED: dict[type[BaseModel], dict[str, str]] = {
    ChatBody: {"messages": '[{"role": "user", "content": "x"}]'},
    CompletionBody: {"prompt": '"x"'},
    DecodeBody: {"prompt": '"x"'},
    ForkBody: {"at": "1"},
}
SURROGATE = '"\\ud800"'
BIG, HUGE = "1" + "0" * 400, "1" + "0" * 5000
# As text, because `json.dumps` cannot write all of them.
ODD_VALUES = (
    SURROGATE, f"[{SURROGATE}]", f"{{{SURROGATE}: 1}}", '{"role": "user", "content": "\\udfff"}',
    BIG, f"-{BIG}", HUGE, f"[{BIG}]", f'{{"a": {BIG}}}', "1e400", "-1e400", "1e308", "1e-400",
    "1e99", "1" + "0" * 99, "0." + "1" * 200, "NaN", "-Infinity", "-0", "-0.0", "1.5",
    "9223372036854775808", "null", "true", "[]", "{}", "[[]]", "[{}]", "[null]", '""',
    '"\\u0000"', '["", 1, null]', '{"": ""}', "[" * 900 + "]" * 900,
    '{"a":' * 900 + "1" + "}" * 900, "[" * 100_000, "{", "tru", "", "'x'", "01",
)  # fmt: skip
ODD_BODIES = (
    b"", b"\x00", b"null", b"[]", b"{}", b'"x"', b"1", b"\xff", b'"\xff"', b"{,}", b"// {}",
    "{}".encode("utf-16"), "{}".encode("utf-32"), b"\xef\xbb\xbf{}", BIG.encode(), b"[" * 100_000,
    b'{"\\ud800": 1}', b'{"prompt": "x", "\\ud800strategy": 1}', b'{"prompt": "x", "prompt": "y"}',
    b'{"prompt": "x", "' + b"a" * 100_000 + b'": 1}', b'{"prompt": "\xed\xa0\x80"}',
    b"{" + b",".join(b'"%d":1' % (n // 2) for n in range(20_000)) + b"}",
)  # fmt: skip


def parse(kind: type[BaseModel], raw: bytes) -> APIError | None:
    """Read and validate a body as the routes do. Return the error, or None if it is valid."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def read() -> Any:
        return await read_json(Request({"type": "http", "headers": []}, receive))

    try:
        body: Any = validate(kind, asyncio.run(read()))
    except APIError as error:
        return error
    body.options()
    body.stops()
    return None


def assert_rejected_or_valid(kind: type[BaseModel], raw: bytes) -> None:
    error = parse(kind, raw)
    if error is not None:
        assert 400 <= error.failure.status < 500, raw[:200]
        shown = json.loads(bytes(error.response.body))["error"]["message"]
        assert 10 < len(shown) < 500
        assert "Traceback" not in shown


def odd_fields(kind: type[BaseModel]) -> list[str]:
    return [*kind.model_fields, *UNSUPPORTED, *LIBRARY_ONLY, "nonsense"]


def with_field(kind: type[BaseModel], name: str, value: str) -> bytes:
    fields = {**REQUIRED[kind], name: value}
    return ("{" + ", ".join(f'"{key}": {text}' for key, text in fields.items()) + "}").encode()


@pytest.mark.parametrize("kind", REQUIRED)
def test_odd_values_are_rejected_in_every_field(kind: type[BaseModel]) -> None:
    for name in odd_fields(kind):
        nested = (f"[{SURROGATE}]", f'{{"a": {SURROGATE}}}', f"{{{SURROGATE}: 1}}")
        for value in (SURROGATE, *nested, f"[{{{SURROGATE}: 1}}]"):
            error = parse(kind, with_field(kind, name, value))
            assert error is not None
            assert (error.failure.status, error.failure.param) == (400, name)
        for value in (BIG, HUGE, f"[{BIG}]", "NaN", "1e400"):
            error = parse(kind, with_field(kind, name, value))
            assert error is not None
            assert error.failure.code == "invalid_json"
    for raw in ODD_BODIES:
        assert_rejected_or_valid(kind, raw)


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUIRED)
def test_no_random_body_causes_an_unexpected_error(kind: type[BaseModel]) -> None:
    for name in odd_fields(kind):
        for value in ODD_VALUES:
            assert_rejected_or_valid(kind, with_field(kind, name, value))
    draw = random.Random(0)
    names = odd_fields(kind)
    for _ in range(3000):
        fields = REQUIRED[kind] | {
            draw.choice(names): draw.choice(ODD_VALUES) for _ in range(draw.randrange(4))
        }
        raw = bytearray(("{" + ",".join(f'"{k}":{v}' for k, v in fields.items()) + "}").encode())
        for _ in range(draw.randrange(3)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        assert_rejected_or_valid(kind, bytes(raw))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (CompletionBody, {"prompt": [[]] * 1000}),
        (CompletionBody, {"prompt": "x", "stop": [[]] * 1000}),
        (CompletionBody, {"prompt": "x", "stop_ids": [[]] * 1000}),
        (ChatBody, {"messages": [[]] * 1000}),
        (ChatBody, {"messages": [{"role": "user", "content": [[]] * 1000}]}),
        (DecodeBody, {"prompt": [[]] * 1000}),
        (ForkBody, {"at": 1, "put": {str(n): [] for n in range(1000)}}),
        (CompletionBody, {"prompt": "x", "logit_bias": {str(n): [] for n in range(1000)}}),
    ],
)
def test_body_with_many_errors_is_rejected_at_the_first(
    kind: type[BaseModel], content: Any
) -> None:
    """A list of all errors would take seconds and hundreds of megabytes."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(content)
    assert caught.value.error_count() <= 5


def test_long_names_are_not_sent_back() -> None:
    error = parse(CompletionBody, b'{"prompt": "x", "' + b"a" * 100_000 + b'": 1}')
    assert error is not None
    assert len(error.response.body) < 1000


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, {"type": "object", "additionalProperties": False}),
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": "string"}, None),
        ({"enum": [1]}, None),
    ],
    ids=str,
)
def test_arguments_of_a_function_are_an_object(parameters, expected):
    if expected is None:
        with pytest.raises(ValueError, match="must be the schema of an object"):
            FunctionSpec(name="f", parameters=parameters)
    else:
        assert FunctionSpec(name="f", parameters=parameters).schema_of_arguments() == expected


def test_results_of_functions_are_sent_back() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ask = {"role": "user", "content": "x"}
    # As the openai client writes the message of an earlier answer.
    called = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    body = validate(ChatBody, {"messages": [ask, called, result]})
    assert body.plain_messages() == [
        ask,
        {"role": "assistant", "content": '{"a": 1}'},
        {"role": "user", "content": "The function f returned: 3"},
    ]
    said = called | {"content": "Let me see."}
    assert validate(ChatBody, {"messages": [ask, said]}).plain_messages()[1]["content"] == (
        'Let me see.\n{"a": 1}'
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant", "content": None}, "content must be a text"),
        ({"role": "user"}, "content must be a text"),
        ({"role": "tool", "content": "3"}, "has tool_call_id if its role is tool"),
        ({"role": "user", "content": "x", "tool_call_id": "a"}, "has tool_call_id if its role"),
        ({"role": "tool", "content": "3", "tool_call_id": "call_9"}, "no message has the call"),
        (
            {
                "role": "user",
                "content": "x",
                "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}],
            },
            "only a message with the role assistant has tool_calls",
        ),
    ],
)
def test_messages_about_functions_are_checked(message: dict[str, Any], text: str) -> None:
    with pytest.raises(APIError, match=text):
        validate(ChatBody, {"messages": [{"role": "user", "content": "x"}, message]})
