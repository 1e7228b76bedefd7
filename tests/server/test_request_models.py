"""Request bodies: what is accepted, what is rejected, and the schema."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from wavefront.core.errors import OptionError
from wavefront.server import request_models
from wavefront.server.openai_format import APIError
from wavefront.server.request_models import (
    LIBRARY_ONLY,
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
    DecodeBody,
    schema,
    validate,
)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED | LIBRARY_ONLY))
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
        ({"prompt": "x", "n": True}, "n", "not supported"),
    ],
)
def test_invalid_body_is_rejected_with_its_field(given: Any, param: str | None, word: str) -> None:
    with pytest.raises(APIError) as caught:
        validate(CompletionBody, given)
    assert caught.value.failure.status == 400
    assert caught.value.failure.param == param
    assert word in caught.value.failure.message


def test_every_name_of_the_length_is_accepted() -> None:
    for name in ("max_new_tokens", "max_tokens", "gen_length", "max_completion_tokens"):
        options = validate(CompletionBody, {"prompt": "x", name: 7}).options()
        assert list(options.values()) == [7]
    assert validate(CompletionBody, {"prompt": "x", "seed": 7.0}).options() == {"seed": 7}
    both = validate(CompletionBody, {"prompt": "x", "max_tokens": 7, "max_completion_tokens": 7})
    assert both.options() == {"max_new_tokens": 7}


def test_text_parts_and_developer_messages_are_accepted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = validate(ChatBody, {"messages": [{"role": "developer", "content": parts}]})
    assert body.messages[0].plain() == {"role": "system", "content": "ab"}
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
            lm.plan({name: word})
        with pytest.raises(OptionError) as caught:
            lm.plan({name: "nonsense"})
        assert all(word in str(caught.value) for word in get_args(words))


def test_schemas_have_no_references() -> None:
    for kind in (ChatBody, CompletionBody, DecodeBody):
        assert "$ref" not in str(schema(kind))
