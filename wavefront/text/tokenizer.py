"""Text to ids and back: the only place strings meet ids.

**Control tokens** (end of turn, headers, the mask token...) are the added tokens that a checkpoint
flags as special, gives a role such as `eos_token`, or spells `<|like this|>`. Text never turns into
one: `encode` takes `<|eot_id|>` for ten characters, so nobody can end a turn, open another role or
plant a mask by typing. Only what a chat template itself writes is read as control tokens, by
`encode_rendered`; the contents of messages are spans it leaves alone. Text without any control
token's spelling gets the ids that the checkpoint's own tokenizer gives it, whichever way it comes.

**Unknown ids.** Embedding matrices have more rows than the vocabulary: those decode to U+FFFD.

**Begin of sequence.** Templates write their own. Raw text gets one when the checkpoint's
`tokenizer_config.json` says `add_bos_token`; nothing else is ever added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from wavefront.core.errors import CheckpointError, PromptError
from wavefront.storage.hub import read_json
from wavefront.text import chat_template

Json = Mapping[str, Any]

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# End-of-turn tokens by spelling: no config file of either family names them.
END_OF_TURN = ("<|eot_id|>", "<|im_end|>")
FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")

# How Qwen2's vocabulary wants text cut before byte-pair merging: single digits, a space at the
# front of a word, line breaks with the blanks before them.
_QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Infill(NamedTuple):
    """A text with holes as ids; `holes` is True at the places to fill."""

    ids: list[int]
    holes: list[bool]


class Tokenizer:
    """A checkpoint's vocabulary, its stop ids and its chat template."""

    def __init__(
        self, backend: Backend, settings: Json, config: Json, *, template: str | None = None
    ) -> None:
        """`settings` is `tokenizer_config.json`, `config` is `config.json`; `backend` is kept."""
        self.template: str | None = template
        self.special_tokens: dict[str, str] = chat_template.named_tokens(settings)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.bos_id: int | None = backend.token_to_id(self.special_tokens.get("bos_token", ""))
        # What raw text starts with.
        self.opening: list[int] = _ids(self.bos_id) if settings.get("add_bos_token") is True else []
        end = backend.token_to_id(self.special_tokens.get("eos_token", ""))
        stops = _ids(config.get("eos_token_id")) or _ids(end)
        stops += _ids([backend.token_to_id(token) for token in END_OF_TURN])
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))

        added = backend.get_added_tokens_decoder()
        names = {*self.special_tokens.values(), *chat_template.extra_tokens(settings)}
        names |= {added[id].content for id in _ids(config.get("mask_token_id")) if id in added}
        self.special_ids: frozenset[int] = frozenset(
            id for id, token in added.items() if token.special or token.content in names
        )
        self._control = {
            token.content: id
            for id, token in added.items()
            if id in self.special_ids or re.fullmatch(r"<\|.*\|>", token.content)
        }
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # The backend can pass over special tokens in text, so each control token becomes one.
        backend.add_special_tokens(list(self._control))
        backend.encode_special_tokens = True
        # A file may bring a length to cut at or to pad to, and prompts must stay as they are.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """From `tokenizer.json`, or from `vocab.json` and `merges.txt` where it is missing."""
        directory = Path(directory)
        settings = read_json(directory / "tokenizer_config.json", required=False)
        added = _added_tokens(directory, settings)
        backend = _read_backend(directory, added)
        # Settings may list tokens that tokenizer.json lacks; each must get the id listed.
        backend.add_tokens(list(added.values()))
        for id, token in added.items():
            if backend.token_to_id(token.content) != id:
                raise CheckpointError(
                    f"The files in {directory} disagree about the id of {token.content!r}: "
                    "get the checkpoint again."
                )
        template = chat_template.find_template(
            directory, settings, knows=lambda token: backend.token_to_id(token) is not None
        )
        config = read_json(directory / "config.json", required=False)
        return cls(backend, settings, config, template=template)

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def to_json(self) -> str:
        """The vocabulary and how text is cut into it: two tokenizers that agree here are one."""
        return self._backend.to_str()

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        """Ids of `text`, as text; `bos` puts the begin-of-sequence id in front, if there is one."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The text has half a character (a surrogate) at place {error.start}: remove it."
            ) from None
        ids = self._backend.encode(text, add_special_tokens=False).ids
        # Only a vocabulary whose own merging spells out a control token can come to this.
        if spelled := set(ids).intersection(self._control.values()):
            token = self._backend.id_to_token(min(spelled))
            raise PromptError(f"The text spells the control token {token!r}: remove it.")
        return [self.bos_id, *ids] if bos and self.bos_id is not None else ids

    def encode_rendered(self, text: str, contents: Sequence[chat_template.Span] = ()) -> list[int]:
        """Ids of a template's output: control tokens count, but none that touches a content."""
        ids: list[int] = []
        start = position = 0
        while match := self._pattern.search(text, position):
            first, last = match.span()
            held = next((span for span in contents if first < span[1] and span[0] < last), None)
            if held:
                position = held[1] if first >= held[0] else first + 1
                continue
            # What lies between two control tokens goes through in one piece, template text and
            # content together: models are trained on ids merged across that border.
            ids += self.encode(text[start:first])
            ids.append(self._control[match[0]])
            start = position = last
        return ids + self.encode(text[start:])

    def controls(self, text: str) -> list[str]:
        """The control tokens spelled in `text`, in order."""
        return self._pattern.findall(text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; an id nobody knows, or a stray part of a character, is U+FFFD."""
        kept = (id for id in ids if not (skip_special and id in self.special_ids))
        runs = ((known, list(run)) for known, run in groupby(kept, self._knows))
        return "".join(
            self._backend.decode(run, skip_special_tokens=False) if known else UNKNOWN * len(run)
            for known, run in runs
        )

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One display string per id; a token that is part of a character shows one U+FFFD."""
        texts = (self.decode([id], skip_special=False) for id in ids)
        return [re.sub(f"{UNKNOWN}+", UNKNOWN, text) for text in texts]

    def _knows(self, id: int) -> bool:
        return 0 <= id < self.vocab_size and self._backend.id_to_token(id) is not None


def visible(tokens: Iterable[int], stop_ids: Iterable[int]) -> list[int]:
    """What comes before the first stop id."""
    stops = frozenset(stop_ids)
    return list(takewhile(lambda token: token not in stops, tokens))


def stable_text(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Text of a settled prefix that no later token can change: it ends on a whole character.

    Along a growing prefix each result starts with the one before. Trailing U+FFFD is held back,
    because the next token may complete it; when nothing more comes, `decode` has the rest.
    """
    return tokenizer.decode(ids).rstrip(UNKNOWN)


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | Sequence[chat_template.Message],
    *,
    raw: bool = False,
    parse_control: bool = False,
) -> list[int]:
    """Ids of one user turn, of a conversation, or of raw text.

    A string is a user turn when the checkpoint has a chat template and `raw` is off. Raw text is
    text as well; `parse_control` is for callers who hand over a prompt some template has rendered.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise PromptError("The prompt is empty: write something in it.")
        if raw or tokenizer.template is None:
            ids = tokenizer.encode_rendered(prompt) if parse_control else tokenizer.encode(prompt)
            return ids if ids[:1] == tokenizer.opening else tokenizer.opening + ids
        prompt = [{"role": "user", "content": prompt}]
    if raw or parse_control:
        raise PromptError("raw and parse_control go past the template: give a string and raw=True.")
    messages = chat_template.check_messages(prompt)
    if tokenizer.template is None:
        raise PromptError("This checkpoint has no chat template: give one string, not messages.")
    rendered = chat_template.render(
        messages, template=tokenizer.template, special_tokens=tokenizer.special_tokens
    )
    found = tokenizer.controls(rendered.text)
    if rendered.contents is None and found != tokenizer.controls(rendered.outline):
        raise PromptError(
            "A message spells a control token, and this checkpoint's chat template rewrites "
            "messages so that the two cannot be told apart: remove it."
        )
    return tokenizer.encode_rendered(rendered.text, rendered.contents or ())


def infill_ids(tokenizer: Tokenizer, text: str, *, mask_id: int) -> Infill:
    """Ids of a raw text with holes (`chat_template.parse_holes`), `mask_id` at every place to fill."""
    ids = list(tokenizer.opening)
    holes = [False] * len(ids)
    for segment in chat_template.parse_holes(text):
        places = tokenizer.encode(segment) if isinstance(segment, str) else [mask_id] * segment
        ids += places
        holes += [isinstance(segment, int)] * len(places)
    return Infill(ids, holes)


def _ids(value: object) -> list[int]:
    """An id, a list of them or nothing, as files have it: always a list."""
    return [id for id in (value if isinstance(value, list) else [value]) if type(id) is int]


def _added_tokens(directory: Path, settings: Json) -> dict[int, AddedToken]:
    """Tokens beside the merged vocabulary, in id order.

    `added_tokens.json` has no flags, so it counts only where no `tokenizer.json` knows better.
    """
    whole = (directory / "tokenizer.json").is_file()
    plain = {} if whole else read_json(directory / "added_tokens.json", required=False)
    try:
        added = {int(id): AddedToken(token, normalized=False) for token, id in plain.items()}
        for id, entry in (settings.get("added_tokens_decoder") or {}).items():
            flags = {flag: entry[flag] for flag in FLAGS if flag in entry}
            added[int(id)] = AddedToken(entry["content"], **flags)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The added tokens of {directory} are not as we know them: get the checkpoint again."
        ) from error
    return dict(sorted(added.items()))


def _read_backend(directory: Path, added: Mapping[int, AddedToken]) -> Backend:
    try:
        if (directory / "tokenizer.json").is_file():
            return Backend.from_file(str(directory / "tokenizer.json"))
        if (directory / "vocab.json").is_file():
            return _from_vocabulary(directory, added)
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(
            f"The tokenizer in {directory} cannot be read: get the checkpoint again."
        ) from error
    raise CheckpointError(
        f"No tokenizer in {directory}: there must be tokenizer.json, or vocab.json and merges.txt."
    )


def _from_vocabulary(directory: Path, added: Mapping[int, AddedToken]) -> Backend:
    """Qwen2's tokenizer from its two older files."""
    # Inside the vocabulary an added token keeps its id; left to itself, the library numbers anew.
    vocabulary = read_json(directory / "vocab.json", required=False)
    vocabulary |= {token.content: id for id, token in added.items()}
    lines = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    merges = [(left, right) for left, right in pairs]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(_QWEN2_PIECES), behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, spell])
    backend.decoder = decoders.ByteLevel()
    return backend
