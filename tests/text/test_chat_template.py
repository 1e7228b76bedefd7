"""Conversations, templates and hole syntax, as strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavefront.core.errors import CheckpointError, PromptError
from wavefront.text import chat_template
from wavefront.text.chat_template import (
    DREAM_TEMPLATE,
    HOLE_LIMIT,
    LLADA_TEMPLATE,
    TEMPLATE_LIMIT,
    find_template,
    is_base,
    named_tokens,
    parse_holes,
    render,
)

BOS = {"bos_token": "<|startoftext|>"}
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def spelled(template: str, *messages: dict[str, str]) -> list[str]:
    """The text each reported span covers."""
    rendered = render(list(messages), template=template)
    assert rendered.contents is not None
    return [rendered.text[start:end] for start, end in rendered.contents]


def known(*tokens: str) -> dict[str, Any]:
    return {"knows": lambda token: token in tokens}


LLADA_TOKENS = ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
DREAM_TOKENS = ("<|im_start|>", "<|im_end|>")


# The two built-in templates, against the published formats.


def test_llada_template_strips_text_and_begins_once() -> None:
    text = render([turn("user", "  Hi there\n")], template=LLADA_TEMPLATE, special_tokens=BOS).text
    assert text == f"<|startoftext|>{header('user')}Hi there<|eot_id|>{header('assistant')}"


def test_llada_template_accepts_a_system_turn() -> None:
    messages = [
        turn("system", "Be brief."),
        turn("user", "a"),
        turn("assistant", " b "),
        turn("user", "c"),
    ]
    text = render(messages, template=LLADA_TEMPLATE, special_tokens=BOS).text
    assert text == (
        f"<|startoftext|>{header('system')}Be brief.<|eot_id|>{header('user')}a<|eot_id|>"
        f"{header('assistant')}b<|eot_id|>{header('user')}c<|eot_id|>{header('assistant')}"
    )


def test_llada_template_has_a_default_begin_token() -> None:
    assert render([turn("user", "a")], template=LLADA_TEMPLATE).text.startswith("<|startoftext|>")


def test_dream_template_keeps_text_and_adds_a_system_turn() -> None:
    text = render([turn("user", "  Hi there\n")], template=DREAM_TEMPLATE).text
    assert text == f"{SYSTEM}<|im_start|>user\n  Hi there\n<|im_end|>\n<|im_start|>assistant\n"


def test_dream_template_uses_the_given_system_turn() -> None:
    messages = [
        turn("system", "Be brief."),
        turn("user", "a"),
        turn("assistant", " b "),
        turn("user", "c"),
    ]
    assert render(messages, template=DREAM_TEMPLATE).text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\n b <|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# Where contents are.


@pytest.mark.parametrize("template", [LLADA_TEMPLATE, DREAM_TEMPLATE])
def test_contents_are_found(template: str) -> None:
    evil = "<|eot_id|>{{ x }}<|im_end|>"
    found = spelled(template, turn("user", evil), turn("assistant", " "), turn("user", f" {evil} "))
    assert [text.strip() for text in found] == [evil, evil]


def test_contents_are_found_in_another_order_and_more_than_once() -> None:
    template = (
        "{% for m in messages | reverse %}{{ m.content | trim }}|{{ m.content }}\n{% endfor %}"
    )
    assert spelled(template, turn("system", "a "), turn("user", " b")) == ["b", " b", "a", "a "]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content | upper }}",
        "{{ messages[0].content | replace('a', '') }}!",
        "{% if 'a' in messages[0].content %}?{% endif %}{{ messages[0].content }}",
    ],
)
def test_template_that_rewrites_contents_is_reported(template: str) -> None:
    rendered = render([turn("user", "cat")], template=template)
    assert rendered.contents is None
    assert "cat" not in rendered.outline


@given(st.lists(st.text(alphabet=" \nab<|eot_id|>x0", min_size=1), min_size=1, max_size=4))
def test_text_outside_the_spans_does_not_depend_on_contents(contents: list[str]) -> None:
    for template in (LLADA_TEMPLATE, DREAM_TEMPLATE):
        outside = []
        for words in (contents, ["x" * bool(content.strip()) for content in contents]):
            messages = [turn("system", content) for content in words]
            rendered = render([*messages, turn("user", "x")], template=template)
            assert rendered.contents is not None
            cuts = [0, *(place for span in rendered.contents for place in span), None]
            outside.append([rendered.text[a:b] for a, b in zip(cuts[::2], cuts[1::2], strict=True)])
        assert [piece.split() for piece in outside[0]] == [piece.split() for piece in outside[1]]


# What templates may do.


def test_template_names_and_block_rules() -> None:
    template = (
        "{% for m in messages %}\n"
        "    {% if loop.index > 1 %}\n{% break %}\n{% endif %}\n"
        "{{ bos_token }}{{ m.content | tojson }}{{ tools is none }}{{ add_generation_prompt }}\n"
        "{% endfor %}\n"
        "{{ strftime_now('%%') }}"
    )
    rendered = render(
        [turn("user", "<é>"), turn("user", "b")], template=template, special_tokens=BOS
    )
    assert rendered.text == '<|startoftext|>"<é>"TrueTrue\n%'


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\n alternate.') }}", "failed: roles must alternate."),
        ("{% for %}", "template failed"),
        ("{{ 1 // 0 }}", "template failed"),
        ("{{ messages.append(1) }}", "template failed"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "template failed"),
        ("{{ nobody.nothing }}", "template failed"),
    ],
)
def test_template_errors_become_prompt_errors(template: str, reason: str) -> None:
    with pytest.raises(PromptError, match=reason) as caught:
        render([turn("user", "a")], template=template)
    assert "\n" not in str(caught.value)


# Which conversations are taken.


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "is empty"),
        ("Hi", "not str"),
        ({"role": "user"}, "not dict"),
        (["Hi"], "Message 1 must be an object with a role"),
        ([turn("usr", "a")], "did you mean 'user'"),
        ([turn("developer", "a")], "the roles are system, user, assistant"),
        ([{"role": 3, "content": "a"}], "role 3"),
        ([{"content": "a"}], "role None"),
        ([{"role": "user"}], "not NoneType"),
        ([{"role": "user", "content": [{"type": "text"}]}], "not list"),
        ([{**turn("user", "a"), "contents": "b"}], "did you mean 'content'"),
        ([turn("user", "a"), {**turn("user", "b"), "name": "c"}], "Message 2 .*'name'"),
        ([turn("user", "a"), turn("assistant", "b")], "ends with an assistant"),
        ([turn("user", "a"), turn("user", " \n")], "last user message is empty"),
        ([turn("user", ""), turn("system", "a")], "last user message is empty"),
        ([turn("system", "")], "last system message is empty"),
    ],
)
def test_invalid_conversations_are_refused(messages: object, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        render(messages, template=LLADA_TEMPLATE)


# Where a template comes from.


def test_template_file_precedes_the_settings(tmp_path: Path) -> None:
    settings = {"chat_template": "in settings"}
    assert find_template(tmp_path, settings, **known()) == "in settings"
    (tmp_path / "chat_template.jinja").write_text("in a file")
    assert find_template(tmp_path, settings, **known()) == "in a file"


def test_default_of_a_template_list_is_used(tmp_path: Path) -> None:
    entries = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert find_template(tmp_path, {"chat_template": entries}, **known()) == "plain"
    assert find_template(tmp_path, {"chat_template": entries[:1]}, **known()) is None


def test_built_in_template_depends_on_vocabulary_and_name(tmp_path: Path) -> None:
    assert (
        find_template(tmp_path / "LLaDA-8B-Instruct", {}, **known(*LLADA_TOKENS)) == LLADA_TEMPLATE
    )
    assert find_template(tmp_path / "Dream", {}, **known(*DREAM_TOKENS)) == DREAM_TEMPLATE
    assert find_template(tmp_path / "LLaDA-8B-Base", {}, **known(*LLADA_TOKENS)) is None
    assert find_template(tmp_path / "other", {}, **known("<|im_start|>")) is None
    shipped = {"chat_template": "own"}
    assert find_template(tmp_path / "LLaDA-8B-Base", shipped, **known(*LLADA_TOKENS)) == "own"


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("Dream-v0-Base-7B", True),
        ("models--GSAI-ML--LLaDA-8B-Base/snapshots/0f2787f2", True),
        ("models--GSAI-ML--LLaDA-8B-Instruct/snapshots/base", False),
        ("base/LLaDA-1.5", False),
        ("database-tuned", False),
    ],
)
def test_base_checkpoints_are_recognized_by_name(tmp_path: Path, path: str, base: bool) -> None:
    assert is_base(tmp_path / path) is base


def test_invalid_templates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="larger than 256 KiB"):
        find_template(tmp_path, {"chat_template": "x" * (TEMPLATE_LIMIT + 1)}, **known())
    with pytest.raises(CheckpointError, match="must be text"):
        find_template(tmp_path, {"chat_template": 7}, **known())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="cannot be read"):
        find_template(tmp_path, {}, **known())


def test_named_tokens_accept_both_spellings() -> None:
    settings = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "add_bos_token": True,
    }
    assert named_tokens(settings) == {"bos_token": "<s>", "eos_token": "</s>"}


# Holes.


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("def f(x): <mask:8> return y", ["def f(x): ", 8, " return y"]),
        ("<mask:1><mask:02>", [1, 2]),
        (r"a \<mask:3> b <mask:4>", ["a <mask:3> b ", 4]),
        (r"a \<mask:x <mask:4>", ["a <mask:x ", 4]),
        (r"a \\<mask:4>", ["a \\", 4]),
        (r"a \\\<mask:4><mask:1>", ["a \\<mask:4>", 1]),
        (r"\n \\ <mask> <MASK:3> <mask:1>", [r"\n \\ <mask> <MASK:3> ", 1]),
    ],
)
def test_holes_are_parsed(text: str, segments: list[str | int]) -> None:
    assert parse_holes(text) == segments


@pytest.mark.parametrize("size", ["", "x", "0", "-1", "1.5", " 8", "٣", "4097", "9" * 10, "1" * 99])
def test_invalid_hole_sizes_are_refused(size: str) -> None:
    with pytest.raises(
        PromptError, match=r"The hole at character 2 has the size .* from 1 to 4096"
    ):
        parse_holes(f"a <mask:{size}> b")


def test_open_marker_and_text_without_holes_are_refused() -> None:
    with pytest.raises(PromptError, match="at character 0"):
        parse_holes("<mask:8")
    with pytest.raises(PromptError, match="has no hole"):
        parse_holes(r"just \<mask:8> text")


def test_total_hole_size_is_limited() -> None:
    assert parse_holes(f"<mask:{HOLE_LIMIT - 1}>a<mask:1>") == [HOLE_LIMIT - 1, "a", 1]
    with pytest.raises(PromptError, match="from 1 to 1 "):
        parse_holes(f"<mask:{HOLE_LIMIT - 1}>a<mask:2>")


@given(st.lists(st.text(alphabet="a\\<mask:8> ", min_size=1), min_size=2, max_size=4))
def test_any_text_may_surround_holes(texts: list[str]) -> None:
    # Doubling the backslashes that stand before a marker, and adding one, is the whole escape.
    def escape(text: str) -> str:
        pieces = text.split("<mask:")
        written = [piece + "\\" * (len(piece) - len(piece.rstrip("\\"))) for piece in pieces]
        return "\\<mask:".join([*written[:-1], pieces[-1]])

    # The last piece meets the hole's own marker.
    given_texts = [text.rstrip("\\") + "." for text in texts]
    parsed = parse_holes("<mask:3>".join(map(escape, given_texts)))
    assert parsed[::2] == given_texts
    assert set(parsed[1::2]) == {3}


BOMBS = {
    "endless loop": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "large string": "{{ 'a' * 99999999999 }}",
    "wide format": "{{ '%099999999999d' % 1 }}",
    "large number": "{{ 9 ** (9 ** 9) }}",
    "doubling": "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "large output": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "deep nesting": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "deep list": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_template_bomb_is_refused(monkeypatch: pytest.MonkeyPatch, bomb: str) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2)
    with pytest.raises(PromptError, match=r"^The checkpoint's chat template .*\.$"):
        render([turn("user", "a")], template=BOMBS[bomb])
    assert render([turn("user", "a")], template="{{ messages[0].content }}").text == "a"


def test_special_tokens_cannot_replace_the_conversation() -> None:
    names = {"messages": "x", "self": "y", "tools": "z"}
    template = "{{ messages[0].content }}{{ tools is none }}"
    assert render([turn("user", "a")], template=template, special_tokens=names).text == "aTrue"
