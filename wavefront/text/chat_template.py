"""Render conversations with a chat template, and parse texts with holes.

**Where a template comes from.** It is the checkpoint's own `chat_template.jinja`, or
`chat_template` in its `tokenizer_config.json`: a string, or a list with an entry named `default`.
It never comes from a request. A checkpoint without a template gets a built-in one if its vocabulary
has the control tokens. A checkpoint with the word `base` in its name does not, because Base and
Instruct share a tokenizer and differ in the name only. `raw=True` skips any template.

**How far a template is trusted.** A template comes with the weights. Still, its size is limited,
and it runs in Jinja's immutable sandbox, in a child process with limits on time and memory (see
`limited`). Any error in it becomes a `PromptError`. Templates of this package run without a child.

**What a message may contain.** A message may contain anything, and all of it is text. The rendered
string alone does not show which `<|eot_id|>` the template wrote and which a user typed. So `render`
renders twice, once with opaque placeholders, and returns the span of every message's content. The
tokenizer reads control tokens only outside these spans. A template may strip a content. If it
changes a content in any other way, `contents` is None, and the control tokens must be the same as
in the rendering with placeholders.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wavefront.core.errors import CheckpointError, PromptError, did_you_mean
from wavefront.storage.hub import read_text
from wavefront.text import limited

ROLES = ("system", "user", "assistant")
KEYS = ("role", "content")
TEMPLATE_LIMIT = 256 * 1024  # bytes of template source
RENDER_SECONDS = 2.0  # computing time of one call of a template
HOLE_LIMIT = 4096  # positions in all holes of one text: the length LLaDA was trained on

# Like LLaDA's own template, this ends with the header, regardless of `add_generation_prompt`.
# `check_messages` refuses the one case that would give two assistant headers.
LLADA_TEMPLATE = (
    "{{ bos_token or '<|startoftext|>' }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim }}{{ '<|eot_id|>' }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
DREAM_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The built-in templates, with the control tokens that each writes.
BUILT_IN = (
    (LLADA_TEMPLATE, ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    (DREAM_TEMPLATE, ("<|im_start|>", "<|im_end|>")),
)

Message = Mapping[str, str]
Span = tuple[int, int]


class RenderedPrompt(NamedTuple):
    """A conversation as one string, and the spans of its message contents."""

    text: str
    contents: tuple[Span, ...] | None  # None if the template rewrote a content
    outline: str  # the same conversation with a placeholder for every content


def find_template(
    directory: Path, settings: Mapping[str, Any], *, knows: Callable[[str], bool]
) -> str | None:
    """Return the template source of a checkpoint, or None if it takes raw text only.

    `settings` is its `tokenizer_config.json`; `knows` says whether a token is in the vocabulary.
    """
    source = _own_template(directory, settings)
    if not source and not is_base(directory):
        source = next((text for text, tokens in BUILT_IN if all(map(knows, tokens))), None)
    if source and len(source.encode("utf-8", "replace")) > TEMPLATE_LIMIT:
        raise CheckpointError(
            f"The chat template in {directory} is larger than {TEMPLATE_LIMIT // 1024} KiB; "
            "fetch the checkpoint again."
        )
    return source or None


def is_base(directory: Path) -> bool:
    """Return whether the checkpoint's name, even in a Hub cache, has the word `base`."""
    path = directory.resolve()
    # A Hub cache names the folder after the revision, and the folder two above after the model.
    name = path.parent.parent.name if path.parent.name == "snapshots" else path.name
    return "base" in re.split(r"[^a-z0-9]+", name.rpartition("--")[2].lower())


def token_text(value: object) -> str:
    """Return the text of a token that settings write as `"x"` or `{"content": "x"}`, or ""."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else ""


def named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens with a role, such as `{"bos_token": "<|startoftext|>"}`."""
    named = {key: token_text(value) for key, value in settings.items() if key.endswith("_token")}
    return {key: text for key, text in named.items() if text}


def extra_tokens(settings: Mapping[str, Any]) -> list[str]:
    """Return the control tokens without a role."""
    listed = settings.get("additional_special_tokens")
    return [token_text(value) for value in listed] if isinstance(listed, list) else []


def parse_holes(text: str) -> list[str | int]:
    """Split a text with holes into segments: a string is text, a number is a hole's length.

    `<mask:8>` is a hole of eight positions, and `\\<mask:` is the marker as text. Two backslashes
    before a marker stand for one; anywhere else a backslash is a backslash.
    """
    segments: list[str | int] = []
    given, end, left = "", 0, HOLE_LIMIT
    for match in re.finditer(r"(?<!\\)(\\*)<mask:(?:([^<>]{0,20})>)?", text):
        backslashes, size = match[1], match[2] or ""
        given += text[end : match.start()] + backslashes[: len(backslashes) // 2]
        end = match.end()
        if len(backslashes) % 2:
            given += match[0].lstrip("\\")
            continue
        if not re.fullmatch("[0-9]{1,9}", size) or not 0 < int(size) <= left:
            raise PromptError(
                f"The hole at character {match.end(1)} has the size {size!r}; write <mask:N> with "
                f"N from 1 to {left} ({HOLE_LIMIT} for all holes together), "
                "or \\<mask: if you mean this text."
            )
        segments += [given, int(size)] if given else [int(size)]
        given, left = "", left - int(size)
    if not segments:
        raise PromptError(
            "The text has no hole; write <mask:8> where eight tokens are to be filled."
        )
    return [*segments, given + text[end:]] if given + text[end:] else segments


def check_messages(messages: object) -> list[dict[str, str]]:
    """Return the conversation as plain dictionaries. Raise `PromptError` if it is not valid."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise PromptError(
            f"Messages must be a list of {{role, content}}, not {type(messages).__name__}."
        )
    if not messages:
        raise PromptError("The conversation is empty; give at least one user message.")
    checked = [_check_message(number, message) for number, message in enumerate(messages, 1)]
    if checked[-1]["role"] == "assistant":
        raise PromptError(
            "The conversation ends with an assistant message; end it with a user message, "
            "because a reply always starts a new assistant turn."
        )
    questions = [message for message in checked if message["role"] == "user"] or checked
    if not questions[-1]["content"].strip():
        raise PromptError(f"The last {questions[-1]['role']} message is empty; add text to it.")
    return checked


def render(
    messages: object,
    *,
    template: str,
    special_tokens: Mapping[str, str] | None = None,
    trusted: bool = False,
) -> RenderedPrompt:
    """Render the conversation with `template`, ending with an open assistant turn.

    Args:
        messages: The conversation, as a list of `{role, content}`.
        template: The source of the template.
        special_tokens: Names for the template, such as `{"bos_token": "<|startoftext|>"}`.
        trusted: Run the template in this process, without limits on time and memory.

    Raises:
        PromptError: The conversation is not valid, or the template fails.
    """
    (rendered,) = render_all(
        [messages], template=template, special_tokens=special_tokens, trusted=trusted
    )
    return rendered


def render_all(
    conversations: Iterable[object],
    *,
    template: str,
    special_tokens: Mapping[str, str] | None = None,
    trusted: bool = False,
) -> list[RenderedPrompt]:
    """Render several conversations in one call of the child process; see `render`.

    One call has one limit on time, so give at most a few hundred short conversations.
    """
    checked = [check_messages(messages) for messages in conversations]
    # The placeholder is random, so that no content contains it. It uses private-use characters,
    # because templates look for words and brackets in contents.
    mark = "".join(chr(0xE000 + byte) for byte in secrets.token_bytes(16))
    hidden = [[dict(message) for message in messages] for messages in checked]
    for messages in hidden:
        for index, message in enumerate(messages):
            # Blank contents stay as they are: templates test for them.
            if message["content"].strip():
                message["content"] = f"{mark}{index}{mark}"
    arguments: dict[str, Any] = {
        "template": template,
        "special_tokens": dict(special_tokens or {}),
        "now": datetime.now().isoformat(),  # once, so that both renderings print the same time
        "conversations": [*checked, *hidden],
    }
    if trusted or any(template == source for source, _ in BUILT_IN):
        texts = _fill_here(arguments)
    else:
        texts = limited.call(
            f"{__name__}:fill_all",
            arguments,
            seconds=RENDER_SECONDS,
            what="The checkpoint's chat template",
            error=PromptError,
        )
    found: list[RenderedPrompt] = []
    for messages, text, outline in zip(
        checked, texts[: len(checked)], texts[len(checked) :], strict=True
    ):
        pieces = re.split(f"{mark}([0-9]+){mark}", outline)
        contents = _locate(text, pieces, [message["content"] for message in messages])
        found.append(RenderedPrompt(text, contents, outline))
    return found


def _own_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template from the checkpoint's own files, or None."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    source = settings.get("chat_template")
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        default = [entry.get("template") for entry in entries if entry.get("name") == "default"]
        source = default[0] if default else None
    if source is not None and not isinstance(source, str):
        raise CheckpointError(
            f"The chat_template of {directory} must be text; fetch the checkpoint again."
        )
    return source


def _check_message(number: int, message: object) -> dict[str, str]:
    """Return one message as a dictionary. Raise `PromptError` if it is not valid."""
    if not isinstance(message, Mapping):
        raise PromptError(
            f"Message {number} must be an object with a role and a content, not {message!r:.40}."
        )
    for key in message:
        if key not in KEYS:
            raise PromptError(
                f"Message {number} has the unknown field {key!r:.40}"
                f"{did_you_mean(str(key), KEYS)}; only role and content are accepted."
            )
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        near = did_you_mean(role, ROLES) if isinstance(role, str) else ""
        raise PromptError(
            f"Message {number} has the role {role!r:.40}{near}; the roles are {', '.join(ROLES)}."
        )
    if not isinstance(content, str):
        raise PromptError(
            f"The content of message {number} must be a string, not {type(content).__name__}."
        )
    return {"role": role, "content": content}


def _locate(text: str, pieces: Sequence[str], contents: Sequence[str]) -> tuple[Span, ...] | None:
    """Return the spans of the contents in `text`, or None if they cannot be found.

    `pieces` alternates the template's text with indices into `contents`. A wrong guess between a
    content and its stripped form can only fail to match the rest, which gives None.
    """
    if not text.startswith(pieces[0]):
        return None
    spans: list[Span] = []
    position = len(pieces[0])
    for index, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        content = contents[int(index)]
        forms = (content, content.strip(), content.lstrip(), content.rstrip())
        form = next((form for form in forms if text.startswith(form + literal, position)), None)
        if form is None:
            return None
        spans.append((position, position + len(form)))
        position += len(form) + len(literal)
    return tuple(spans) if position == len(text) else None


def fill_all(
    template: str,
    special_tokens: Mapping[str, str],
    now: str,
    *,
    conversations: Sequence[Sequence[Mapping[str, str]]],
) -> list[str]:
    """Return the renderings of several conversations; `now` is the time as ISO 8601."""
    # A name that the template may not take, such as `messages`, gives way.
    names = dict(special_tokens) | {
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "strftime_now": datetime.fromisoformat(now).strftime,
    }
    compiled = _compile(template)
    return [compiled.render(names | {"messages": messages}) for messages in conversations]


def _fill_here(arguments: Mapping[str, Any]) -> list[str]:
    """Call `fill_all` in this process. Any error inside the template becomes a `PromptError`."""
    try:
        return fill_all(**arguments)
    except Exception as error:  # a template can raise anything Python can
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise PromptError(f"The checkpoint's chat template failed: {reason}.") from error


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    """Compile a template with the settings and names that templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = _to_json
    return environment.from_string(template)


def _raise(message: object) -> str:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: object, *, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
