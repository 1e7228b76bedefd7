"""Convert text to token ids and back. Only this module does this.

**Control tokens** (end of turn, headers, the mask token...) are the added tokens that a checkpoint
marks as special, gives a role such as `eos_token`, or spells `<|like this|>`. Text never becomes a
control token: `encode` reads `<|eot_id|>` as ten characters. So a user cannot end a turn, open
another role or insert a mask by typing. Only `encode_rendered` reads control tokens, and only those
that a chat template wrote, outside the contents of messages. Text without a control token gets the
same ids as from the checkpoint's own tokenizer.

**Unknown ids.** Embedding matrices have more rows than the vocabulary. Ids beyond the vocabulary
decode to U+FFFD.

**Untrusted tokenizers.** A `tokenizer.json` can describe work that never ends. So a checkpoint's
tokenizer is first loaded and tried in a child process with limits on time and memory (`limited`).
If its parts all take linear time (`tokenizer_parts`), it then runs in this process. Otherwise every
later call runs in the child. Tokenizers of this package skip both.

**Spaces.** Most vocabularies hold words with the space before them: ` dog` is one token. So the
space before a hole belongs to the hole (`hole_segments`), where the model can write ` dog`.
Sentencepiece adds a space before every text; text after a hole is encoded without it (`inside`).

**Begin of sequence.** Templates write their own. Raw text gets one if `add_bos_token` is set in the
checkpoint's `tokenizer_config.json`. Nothing else is added.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from wavefront.core.errors import EMPTY_PROMPT, CheckpointError, OptionError, PromptError, quote
from wavefront.storage.hub import (
    BUILTIN,
    CONFIG,
    TEXT_FILES,
    listed_ids,
    read_json,
    read_text,
)
from wavefront.text import chat_template, limited, tokenizer_parts

Json = Mapping[str, Any]

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# End-of-turn tokens by spelling, because no config file of either family names them.
END_OF_TURN = ("<|eot_id|>", "<|im_end|>")
TEXT_LIMIT = 64 << 20  # characters to encode at once
# Control tokens, and characters of each; every text is searched for all of them.
CONTROL_LIMIT, CONTROL_LENGTH = 1 << 14, 1024
LOAD_SECONDS, CALL_SECONDS = 30.0, 2.0  # computing time of an untrusted tokenizer
WHAT = "The checkpoint's tokenizer"
# Texts that an untrusted tokenizer must be able to encode and decode.
PROBES = (
    "The cat sat on 12 mats,\r\n\tdidn't it? <|x|> é 日本語 😀\u200d\x00",
    *(
        piece * 2048
        for piece in ("a", " ", "\n", "0", ".", "aB", "a ", " a", "é", "字", "a\n", "=-")
    ),
)
# How vocabularies spell the space before a word: sentencepiece, and byte-level ones.
SPACES = ("▁", "Ġ")
# Texts that no token combines with the text after them; the first that works is used.
ANCHORS = ("\n", ".", "x")
RENDERED_AT_ONCE = 64  # prompts in one call of a chat template
FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")

# How Qwen2 splits text before byte-pair merging: single digits, words with the space before them,
# line breaks with the blanks before them.
_QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Infill(NamedTuple):
    """A text with holes as ids; `holes` is True at the positions to fill."""

    ids: list[int]
    holes: list[bool]


class Tokenizer:
    """A checkpoint's vocabulary, its stop ids and its chat template."""

    def __init__(
        self,
        backend: Backend,
        settings: Json,
        config: Json,
        *,
        template: str | None = None,
        trusted: bool = False,
    ) -> None:
        """Wrap a backend.

        Args:
            backend: The tokenizer of the `tokenizers` library.
            settings: The content of `tokenizer_config.json`.
            config: The content of `config.json`.
            template: The source of the chat template.
            trusted: Run the template in this process, without limits on time and memory.
        """
        self.template: str | None = template
        self.trusted: bool = trusted
        # The files to give to the child process; None runs the call in this process.
        self._encode_in_child: _Files | None = None
        self._decode_in_child: _Files | None = None
        self.special_tokens: dict[str, str] = chat_template.named_tokens(settings)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.bos_id: int | None = backend.token_to_id(self.special_tokens.get("bos_token", ""))
        # The ids that raw text starts with.
        self.opening: list[int] = _ids(self.bos_id) if settings.get("add_bos_token") is True else []
        end = backend.token_to_id(self.special_tokens.get("eos_token", ""))
        stops = _config_ids(config, "eos_token_id") or _ids(end)
        masks = _config_ids(config, "mask_token_id")
        stops += _ids([backend.token_to_id(token) for token in END_OF_TURN])
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))
        if ends := sorted(set(masks).intersection(stops)):
            raise CheckpointError(
                f"The mask token (id {ends[0]}) is also an end token in config.json or the "
                "tokenizer's files; correct one of them."
            )

        added = backend.get_added_tokens_decoder()
        names = {*self.special_tokens.values(), *chat_template.extra_tokens(settings)}
        names |= {added[id].content for id in masks if id in added}
        self.special_ids: frozenset[int] = frozenset(
            id for id, token in added.items() if token.special or token.content in names
        )
        self._control = {
            token.content: id
            for id, token in added.items()
            if id in self.special_ids or re.fullmatch(r"<\|.*\|>", token.content)
        }
        if len(self._control) > CONTROL_LIMIT:
            raise CheckpointError(
                f"The tokenizer has {len(self._control)} control tokens, more than {CONTROL_LIMIT}."
            )
        if (longest := max(map(len, self._control), default=0)) > CONTROL_LENGTH:
            raise CheckpointError(
                f"A control token has {longest} characters, more than {CONTROL_LENGTH}."
            )
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # The backend can ignore special tokens in text, so make every control token special.
        backend.add_special_tokens(list(self._control))
        backend.encode_special_tokens = True
        # A tokenizer file may set truncation or padding, which must not change prompts.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend

    def __repr__(self) -> str:
        template = "a" if self.template is not None else "no"
        return f"Tokenizer({self.vocab_size} tokens, {template} chat template)"

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Load a tokenizer from `tokenizer.json`, or from `vocab.json` and `merges.txt`.

        Raises:
            CheckpointError: A file is missing, damaged or too large, or the tokenizer reaches a
                limit of time or memory.
        """
        directory = Path(directory)
        if BUILTIN in directory.resolve().parents:
            return cls._load(directory, trusted=True)
        files = _Files.of(directory)
        linear = limited.call(
            f"{__name__}:probe",
            {"directory": str(directory), "stamp": files.stamp},
            seconds=LOAD_SECONDS,
            what=WHAT,
            error=CheckpointError,
        )
        tokenizer = cls._load(directory, trusted=False)
        tokenizer._encode_in_child = None if linear["encode"] else files
        tokenizer._decode_in_child = None if linear["decode"] else files
        return tokenizer

    @classmethod
    def _load(cls, directory: Path, *, trusted: bool) -> Tokenizer:
        """Load a tokenizer in this process."""
        settings = read_json(directory / "tokenizer_config.json", required=False)
        added = _added_tokens(directory, settings)
        backend = _read_backend(directory, added)
        # Settings may list tokens that tokenizer.json lacks; each must get its listed id.
        backend.add_tokens(list(added.values()))
        for id, token in added.items():
            if backend.token_to_id(token.content) != id:
                raise CheckpointError(
                    f"The files in {directory} disagree about the id of {quote(token.content)}; "
                    "fetch the checkpoint again."
                )
        template = chat_template.find_template(
            directory, settings, knows=lambda token: backend.token_to_id(token) is not None
        )
        config = read_json(directory / "config.json", required=False)
        with _panics(CheckpointError):
            return cls(backend, settings, config, template=template, trusted=trusted)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None if it is not in the vocabulary."""
        return self._backend.token_to_id(token)

    def to_json(self) -> str:
        """Return the whole tokenizer as JSON. Equal JSON means equal tokenizers."""
        return self._backend.to_str()

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the whole tokenizer."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def token_bytes(self) -> list[bytes | None]:
        """Return the bytes of every token, by id; None for a control token and an unused id.

        The text of some ids is their bytes in a row, except for `drops_first_space`.

        Raises:
            OptionError: The kind of the tokenizer's decoder is unknown.
        """
        kinds = self._decoder_kinds()
        to_bytes = _byte_level if "ByteLevel" in kinds else _sentence_piece
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise OptionError(
                "Constraints need a tokenizer whose tokens are bytes, and this one's are not."
            )
        hidden = self.special_ids.union(self._control.values())
        found: list[bytes | None] = [None] * self.vocab_size
        for token, id in self._backend.get_vocab(with_added_tokens=True).items():
            if id not in hidden:
                found[id] = to_bytes(token) or None
        return found

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """The ids of single bytes, such as <0xE9>, which decode together with their neighbours."""
        spelled = [self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        found = frozenset(id for id in spelled if id is not None)
        return found if found and "ByteFallback" in self._decoder_kinds() else frozenset()

    @functools.cached_property
    def drops_first_space(self) -> bool:
        """Whether a space at the start of a text disappears when ids become text."""
        decoder = json.loads(self.to_json()).get("decoder") or {}
        parts = decoder.get("decoders", [decoder])
        stripped = any(part["type"] == "Strip" and part.get("start") for part in parts)
        return stripped or any(
            part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never"
            for part in parts
        )

    def _decoder_kinds(self) -> set[str]:
        decoder = json.loads(self.to_json()).get("decoder") or {}
        return {part["type"] for part in decoder.get("decoders", [decoder]) if part}

    def encode(self, text: str, *, bos: bool = False, inside: bool = False) -> list[int]:
        """Return the ids of plain text.

        Args:
            text: The text.
            bos: Start with the begin-of-sequence id if there is one.
            inside: The text follows other text, so leave out the space that a sentencepiece
                tokenizer adds before a text.

        Raises:
            PromptError: The text is not valid Unicode, is too long, or spells a control token.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The text has a lone surrogate at character {error.start}; remove it."
            ) from None
        ids = self._encode_inside(text) if inside else self._encode(text)
        # This happens only if merging the vocabulary's own tokens gives a control token.
        if spelled := set(ids).intersection(self._control.values()):
            token = self._backend.id_to_token(min(spelled))
            raise PromptError(f"The text contains the control token {token!r}; remove it.")
        return [self.bos_id, *ids] if bos and self.bos_id is not None else ids

    def encode_rendered(self, text: str, contents: Sequence[chat_template.Span] = ()) -> list[int]:
        """Return the ids of a template's output, with its control tokens outside the contents."""
        ids: list[int] = []
        start = position = 0
        while match := self._pattern.search(text, position):
            first, last = match.span()
            inside = next((span for span in contents if first < span[1] and span[0] < last), None)
            if inside:
                position = inside[1] if first >= inside[0] else first + 1
                continue
            # Encode the text between two control tokens in one piece, template text and content
            # together, because models are trained on ids merged across that border.
            ids += self.encode(text[start:first])
            ids.append(self._control[match[0]])
            start = position = last
        return ids + self.encode(text[start:])

    def controls(self, text: str) -> list[str]:
        """Return the control tokens that `text` contains, in order."""
        return self._pattern.findall(text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, start: bool = False) -> str:
        """Return the text of `ids`; an unknown id or an incomplete character becomes U+FFFD.

        Args:
            ids: The token ids.
            skip_special: Leave out special tokens.
            start: The ids are the start of a text, so leave out the space that a sentencepiece
                tokenizer adds there.
        """
        kept = (id for id in ids if not (skip_special and id in self.special_ids))
        runs = ((known, list(run)) for known, run in groupby(kept, self._knows))
        text = "".join(self._decode(run) if known else UNKNOWN * len(run) for known, run in runs)
        return text.removeprefix(" ") if start and self._decodes_added_space else text

    @functools.cached_property
    def joins_spaces(self) -> bool:
        """Whether the vocabulary holds words with the space before them."""
        vocabulary = self._backend.get_vocab(with_added_tokens=False)
        return any(token.startswith(SPACES) and token[1:2].isalpha() for token in vocabulary)

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Whether encoding adds a space before a text."""
        first = self._encode("x")[:1]
        token = self._backend.id_to_token(first[0]) if first else None
        return token is not None and token.startswith(SPACES)

    @functools.cached_property
    def _decodes_added_space(self) -> bool:
        """Whether decoding keeps the space that encoding adds; most decoders remove it."""
        return self._adds_space and self._decode(self._encode("x")).startswith(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return one display string per id; a token that is part of a character shows U+FFFD."""
        texts = (self.decode([id], skip_special=False) for id in ids)
        return [re.sub(f"{UNKNOWN}+", UNKNOWN, text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        """Return the backend's ids of a text."""
        if len(text) > TEXT_LIMIT:
            raise PromptError(f"The text has {len(text)} characters, more than {TEXT_LIMIT}.")
        if self._encode_in_child is not None:
            return self._encode_in_child.call("encode_here", text=text)
        with _panics(PromptError):
            return self._backend.encode(text, add_special_tokens=False).ids

    def _encode_inside(self, text: str) -> list[int]:
        """Return the backend's ids of a text that follows other text."""
        for anchor in ANCHORS if self._adds_space else ():
            before, ids = self._encode(anchor), self._encode(anchor + text)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._encode(text)

    def _decode(self, ids: list[int]) -> str:
        """Return the backend's text of known ids."""
        if self._decode_in_child is not None:
            return self._decode_in_child.call("decode_here", ids=ids)
        with _panics(PromptError):
            return self._backend.decode(ids, skip_special_tokens=False)

    def _knows(self, id: int) -> bool:
        """Return whether an id is in the vocabulary."""
        return 0 <= id < self.vocab_size and self._backend.id_to_token(id) is not None


def _byte_level(token: str) -> bytes:
    """Return the bytes of a token that spells each byte as one character, as GPT-2's do."""
    if all(letter in _BYTE_OF for letter in token):
        return bytes(_BYTE_OF[letter] for letter in token)
    return token.encode()  # an added token is plain text


def _sentence_piece(token: str) -> bytes:
    """Return the bytes of a token of a sentencepiece model, such as ▁the or <0xE9>."""
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def _letters_of_bytes() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet: printable bytes are themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    return letters | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _letters_of_bytes()


class _Files(NamedTuple):
    """The files of a tokenizer, as they were when it was loaded."""

    directory: Path
    stamp: list[list[Any]]  # name, size, times of modification and of change, number

    @classmethod
    def of(cls, directory: Path) -> _Files:
        stamp: list[list[Any]] = []
        for name in (*TEXT_FILES, CONFIG):
            with contextlib.suppress(OSError):
                state = (directory / name).stat()
                # A program can set the time of modification back, but not the time of change.
                times = [state.st_mtime_ns, state.st_ctime_ns]
                stamp.append([name, state.st_size, *times, state.st_ino])
        return cls(directory, stamp)

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of this module in the child process, with this tokenizer."""
        return limited.call(
            f"{__name__}:{function}",
            {"directory": str(self.directory), "stamp": self.stamp, **arguments},
            seconds=CALL_SECONDS,
            what=WHAT,
            error=PromptError,
        )


def probe(directory: str, stamp: list[list[Any]]) -> dict[str, bool]:
    """Load and try a tokenizer, and return which calls take linear time."""
    tokenizer = _load_here(directory, json.dumps(stamp))
    for text in PROBES:
        ids = tokenizer._encode(text)
        tokenizer._decode([id for id in ids if tokenizer._knows(id)])
    return tokenizer_parts.linear_calls(json.loads(tokenizer.to_json()))


def try_tokenizer(file: Path, *, what: str) -> None:
    """Load a `tokenizer.json` and encode a few texts, under limits of time and memory.

    Raises:
        CheckpointError: It cannot be loaded, or reaches a limit.
    """
    limited.call(
        f"{__name__}:encode_probes",
        {"file": str(file.resolve())},
        seconds=LOAD_SECONDS,
        what=what,
        error=CheckpointError,
    )


def encode_probes(file: str) -> int:
    """Encode a few texts with a tokenizer, in the child process, and return the number of ids."""
    backend = Backend.from_str(read_text(Path(file)))
    return sum(len(backend.encode(text).ids) for text in PROBES)


def encode_here(directory: str, stamp: list[list[Any]], text: str) -> list[int]:
    """Return the ids of a text, in the child process."""
    return _load_here(directory, json.dumps(stamp))._encode(text)


def decode_here(directory: str, stamp: list[list[Any]], ids: list[int]) -> str:
    """Return the text of ids, in the child process."""
    return _load_here(directory, json.dumps(stamp))._decode(ids)


@functools.lru_cache(maxsize=8)
def _load_here(directory: str, stamp: str) -> Tokenizer:
    """Load a tokenizer, in the child process; `stamp` is the parent's, as JSON."""
    files = _Files.of(Path(directory))
    if json.dumps(files.stamp) != stamp:
        raise CheckpointError(f"The files in {directory} have changed; load it again.")
    return Tokenizer._load(files.directory, trusted=False)


@contextlib.contextmanager
def _panics(error: type[CheckpointError | PromptError]) -> Iterator[None]:
    """Turn a panic of the library's Rust code, which is not an Exception, into a sentence."""
    try:
        yield
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        reason = " ".join(str(problem).split())[:200].rstrip(".")
        raise error(f"{WHAT} failed: {reason}.") from None


def visible_tokens(tokens: Iterable[int], stop_ids: Iterable[int]) -> list[int]:
    """Return the tokens before the first stop id."""
    stops = frozenset(stop_ids)
    return list(takewhile(lambda token: token not in stops, tokens))


def stable_text(tokenizer: Tokenizer, ids: Iterable[int], *, start: bool = False) -> str:
    """Return the text of a final prefix that later tokens cannot change.

    As the prefix grows, each result starts with the previous one. A trailing U+FFFD is left out,
    because the next token may complete the character. So are trailing byte tokens: if one of them
    is wrong, all of them decode to U+FFFD. At the end, `decode` gives the rest; `start` has the
    same meaning there.
    """
    found = [id for id in ids if id not in tokenizer.special_ids]
    while found and found[-1] in tokenizer.byte_ids:
        found.pop()
    return tokenizer.decode(found, start=start).rstrip(UNKNOWN)


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | Sequence[chat_template.Message],
    *,
    raw: bool = False,
    parse_control: bool = False,
) -> list[int]:
    """Return the ids of a user turn, a conversation, or raw text.

    Args:
        tokenizer: The checkpoint's tokenizer.
        prompt: A string, or a list of messages. A string is one user turn if the checkpoint has a
            chat template and `raw` is False.
        raw: Skip the chat template.
        parse_control: Read control tokens in a raw prompt that a template has rendered already.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PromptError(EMPTY_PROMPT)
        if raw or tokenizer.template is None:
            ids = tokenizer.encode_rendered(prompt) if parse_control else tokenizer.encode(prompt)
            return ids if ids[:1] == tokenizer.opening else tokenizer.opening + ids
        prompt = [{"role": "user", "content": prompt}]
    if raw or parse_control:
        raise PromptError("raw and parse_control skip the template; give a string and raw=True.")
    messages = chat_template.check_messages(prompt)
    if tokenizer.template is None:
        raise PromptError("This checkpoint has no chat template; give one string, not messages.")
    rendered = chat_template.render(
        messages,
        template=tokenizer.template,
        special_tokens=tokenizer.special_tokens,
        trusted=tokenizer.trusted,
    )
    return _rendered_ids(tokenizer, rendered)


def many_prompt_ids(tokenizer: Tokenizer, prompts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the ids of every prompt, as `prompt_ids` gives them for one user turn.

    The template is called once for many prompts, because a call takes longer than its work.
    """
    if tokenizer.template is None or not all(prompt.strip() for prompt in prompts):
        yield from (prompt_ids(tokenizer, prompt) for prompt in prompts)
        return
    for first in range(0, len(prompts), RENDERED_AT_ONCE):
        for rendered in chat_template.render_all(
            [
                [{"role": "user", "content": one}]
                for one in prompts[first : first + RENDERED_AT_ONCE]
            ],
            template=tokenizer.template,
            special_tokens=tokenizer.special_tokens,
            trusted=tokenizer.trusted,
        ):
            yield _rendered_ids(tokenizer, rendered)


def _rendered_ids(tokenizer: Tokenizer, rendered: chat_template.RenderedPrompt) -> list[int]:
    found = tokenizer.controls(rendered.text)
    if rendered.contents is None and found != tokenizer.controls(rendered.outline):
        raise PromptError(
            "A message contains a control token, and this checkpoint's chat template rewrites "
            "messages, so the two cannot be distinguished; remove the control token."
        )
    return tokenizer.encode_rendered(rendered.text, rendered.contents or ())


def infill_ids(
    tokenizer: Tokenizer, text: str, *, mask_id: int, constrained: bool = False
) -> Infill:
    """Return the ids of a text with holes (see `parse_holes`), with `mask_id` in the holes.

    The holes of a constrained request hold only what satisfies the constraint, so a space before
    a hole stays in the text.
    """
    ids = list(tokenizer.opening)
    holes = [False] * len(ids)
    segments = chat_template.parse_holes(text)
    for segment in hole_segments(tokenizer, segments, join_spaces=not constrained):
        ids += segment if isinstance(segment, list) else [mask_id] * segment
        holes += [False] * len(segment) if isinstance(segment, list) else [True] * segment
    return Infill(ids, holes)


def hole_segments(
    tokenizer: Tokenizer, segments: Sequence[str | int], *, join_spaces: bool = True
) -> list[list[int] | int]:
    """Encode the texts around holes, so that each joins what the model writes.

    The space before a hole becomes part of the hole if the vocabulary holds words with the space
    before them. A text after a hole gets no space that it does not have.

    Args:
        tokenizer: The checkpoint's tokenizer.
        segments: Texts, and the lengths of the holes between them.
        join_spaces: False leaves every space before a hole in the text.

    Returns:
        The ids of each text and the length of each hole, in the same order.
    """
    encoded: list[list[int] | int] = []
    for number, segment in enumerate(segments):
        if isinstance(segment, int):
            encoded.append(segment)
            continue
        before_hole = number + 1 < len(segments)
        if before_hole and join_spaces and tokenizer.joins_spaces:
            segment = segment.removesuffix(" ")
        encoded.append(tokenizer.encode(segment, inside=number > 0))
    return encoded


def _ids(value: object) -> list[int]:
    """Return a file's entry, which is an id, a list of ids or None, as a list."""
    return [id for id in (value if isinstance(value, list) else [value]) if type(id) is int]


def _config_ids(config: Json, key: str) -> list[int]:
    """Return the ids under a key of config.json."""
    for id in (found := listed_ids(config, key)):
        if type(id) is not int or id < 0:
            raise CheckpointError(f"config.json: {key} = {quote(id)} is not a token id.")
    return found


def _added_tokens(directory: Path, settings: Json) -> dict[int, AddedToken]:
    """Return the added tokens, in id order.

    `added_tokens.json` has no flags, so it is used only if there is no `tokenizer.json`.
    """
    has_tokenizer = (directory / "tokenizer.json").is_file()
    plain = {} if has_tokenizer else read_json(directory / "added_tokens.json", required=False)
    try:
        added = {int(id): AddedToken(token, normalized=False) for token, id in plain.items()}
        for id, entry in (settings.get("added_tokens_decoder") or {}).items():
            flags = {flag: entry[flag] for flag in FLAGS if flag in entry}
            added[int(id)] = AddedToken(entry["content"], **flags)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The added tokens of {directory} have an unknown format; fetch the checkpoint again."
        ) from error
    return dict(sorted(added.items()))


def _read_backend(directory: Path, added: Mapping[int, AddedToken]) -> Backend:
    """Return the tokenizer from the checkpoint's files."""
    try:
        with _panics(CheckpointError):
            return _open_backend(directory, added)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(
            f"The tokenizer in {directory} cannot be read; fetch the checkpoint again."
        ) from error


def _open_backend(directory: Path, added: Mapping[int, AddedToken]) -> Backend:
    """Return the tokenizer from the files that exist."""
    if (directory / "tokenizer.json").is_file():
        return Backend.from_str(read_text(directory / "tokenizer.json"))
    if (directory / "vocab.json").is_file():
        return _from_vocabulary(directory, added)
    raise CheckpointError(
        f"No tokenizer in {directory}; it needs tokenizer.json, or vocab.json and merges.txt."
    )


def _from_vocabulary(directory: Path, added: Mapping[int, AddedToken]) -> Backend:
    """Return Qwen2's tokenizer from `vocab.json` and `merges.txt`."""
    # An added token keeps its id only inside the vocabulary; the library would renumber it.
    vocabulary = read_json(directory / "vocab.json", required=False)
    vocabulary |= {token.content: id for id, token in added.items()}
    lines = read_text(directory / "merges.txt").split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    return qwen2_backend(vocabulary, [(left, right) for left, right in pairs])


def qwen2_backend(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Backend:
    """Return Qwen2's byte-level tokenizer from its vocabulary and its merges, best first."""
    backend = Backend(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    backend.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(_QWEN2_PIECES), behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, spell])
    backend.decoder = decoders.ByteLevel()
    return backend
