"""From the strings that lm-eval hands over to ids, with chat templates safe from what items say.

lm-eval renders a conversation early and gives the text back later. In that text nobody can tell a
control token of the template from one that an item spells; so what was rendered is remembered
together with where the items' own words are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from wavefront.core.errors import PromptError
from wavefront.lm import LM
from wavefront.text import chat_template


class Prompts:
    """The encoder of one model's requests."""

    def __init__(self, lm: LM, *, bos: bool | None = None) -> None:
        """`bos` puts the begin of sequence before raw text, or does not, whatever the settings."""
        self.lm = lm
        self.templated = False  # lm-eval was told to use the chat template
        self._contents: dict[bytes, tuple[chat_template.Span, ...]] = {}
        tokenizer = lm.tokenizer
        if bos and tokenizer.bos_id is None:
            raise PromptError("add_bos_token=True, but this tokenizer names no begin of sequence.")
        own = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        self.opening = tokenizer.opening if bos is None else own * bos

    def template(self) -> str:
        """The source of the chat template."""
        if self.lm.tokenizer.template is None:
            raise PromptError(
                f"{self.lm.name!r} has no chat template: leave out --apply_chat_template."
            )
        return self.lm.tokenizer.template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as text; a last message of the assistant is left open, to be continued."""
        template, begun = self.template(), ""
        given: list[Any] = [dict(message) for message in messages]
        if len(given) > 1 and given[-1].get("role") == "assistant":
            begun = str(given.pop()["content"])
        rendered = chat_template.render(
            given, template=template, special_tokens=self.lm.tokenizer.special_tokens
        )
        tokenizer, contents = self.lm.tokenizer, rendered.contents
        if contents is None:
            if tokenizer.controls(rendered.text) != tokenizer.controls(rendered.outline):
                raise PromptError(
                    "An item spells a control token, and this checkpoint's chat template rewrites "
                    "messages so that the two cannot be told apart: leave the item out."
                )
            contents = ()
        text = rendered.text + begun
        self._contents[_key(text)] = (*contents, (len(rendered.text), len(text)))
        return text

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt."""
        return self._encode(text, len(text))

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of a context and of what is scored after it.

        Blanks at the end of the context belong to what follows, as in lm-eval; and the ids to score
        are those that follow the context's own in the encoding of both together.
        """
        stripped = context.rstrip()
        if not stripped:
            return list(self.opening), self.lm.tokenizer.encode(context + continuation)
        whole = self._encode(context, len(context), continuation)
        before = self._encode(context, len(stripped))
        return before, whole[len(before) :]

    def _encode(self, context: str, length: int, after: str = "") -> list[int]:
        """Ids of the first `length` characters of a context, and of what comes after it."""
        tokenizer = self.lm.tokenizer
        contents = self._contents.get(_key(context))
        text = context[:length] + after
        if contents is None and not self.templated:
            ids = tokenizer.encode(text)
            return ids if ids[:1] == self.opening else self.opening + ids
        spans = [(min(a, length), min(b, length)) for a, b in contents or ()]
        return tokenizer.encode_rendered(text, [*spans, (length, len(text))])


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    found = [text.find(stop) for stop in stops if stop]
    return text[: min((place for place in found if place >= 0), default=len(text))]


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
