"""Compile a JSON schema, a regular expression or choices to an automaton over tokens.

A constraint is first an automaton over bytes: outlines-core compiles an expression to one, and
choices are one already. The bytes of every token then give an automaton over tokens. Tokens
that act alike on all states form one class. Classes are found level by level in the tree of all
tokens: a node acts as its parent does, followed by one byte, and few nodes act differently. So the
cost grows with the number of different actions, not with the size of the vocabulary.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wavefront.core.constraint import ByteAutomaton, Constraint, TokenAutomaton
from wavefront.core.errors import MissingExtraError, OptionError, install_command, quote
from wavefront.text import limited
from wavefront.text.byte_automaton import BYTES
from wavefront.text.json_schema import to_regex
from wavefront.text.pattern import whole_text
from wavefront.text.tokenizer import Tokenizer

PATTERN_LIMIT = 1 << 16  # characters of a regular expression
CHOICE_LIMIT, CHOICES_LIMIT = 1 << 12, 1 << 16  # choices, and bytes of all of them
MAX_STATES = 1 << 14  # of an automaton over bytes
MAX_CELLS = 1 << 26  # states times different actions of tokens, while compiling
MAX_EDGES = 1 << 20  # transitions of an automaton over tokens
COMPILE_SECONDS = 5.0  # computing time of outlines-core
KEPT_BYTES = 1 << 28  # of all automata that are kept for the next request


class Vocabulary(NamedTuple):
    """The bytes of all tokens as a tree. Node 0 is the root, the empty text."""

    parent: Tensor  # (nodes,) long
    byte: Tensor  # (nodes,) long
    levels: list[slice]  # the nodes of 1 byte, of 2 bytes, ...
    node: Tensor  # (V,) long: the node of each token; -1 if the token has no text
    first_node: Tensor  # (V,) long: the same at the start of a text, where some drop a space


class _Cache:
    """Compiled automata. The least recently used ones are removed first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, TokenAutomaton] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> TokenAutomaton | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Any, automaton: TokenAutomaton) -> TokenAutomaton:
        with self._lock:
            self._kept[key] = automaton
            while len(self._kept) > 1 and self._size() > KEPT_BYTES:
                self._kept.popitem(last=False)
        return automaton

    def _size(self) -> int:
        return sum(automaton.size for automaton in self._kept.values())


_cache = _Cache()
_vocabularies: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()
_token_bytes: WeakKeyDictionary[Tokenizer, list[bytes | None]] = WeakKeyDictionary()


def check_constraint(
    *, schema: Any = None, regex: Any = None, choices: Any = None
) -> Constraint | None:
    """Return the constraint that three options describe; None if all are None.

    Args:
        schema: A JSON schema, as a dictionary, as JSON text, or as a pydantic model class.
        regex: A regular expression for the whole answer.
        choices: The possible answers.

    Raises:
        OptionError: More than one is given, or one is not of its type or is too long.
    """
    given = {"schema": schema, "regex": regex, "choices": choices}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        names = " and ".join(given)
        raise OptionError(f"{names} cannot be combined: use one of them.", option=[*given][-1])
    if schema is not None:
        return Constraint("schema", _schema_text(schema))
    if regex is not None:
        if not isinstance(regex, str):
            raise OptionError(
                f"regex must be a text, not {quote(regex)}.", option="regex", value=regex
            )
        _check_length(regex, "regex")
        return Constraint("regex", regex)
    if choices is not None:
        return Constraint("choices", _choice_texts(choices))
    return None


def compile_constraint(
    tokenizer: Tokenizer, constraint: Constraint, *, vocab_size: int, at_start: bool = True
) -> TokenAutomaton:
    """Return the automaton of a constraint for a vocabulary. It is kept for the next call.

    Args:
        tokenizer: The tokenizer.
        constraint: The constraint.
        vocab_size: The number of token ids of the model.
        at_start: The answer is a separate text. Some tokenizers drop a space at its start.

    Raises:
        OptionError: The constraint is wrong, not supported, impossible, or too large.
        MissingExtraError: outlines-core is not installed.
    """
    key = (constraint, tokenizer.fingerprint, vocab_size, at_start)
    found = _cache.get(key)
    if found is not None:
        return found
    try:
        found = _compile(tokenizer, constraint, vocab_size, at_start=at_start)
    except OptionError as error:
        error.option = error.option or constraint.kind
        raise
    return _cache.put(key, found)


def find_automaton(
    tokenizer: Tokenizer, constraint: Constraint, *, vocab_size: int, at_start: bool = True
) -> TokenAutomaton | None:
    """Return the automaton of `compile_constraint` if it is kept, else None."""
    return _cache.get((constraint, tokenizer.fingerprint, vocab_size, at_start))


def pack_automaton(tokenizer: Tokenizer, constraint: Constraint, *, at_start: bool = True) -> bytes:
    """Compile a constraint, and return the automaton for `keep_automaton` in another process.

    Takes the same arguments and raises the same errors as `compile_constraint`.
    """
    size = tokenizer.vocab_size
    return pickle.dumps(
        compile_constraint(tokenizer, constraint, vocab_size=size, at_start=at_start)
    )


def keep_automaton(
    tokenizer: Tokenizer, packed: bytes, *, vocab_size: int, at_start: bool = True
) -> None:
    """Store an automaton of `pack_automaton`, so that `compile_constraint` finds it.

    Args:
        tokenizer: The tokenizer.
        packed: The result of `pack_automaton` for an equal tokenizer. It must be trusted.
        vocab_size: The number of token ids of the model.
        at_start: As it was given to `pack_automaton`.
    """
    automaton: TokenAutomaton = pickle.loads(packed)
    key = (automaton.constraint, tokenizer.fingerprint, vocab_size, at_start)
    if _cache.get(key) is None:
        # The model's ids beyond the vocabulary have class 0, which no answer contains.
        more = vocab_size - len(automaton.token_class)
        automaton.token_class = torch.nn.functional.pad(automaton.token_class, (0, more))
        _cache.put(key, automaton)


def pinned_tokens(
    tokenizer: Tokenizer, automaton: TokenAutomaton, ids: Sequence[int], *, at_start: bool = True
) -> list[bool]:
    """Return for each token of an answer whether the constraint allows no other text.

    Such tokens are the structure of an answer, for example its braces and the names of its
    properties. The model has chosen all others. A space that may be left out counts as neither.

    Args:
        tokenizer: The tokenizer.
        automaton: The automaton of the constraint.
        ids: The tokens of the answer, from its first one, with or without end tokens.
        at_start: The answer is a separate text; see `compile_constraint`.
    """
    language = automaton.language
    found = [False] * len(ids)
    if language is None:
        return found
    texts, forced, state = _bytes_of(tokenizer), language.forced(), 0
    for position, id in enumerate(ids):
        text = texts[id] if id < len(texts) else None
        if not text:
            break  # an end token
        if at_start and position == 0 and tokenizer.drops_first_space:
            text = text.removeprefix(b" ")
        pinned = text.strip(b" ") != b""
        for byte in text:
            pinned = pinned and (byte == forced[state] or byte == ord(" "))
            state = int(language.next[state, language.byte_class[byte]])
            if state < 0:
                return found
        found[position] = pinned
    return found


def pinned_positions(
    tokenizer: Tokenizer,
    automaton: TokenAutomaton,
    tokens: Sequence[int],
    *,
    answer: Sequence[bool],
    at_start: bool,
) -> list[int]:
    """Return the positions of a row where the constraint allows only one text.

    Args:
        tokenizer: The tokenizer.
        automaton: The automaton of the constraint.
        tokens: The tokens of the row.
        answer: Whether each position belongs to the answer; every hole of a text is one.
        at_start: The answer is a separate text; see `compile_constraint`.
    """
    found: list[int] = []
    for inside, part in groupby(range(len(tokens)), key=lambda at: answer[at]):
        if inside:
            places = [*part]
            ids = [tokens[at] for at in places]
            marks = pinned_tokens(tokenizer, automaton, ids, at_start=at_start)
            found += [at for at, mark in zip(places, marks, strict=True) if mark]
    return found


def _bytes_of(tokenizer: Tokenizer) -> list[bytes | None]:
    """Return the bytes of every token. They are kept, because a vocabulary is large."""
    found = _token_bytes.get(tokenizer)
    if found is None:
        found = _token_bytes[tokenizer] = tokenizer.token_bytes()
    return found


def _schema_text(schema: Any) -> str:
    """Return a schema as JSON text, in the order of its properties."""
    make = getattr(schema, "model_json_schema", None)  # of a pydantic model class
    try:
        value = make() if callable(make) else schema
        value = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except Exception as error:  # the class of a user may raise anything
        reason = " ".join(str(error).split())[:200]
        raise OptionError(
            f"schema must be a JSON schema, and this is not one: {reason}.",
            option="schema",
            value=schema,
        ) from None
    if not isinstance(value, Mapping | bool):
        raise OptionError(
            f"schema must be a dictionary, JSON text or a pydantic model, not {quote(schema)}.",
            option="schema",
            value=schema,
        )
    _check_length(text, "schema")
    return text


def _check_length(text: str, option: str) -> None:
    what = {"schema": "The schema", "regex": "The pattern", "choices": "A choice"}[option]
    if len(text) > PATTERN_LIMIT:
        raise OptionError(
            f"{what} has {len(text)} characters, more than {PATTERN_LIMIT}.", option=option
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{what} has a lone surrogate; remove it.", option=option) from None


def _choice_texts(choices: Any) -> tuple[str, ...]:
    listed = isinstance(choices, Sequence) and not isinstance(choices, str | bytes)
    if listed and len(choices) > CHOICE_LIMIT:
        raise OptionError(
            f"choices has {len(choices)} texts; the limit is {CHOICE_LIMIT}.",
            option="choices",
        )
    texts = (
        tuple(dict.fromkeys(choice for choice in choices if isinstance(choice, str)))
        if listed
        else ()
    )
    if not texts or not all(isinstance(choice, str) for choice in choices):
        raise OptionError(
            f"choices must be a list of texts, not {quote(choices)}.",
            option="choices",
            value=choices,
        )
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > CHOICES_LIMIT:
        raise OptionError(
            f"choices has {len(texts)} texts of {size} bytes; the limits are {CHOICE_LIMIT} texts "
            f"and {CHOICES_LIMIT} bytes.",
            option="choices",
        )
    for text in texts:
        _check_length(text, "choices")
    return texts


def _compile(
    tokenizer: Tokenizer, constraint: Constraint, vocab_size: int, *, at_start: bool
) -> TokenAutomaton:
    if constraint.kind == "choices":
        assert isinstance(constraint.value, tuple)
        language = _from_choices(constraint.value)
    else:
        assert isinstance(constraint.value, str)
        language = _from_regex(constraint)
    vocabulary = _vocabularies.get(tokenizer)
    if vocabulary is None:
        vocabulary = _vocabularies[tokenizer] = read_vocabulary(tokenizer)
    return over_tokens(
        language, vocabulary, vocab_size=vocab_size, at_start=at_start, constraint=constraint
    )


def _from_regex(constraint: Constraint) -> ByteAutomaton:
    """Return the automaton of a schema or a regular expression."""
    text, inner = str(constraint.value), list[str]()
    if constraint.kind == "schema":
        pattern, inner = to_regex(json.loads(text))
    else:
        pattern = whole_text(text)
    if importlib.util.find_spec("outlines_core") is None:
        raise MissingExtraError(
            f"Schemas and regular expressions need outlines-core: {install_command('constrain')}.",
            option=constraint.kind,
        )
    what = "The pattern" if constraint.kind == "regex" else "The schema"
    arguments = {"pattern": pattern, "patterns": inner, "max_states": MAX_STATES, "what": what}
    reply = limited.call(
        "wavefront.text.byte_automaton:compile_regex",
        arguments,
        seconds=COMPILE_SECONDS,
        what=what,
        error=OptionError,
    )
    rows = torch.tensor(reply["rows"]).view(-1, 1 + max(reply["byte_class"]))
    accepting = torch.zeros(len(rows), dtype=torch.bool)
    accepting[reply["accepting"]] = True
    return ByteAutomaton(rows, torch.tensor(reply["byte_class"]), accepting)


def _from_choices(texts: Sequence[str]) -> ByteAutomaton:
    """Return the smallest automaton of some texts: their tree, with equal endings joined."""
    rows: list[dict[int, int]] = [{}]
    ends = set[int]()
    for text in texts:
        state = 0
        for byte in text.encode():
            if byte not in rows[state]:
                rows[state][byte] = len(rows)
                rows.append({})
            state = rows[state][byte]
        ends.add(state)
    if len(rows) > MAX_STATES:
        raise OptionError(f"The choices need an automaton of more than {MAX_STATES} states.")
    # A state has a larger number than the one before it, so its group is known first.
    groups: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
    group = [0] * len(rows)
    for state in reversed(range(len(rows))):
        moves = tuple(sorted((byte, group[after]) for byte, after in rows[state].items()))
        group[state] = groups.setdefault((state in ends, moves), len(groups))
    used = sorted({byte for row in rows for byte in row})
    byte_class = torch.zeros(BYTES, dtype=torch.long)
    byte_class[used] = torch.arange(1, len(used) + 1)
    table = torch.full((len(groups), len(used) + 1), -1)
    accepting = torch.zeros(len(groups), dtype=torch.bool)
    last = len(groups) - 1  # the group of the first state, which gets number 0
    for (is_end, moves), number in groups.items():
        accepting[last - number] = is_end
        for byte, after in moves:
            table[last - number, byte_class[byte]] = last - after
    return ByteAutomaton(table, byte_class, accepting)


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the tree of the bytes of all tokens."""
    texts = tokenizer.token_bytes()
    starts = [
        text.removeprefix(b" ") if text and tokenizer.drops_first_space else text for text in texts
    ]
    wanted = {text for text in (*texts, *starts) if text}
    nodes = {text[:size] for text in wanted for size in range(1, len(text) + 1)}
    ordered = sorted(nodes, key=lambda text: (len(text), text))
    number = {text: at for at, text in enumerate(ordered, 1)} | {b"": 0}
    levels: list[slice] = []
    at = 1
    for size in range(1, 1 + max(map(len, ordered), default=0)):
        first = at
        while at <= len(ordered) and len(ordered[at - 1]) == size:
            at += 1
        levels.append(slice(first, at))
    # A token of one space is the empty text at the start. It may not be used there.
    return Vocabulary(
        torch.tensor([0, *(number[text[:-1]] for text in ordered)]),
        torch.tensor([0, *(text[-1] for text in ordered)]),
        levels,
        torch.tensor([number[text] if text else -1 for text in texts]),
        torch.tensor([number[text] if text else -1 for text in starts]),
    )


def over_tokens(
    language: ByteAutomaton,
    vocabulary: Vocabulary,
    *,
    vocab_size: int,
    at_start: bool,
    constraint: Constraint | None = None,
) -> TokenAutomaton:
    """Convert an automaton over bytes to an automaton over tokens."""
    states = len(language.next)
    table = torch.cat([language.next, torch.full_like(language.next[:1], -1)])
    table = torch.where(table < 0, states, table).to(torch.int16 if states < 1 << 15 else torch.int)
    action, actions = _actions(table, language.byte_class, vocabulary)
    node = vocabulary.node[:vocab_size]
    act = torch.where(node >= 0, action[node.clamp(min=0)], 0)
    start = 0
    differs = at_start and not torch.equal(vocabulary.node, vocabulary.first_node)
    if differs:
        # The first token reads its text without the space, so the start is a state of its own.
        first = vocabulary.first_node[:vocab_size]
        first_act = torch.where(first >= 0, action[first.clamp(min=0)], 0)
        pairs, token_action = torch.unique(
            torch.stack([act, first_act], 1), dim=0, return_inverse=True
        )
    else:
        pairs, token_action = torch.unique(act, return_inverse=True)
        pairs = torch.stack([pairs, pairs], 1)
    targets = actions[pairs[:, 0]][:, :states].long()  # (C, S)
    if differs:
        start = states
        begin = actions[pairs[:, 1], 0].long()
        targets = torch.cat([targets, begin[:, None]], 1)
    alive = (targets < states).any(-1)
    symbol = torch.where(alive, alive.long().cumsum(0), 0)  # class 0 has no transitions
    number, state = (targets < states).nonzero(as_tuple=True)
    if len(number) > MAX_EDGES:
        raise OptionError(
            f"The constraint has {len(number)} transitions for this vocabulary, more than "
            f"{MAX_EDGES}: make it simpler, or give shorter limits."
        )
    edges = torch.stack([state, symbol[number], targets[number, state]], 1)
    token_class = torch.zeros(vocab_size, dtype=torch.long)
    token_class[: len(token_action)] = symbol[token_action]
    accepting = language.accepting.nonzero()[:, 0].tolist()
    if differs and bool(language.accepting[0]):
        accepting.append(states)
    automaton = TokenAutomaton(
        edges,
        token_class,
        states=states + differs,
        accepting=accepting,
        start=start,
        constraint=constraint,
        language=language,
    )
    if automaton.shortest() is None:
        raise OptionError("This model's tokens cannot spell any answer that matches it.")
    return automaton


def _actions(table: Tensor, byte_class: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Return the state that each node of the vocabulary leads to from every state.

    Returns:
        The number of the action of each node, and (A, S + 1): the next state of each state by
        action. Action 0 leads nowhere.
    """
    dead = len(table) - 1
    identity = torch.arange(len(table), dtype=table.dtype)
    actions = torch.stack([torch.full_like(identity, dead), identity])
    action = torch.zeros(len(vocabulary.parent), dtype=torch.long)
    action[0] = 1
    weights = _weights(len(table))
    hashes = {int(_hash(row[None], weights)): at for at, row in enumerate(actions)}
    for level in vocabulary.levels:
        before = action[vocabulary.parent[level]]
        keys = before * (BYTES + 1) + byte_class[vocabulary.byte[level]]
        live = before != 0
        if not bool(live.any()):
            break
        unique, which = torch.unique(keys[live], return_inverse=True)
        if (len(actions) + len(unique)) * len(table) > MAX_CELLS:
            raise OptionError(
                "The constraint is too large for this vocabulary: make it simpler, or give "
                "shorter limits."
            )
        symbol = unique % (BYTES + 1)
        made = table[actions[unique // (BYTES + 1)].long(), symbol[:, None]]
        numbers, new = [], []
        for at, key in enumerate(_hash(made, weights).tolist()):
            if key not in hashes:
                hashes[key] = len(actions) + len(new)
                new.append(at)
            numbers.append(hashes[key])
        actions = torch.cat([actions, made[new]])
        number = torch.tensor(numbers)
        if not torch.equal(actions[number], made):  # two different actions have one hash
            raise OptionError("The constraint cannot be compiled for this vocabulary.")
        action[level] = torch.zeros_like(before).masked_scatter(live, number[which])
    return action, actions


def _weights(count: int) -> Tensor:
    """Return (count,) long: random weights, the same at every call."""
    source = torch.Generator().manual_seed(0)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=source)


def _hash(rows: Tensor, weights: Tensor) -> Tensor:
    """Return (n,) long: a hash of each row."""
    return (rows.long() * weights).sum(-1)
