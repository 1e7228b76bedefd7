"""Convert text to token ids and back. Nothing else in the project does.

**Control tokens** (end of turn, headers, the mask token...) are the added tokens that a checkpoint
marks as special, gives a role such as `eos_token`, or spells `<|like this|>`. Text never becomes a
control token: `encode` reads `<|eot_id|>` as ten characters. So a user cannot end a turn, open
another role or insert a mask by typing. Only `encode_rendered` reads control tokens, and only those
that a chat template wrote, outside the contents of messages. Text without a control token gets the
same ids as from the checkpoint's own tokenizer.

**Unknown ids.** Embedding matrices have more rows than the vocabulary. Ids beyond the vocabulary
decode to U+FFFD.

**Begin of sequence.** Templates write their own. Raw text gets one if `add_bos_token` is set in the
checkpoint's `tokenizer_config.json`. Nothing else is added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from wavefront.core.errors import EMPTY_PROMPT, CheckpointError, PromptError
from wavefront.storage.hub import read_json
from wavefront.text import chat_template

Json = Mapping[str, Any]

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# End-of-turn tokens by spelling, because no config file of either family names them.
END_OF_TURN = ("<|eot_id|>", "<|im_end|>")
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
        self, backend: Backend, settings: Json, config: Json, *, template: str | None = None
    ) -> None:
        """Wrap `backend`. `settings` is `tokenizer_config.json`, and `config` is `config.json`."""
        self.template: str | None = template
        self.special_tokens: dict[str, str] = chat_template.named_tokens(settings)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.bos_id: int | None = backend.token_to_id(self.special_tokens.get("bos_token", ""))
        # The ids that raw text starts with.
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
        # The backend can ignore special tokens in text, so make every control token special.
        backend.add_special_tokens(list(self._control))
        backend.encode_special_tokens = True
        # A tokenizer file may set truncation or padding, which must not change prompts.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Load a tokenizer from `tokenizer.json`, or from `vocab.json` and `merges.txt`."""
        directory = Path(directory)
        settings = read_json(directory / "tokenizer_config.json", required=False)
        added = _added_tokens(directory, settings)
        backend = _read_backend(directory, added)
        # Settings may list tokens that tokenizer.json lacks; each must get its listed id.
        backend.add_tokens(list(added.values()))
        for id, token in added.items():
            if backend.token_to_id(token.content) != id:
                raise CheckpointError(
                    f"The files in {directory} disagree about the id of {token.content!r}; "
                    "fetch the checkpoint again."
                )
        template = chat_template.find_template(
            directory, settings, knows=lambda token: backend.token_to_id(token) is not None
        )
        config = read_json(directory / "config.json", required=False)
        return cls(backend, settings, config, template=template)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None if it is not in the vocabulary."""
        return self._backend.token_to_id(token)

    def to_json(self) -> str:
        """Return the whole tokenizer as JSON. Equal JSON means equal tokenizers."""
        return self._backend.to_str()

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        """Return the ids of plain text; `bos` adds the begin-of-sequence id if there is one."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The text has a lone surrogate at character {error.start}; remove it."
            ) from None
        ids = self._backend.encode(text, add_special_tokens=False).ids
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

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; an unknown id or an incomplete character becomes U+FFFD."""
        kept = (id for id in ids if not (skip_special and id in self.special_ids))
        runs = ((known, list(run)) for known, run in groupby(kept, self._knows))
        return "".join(
            self._backend.decode(run, skip_special_tokens=False) if known else UNKNOWN * len(run)
            for known, run in runs
        )

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return one display string per id; a token that is part of a character shows U+FFFD."""
        texts = (self.decode([id], skip_special=False) for id in ids)
        return [re.sub(f"{UNKNOWN}+", UNKNOWN, text) for text in texts]

    def _knows(self, id: int) -> bool:
        """Return whether an id is in the vocabulary."""
        return 0 <= id < self.vocab_size and self._backend.id_to_token(id) is not None


def visible(tokens: Iterable[int], stop_ids: Iterable[int]) -> list[int]:
    """Return the tokens before the first stop id."""
    stops = frozenset(stop_ids)
    return list(takewhile(lambda token: token not in stops, tokens))


def stable_text(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Return the text of a final prefix that later tokens cannot change.

    As the prefix grows, each result starts with the previous one. A trailing U+FFFD is left out,
    because the next token may complete the character. At the end, `decode` gives the rest.
    """
    return tokenizer.decode(ids).rstrip(UNKNOWN)


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
        messages, template=tokenizer.template, special_tokens=tokenizer.special_tokens
    )
    found = tokenizer.controls(rendered.text)
    if rendered.contents is None and found != tokenizer.controls(rendered.outline):
        raise PromptError(
            "A message contains a control token, and this checkpoint's chat template rewrites "
            "messages, so the two cannot be distinguished; remove the control token."
        )
    return tokenizer.encode_rendered(rendered.text, rendered.contents or ())


def infill_ids(tokenizer: Tokenizer, text: str, *, mask_id: int) -> Infill:
    """Return the ids of a text with holes (see `parse_holes`), with `mask_id` in the holes."""
    ids = list(tokenizer.opening)
    holes = [False] * len(ids)
    for segment in chat_template.parse_holes(text):
        part = tokenizer.encode(segment) if isinstance(segment, str) else [mask_id] * segment
        ids += part
        holes += [isinstance(segment, int)] * len(part)
    return Infill(ids, holes)


def _ids(value: object) -> list[int]:
    """Return an id, a list of ids or None, as files have it, as a list."""
    return [id for id in (value if isinstance(value, list) else [value]) if type(id) is int]


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
        if (directory / "tokenizer.json").is_file():
            return Backend.from_file(str(directory / "tokenizer.json"))
        if (directory / "vocab.json").is_file():
            return _from_vocabulary(directory, added)
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(
            f"The tokenizer in {directory} cannot be read; fetch the checkpoint again."
        ) from error
    raise CheckpointError(
        f"No tokenizer in {directory}; it needs tokenizer.json, or vocab.json and merges.txt."
    )


def _from_vocabulary(directory: Path, added: Mapping[int, AddedToken]) -> Backend:
    """Return Qwen2's tokenizer from `vocab.json` and `merges.txt`."""
    # An added token keeps its id only inside the vocabulary; the library would renumber it.
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
