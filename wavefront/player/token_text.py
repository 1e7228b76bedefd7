"""Token ids of a trace as text.

A trace usually carries the texts of its tokens. If it does not, the tokenizer of the model that it
names reads them, provided that this model is on this machine. A trace file never causes a download.
Weights are never loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wavefront.core.errors import WavefrontError
from wavefront.player.visible_text import visible
from wavefront.storage.hub import locate
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.tokenizer import UNKNOWN, Tokenizer

MAX_SHOWN = 48  # characters shown of one token
MAX_BYTES = 4  # bytes of one UTF-8 character, so the most tokens that it can be split into
ID_DIGITS = 10  # digits of a token id
ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    """One part of a prompt."""

    role: str  # empty if the part has no role
    text: str


def load_tokenizer(name: str, *, offline: bool = False) -> Tokenizer:
    """Load the tokenizer of a model without its weights."""
    if name == "toy":
        return byte_tokenizer()
    return Tokenizer.load(locate(name, offline=offline, weights=False))


class TokenReaders:
    """Makes a `TokenReader` for each trace; `notes` says why a trace is shown as ids."""

    def __init__(self, model: str | Tokenizer | None = None) -> None:
        """Read every trace with the tokenizer of `model`, by default the one its header names."""
        self.notes: list[str] = []
        self._chosen = load_tokenizer(model) if isinstance(model, str) else model
        self._found: dict[str, Tokenizer | None] = {}

    def reader(self, about: Mapping[str, Any]) -> TokenReader:
        """Return the reader for a trace with this header."""
        if self._chosen is not None:
            return TokenReader({}, self._chosen.special_ids, self._chosen)
        texts, special = _texts(about), _special(about)
        # Only a tokenizer can join the tokens of a split character.
        if texts and not any(UNKNOWN in text for text in texts.values()):
            return TokenReader(texts, special, None)
        name = about.get("model")
        found = self._tokenizer(name) if name and isinstance(name, str) else None
        if texts:
            agrees = found is not None and found.pieces(texts) == list(texts.values())
            return TokenReader(texts, special, found if agrees else None)
        if found is None:
            self._note_ids(name)
            return TokenReader({}, frozenset(), None)
        return TokenReader({}, found.special_ids, found)

    def _tokenizer(self, name: str) -> Tokenizer | None:
        if name not in self._found:
            self._found[name] = None
            with contextlib.suppress(WavefrontError):
                self._found[name] = load_tokenizer(name, offline=True)
        return self._found[name]

    def _note_ids(self, name: Any) -> None:
        why = "A trace names no model"
        if name:
            why = f"The tokenizer of {name!r} is not on this machine"
        note = f"{why}, so its tokens are shown as ids. Name the model with --model."
        if note not in self.notes:
            self.notes.append(note)


class TokenReader:
    """The texts of one trace's tokens."""

    def __init__(
        self, texts: Mapping[int, str], special: frozenset[int], tokenizer: Tokenizer | None
    ) -> None:
        self._texts, self._special, self._tokenizer = texts, special, tokenizer
        self._shown: dict[int, str] = {}
        self.has_text = bool(texts) or tokenizer is not None  # otherwise there are only ids

    def text(self, token: int) -> str:
        """Return the displayed text of a token: short, and without invisible characters."""
        if token not in self._shown:
            shown = visible(self._piece(token)) or "·"
            if len(shown) > MAX_SHOWN:
                shown = shown[: MAX_SHOWN - 1] + "…"
            self._shown[token] = shown
        return self._shown[token]

    def joins(self, tokens: Sequence[int]) -> list[tuple[int, int, str]]:
        """Return (first, count, text) wherever several tokens make one character."""
        found: list[tuple[int, int, str]] = []
        at = 0
        while self._tokenizer is not None and at < len(tokens):
            step = 1
            longest = MAX_BYTES if UNKNOWN in self._piece(tokens[at]) else 1
            for count in range(2, min(longest, len(tokens) - at) + 1):
                text = self._tokenizer.decode(tokens[at : at + count], skip_special=False)
                if UNKNOWN not in text:
                    found.append((at, count, visible(text)))
                    step = count
                    break
            at += step
        return found

    def turns(self, tokens: Sequence[int]) -> list[Turn]:
        """Split a prompt at its control tokens; a role at the start of a part names that part."""
        parts: list[list[int]] = [[]]
        for token in tokens:
            if token in self._special:
                parts.append([])
            else:
                parts[-1].append(token)
        turns: list[Turn] = []
        role = ""
        for number, part in enumerate(parts):
            text = self.join(part).strip()
            first, _, rest = text.partition("\n")
            # A role follows a control token directly; anywhere else the word is ordinary text.
            if number and not role and first in ROLES:
                role, text = first, rest.strip()
            if text:
                turns.append(Turn(role, text))
                role = ""
        return turns

    def join(self, tokens: Sequence[int]) -> str:
        """Return continuous text, keeping line breaks and dropping invisible characters."""
        if self._tokenizer is not None:
            text = self._tokenizer.decode(tokens)
        else:
            text = ("" if self.has_text else " ").join(map(self._piece, tokens))
        return "\n".join(visible(line.replace("\t", "    ")) for line in text.split("\n"))

    def _piece(self, token: int) -> str:
        if token in self._texts:
            return self._texts[token]
        return str(token) if self._tokenizer is None else self._tokenizer.pieces([token])[0]


def _texts(about: Mapping[str, Any]) -> dict[int, str]:
    """Return the token texts of a trace header; ignore entries of another form."""
    found = about.get("texts")
    if not isinstance(found, dict):
        return {}
    return {
        int(token): text
        for token, text in found.items()
        if isinstance(token, str)
        and len(token) <= ID_DIGITS
        and token.isdecimal()
        and isinstance(text, str)
    }


def _special(about: Mapping[str, Any]) -> frozenset[int]:
    found = about.get("special_ids")
    valid = isinstance(found, list) and all(isinstance(token, int) for token in found)
    return frozenset(found) if isinstance(found, list) and valid else frozenset()
