"""Encode the strings of lm-eval, so that items cannot inject control tokens.

lm-eval renders a conversation early and returns the text later. In that text, a control token of
the template looks the same as one written in an item. The encoder therefore remembers every
rendered text and where the items' own words are in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from wavefront.core.errors import PromptError
from wavefront.lm import LM
from wavefront.text import chat_template


class RequestEncoder:
    """Encodes the requests of one model."""

    def __init__(self, lm: LM, *, bos: bool | None = None) -> None:
        """`bos` overrides whether raw text starts with the begin-of-sequence token."""
        self.lm = lm
        self.templated = False  # whether lm-eval uses the chat template
        self._contents: dict[bytes, tuple[chat_template.Span, ...]] = {}
        tokenizer = lm.tokenizer
        if bos and tokenizer.bos_id is None:
            raise PromptError(
                "add_bos_token=True, but the tokenizer has no begin-of-sequence token."
            )
        own = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        self.opening = tokenizer.opening if bos is None else own * bos

    def template(self) -> str:
        """Return the source of the chat template."""
        if self.lm.tokenizer.template is None:
            raise PromptError(
                f"{self.lm.name!r} has no chat template: leave out --apply_chat_template."
            )
        return self.lm.tokenizer.template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation; a last message of the assistant stays open, to be continued."""
        template, opened, tokenizer = self.template(), "", self.lm.tokenizer
        given: list[Any] = [dict(message) for message in messages]
        if len(given) > 1 and given[-1].get("role") == "assistant":
            opened = str(given.pop()["content"])
        rendered = chat_template.render(
            given,
            template=template,
            special_tokens=tokenizer.special_tokens,
            trusted=tokenizer.trusted,
        )
        contents = rendered.contents
        if contents is None:
            if tokenizer.controls(rendered.text) != tokenizer.controls(rendered.outline):
                raise PromptError(
                    "An item contains the text of a control token, and this checkpoint's chat "
                    "template rewrites messages, so the two look the same: leave the item out."
                )
            contents = ()
        text = rendered.text + opened
        self._contents[_key(text)] = (*contents, (len(rendered.text), len(text)))
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt."""
        return self._encode(text, len(text))

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the ids of a context and of the continuation to score.

        As in lm-eval, blanks at the end of the context belong to the continuation. Both are encoded
        together; the ids after the context's own are scored.
        """
        stripped = context.rstrip()
        if not stripped:
            return list(self.opening), self.lm.tokenizer.encode(context + continuation)
        whole = self._encode(context, len(context), continuation)
        before = self._encode(context, len(stripped))
        return before, whole[len(before) :]

    def _encode(self, context: str, length: int, after: str = "") -> list[int]:
        """Return the ids of the first `length` characters of a context and of the text after."""
        tokenizer = self.lm.tokenizer
        contents = self._contents.get(_key(context))
        text = context[:length] + after
        if contents is None and not self.templated:
            ids = tokenizer.encode(text)
            return ids if ids[:1] == self.opening else self.opening + ids
        spans = [(min(a, length), min(b, length)) for a, b in contents or ()]
        return tokenizer.encode_rendered(text, [*spans, (length, len(text))])


def cut(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first stop string."""
    found = [text.find(stop) for stop in stops if stop]
    return text[: min((index for index in found if index >= 0), default=len(text))]


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
