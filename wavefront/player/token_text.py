"""Words: what the ids of a trace read as, every text once for the whole page.

A trace brings the texts of its tokens along. One that does not is read by the tokenizer of the
model that it names, if that is on this machine: nothing is fetched because a file says so. Weights
are never loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wavefront.core.errors import WavefrontError
from wavefront.models import builtin
from wavefront.storage.hub import locate
from wavefront.text.tokenizer import UNKNOWN, Tokenizer
from wavefront.viewer import visible

LONGEST = 48  # characters of a token that are shown
ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    """A part of a prompt."""

    role: str  # empty when it has none
    text: str


def tokenizer_of(name: str, *, offline: bool = False) -> Tokenizer:
    """The tokenizer of a model, without the model."""
    if name == "toy":
        return builtin.make_toy()[1]
    return Tokenizer.load(locate(name, offline=offline, weights=False))


class Words:
    """The texts of a page; tokens are named by their number in `texts`."""

    def __init__(self, model: str | None = None) -> None:
        """`model` names whose tokenizer is to read everything, whatever the traces say."""
        self.texts: list[str] = []
        self.notes: list[str] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self._chosen = None if model is None else tokenizer_of(model)
        self._found: dict[str, Tokenizer | None] = {}

    def number(self, token: int, text: str) -> int:
        """The number of a token's text. Two tokens keep two numbers, even if they read alike."""
        key = (token, text)
        if key not in self._numbers:
            self._numbers[key] = len(self.texts)
            self.texts.append(text)
        return self._numbers[key]

    def reader(self, about: Mapping[str, Any]) -> Reader:
        """A reader for the trace that says this of itself."""
        if self._chosen is not None:
            return Reader(self, {}, self._chosen.special_ids, self._chosen)
        texts, special = _texts(about), _special(about)
        # Only a tokenizer can put together a character that is cut into tokens.
        if texts and not any(UNKNOWN in text for text in texts.values()):
            return Reader(self, texts, special, None)
        name = about.get("model")
        found = self._tokenizer(name) if name and isinstance(name, str) else None
        if texts:
            agrees = found is not None and found.pieces(texts) == list(texts.values())
            return Reader(self, texts, special, found if agrees else None)
        if found is None:
            self._note_ids(name)
            return Reader(self, {}, frozenset(), None)
        return Reader(self, {}, found.special_ids, found)

    def _tokenizer(self, name: str) -> Tokenizer | None:
        if name not in self._found:
            self._found[name] = None
            with contextlib.suppress(WavefrontError):
                self._found[name] = tokenizer_of(name, offline=True)
        return self._found[name]

    def _note_ids(self, name: Any) -> None:
        why = "A trace names no model"
        if name:
            why = f"The tokenizer of {name!r} is not on this machine"
        note = f"{why}, so tokens are shown as ids: say whose they are with --model."
        if note not in self.notes:
            self.notes.append(note)


class Reader:
    """Ids of one trace as texts of the page."""

    def __init__(
        self,
        words: Words,
        texts: Mapping[int, str],
        special: frozenset[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._words, self._texts, self._special = words, texts, special
        self._tokenizer = tokenizer
        self._numbers: dict[int, int] = {}
        self.reads = bool(texts) or tokenizer is not None  # otherwise there are only ids

    def number(self, token: int) -> int:
        """The number of a token's text in the page's list."""
        if token not in self._numbers:
            shown = visible(self._piece(token)) or "·"
            if len(shown) > LONGEST:
                shown = shown[: LONGEST - 1] + "…"
            self._numbers[token] = self._words.number(token, shown)
        return self._numbers[token]

    def joins(self, tokens: Sequence[int]) -> list[tuple[int, int, str]]:
        """(first, count, text) wherever several tokens make one character."""
        found: list[tuple[int, int, str]] = []
        at = 0
        while self._tokenizer is not None and at < len(tokens):
            step = 1
            longest = 4 if UNKNOWN in self._piece(tokens[at]) else 1  # bytes of a character
            for count in range(2, min(longest, len(tokens) - at) + 1):
                text = self._tokenizer.decode(tokens[at : at + count], skip_special=False)
                if UNKNOWN not in text:
                    found.append((at, count, visible(text)))
                    step = count
                    break
            at += step
        return found

    def turns(self, tokens: Sequence[int]) -> list[Turn]:
        """A prompt in parts: control tokens part them, and a role in front names one."""
        parts: list[list[int]] = [[]]
        for token in tokens:
            if token in self._special:
                parts.append([])
            else:
                parts[-1].append(token)
        turns: list[Turn] = []
        role = ""
        for number, part in enumerate(parts):
            text = self._plain(part).strip()
            first, _, rest = text.partition("\n")
            # Right after a control token, and not after a role, it is no word of a text.
            if number and not role and first in ROLES:
                role, text = first, rest.strip()
            if text:
                turns.append(Turn(role, text))
                role = ""
        return turns

    def _piece(self, token: int) -> str:
        if token in self._texts:
            return self._texts[token]
        return str(token) if self._tokenizer is None else self._tokenizer.pieces([token])[0]

    def _plain(self, tokens: Sequence[int]) -> str:
        """A text as it is read: its lines stay lines, and odd characters are seen."""
        if self._tokenizer is not None:
            text = self._tokenizer.decode(tokens)
        else:
            text = ("" if self.reads else " ").join(map(self._piece, tokens))
        return "\n".join(visible(line.replace("\t", "    ")) for line in text.split("\n"))


def _texts(about: Mapping[str, Any]) -> dict[int, str]:
    """The texts that a trace brings along; anything else under that name is none."""
    found = about.get("texts")
    if not isinstance(found, dict):
        return {}
    return {
        int(token): text
        for token, text in found.items()
        if isinstance(token, str) and token.isdecimal() and isinstance(text, str)
    }


def _special(about: Mapping[str, Any]) -> frozenset[int]:
    found = about.get("special_ids")
    return frozenset(found) if isinstance(found, list) and _all_whole(found) else frozenset()


def _all_whole(values: Sequence[Any]) -> bool:
    return all(isinstance(one, int) for one in values)
