"""Constraints: keep an answer in a language, whatever the model says.

A `TokenAutomaton` reads an answer token by token. Some positions of the answer are decided and the
others can still take any token. For each position, the automaton computes two sets of states:
those that the text on the left can lead to, and those from which the text on the right can still
end well. A token is allowed if one of its transitions joins the two sets. So every allowed token
is part of at least one complete answer in the language.

The sets are computed on the host, while the device runs the forward pass. A set is a Python int,
one bit per state, and every step from one set to the next is remembered. A decode meets the same
sets again and again, so a pass over an answer is mostly one dictionary lookup per position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError

ANY = -1  # the class of a position that is not decided
LEAST = -1e300  # stands for a score of -inf, so that sums stay finite
FORBIDDEN = 0  # the class of the tokens that no answer contains, such as the mask token
Value = TypeVar("Value")
MAX_REMEMBERED = 1 << 14  # steps from one set of states to the next
REMEMBERED_BITS = 1 << 27  # of the sets in all remembered steps of one kind
FEW_MOVES = 1 << 20  # transitions times states; beyond this, tensors follow them all at once
# Positions times transitions. A step looks at every transition a few times for each position, so
# this keeps a step, which all requests of a batch wait for, at about a second.
MAX_STEP_WORK = 1 << 25
CHECKED_PASSES = 16  # passes over an answer that the commits of a step may cost, if it is large
MAX_EIGHTS = 1 << 12  # unions over eight states that are kept for the transitions of a class
MAX_PAIRS = 64  # pairs of sets whose allowed classes are computed at once
MIN_SETS, MIN_CLASSES = 64, 128  # the smallest table of allowed classes
MAX_END_TOKENS = 8  # sets of end tokens for which one automaton is kept


@dataclass(frozen=True)
class Constraint:
    """What an answer must look like, as the user wrote it."""

    kind: Literal["schema", "regex", "choices"]
    value: str | tuple[str, ...]  # a JSON schema as text, a regular expression, or texts

    @property
    def noun(self) -> str:
        """What error messages call it."""
        return {"schema": "the schema", "regex": "the pattern", "choices": "the choices"}[self.kind]

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else ", ".join(self.value)
        return f"{self.kind}: {value}"


class ByteAutomaton(NamedTuple):
    """A deterministic automaton over bytes. State 0 is the first; -1 means that no text matches."""

    next: Tensor  # (S, K) long: the next state by class of bytes
    byte_class: Tensor  # (256,) long
    accepting: Tensor  # (S,) bool

    def forced(self) -> list[int]:
        """Return for each state the only byte that may follow; -1 if several may, or the end.

        A space that may also be left out does not count: JSON allows it between two parts.
        """
        live = (self.next >= 0)[:, self.byte_class]
        live[:, ord(" ")] &= live.sum(-1) == 1
        only = (live.sum(-1) == 1) & ~self.accepting
        return torch.where(only, live.long().argmax(-1), -1).tolist()


class TokenClasses(NamedTuple):
    """The classes of the tokens of an automaton, on a device."""

    of_token: Tensor  # (V,) long: the class of each token
    order: Tensor  # (V,) long: the tokens by class, the smallest id first in every class
    sizes: list[int]  # how many tokens each class has


class Sets(NamedTuple):
    """The sets of states around the positions of an answer."""

    left: list[int]  # left[i]: the states that the tokens before position i can lead to
    right: list[int]  # right[i]: the states from which the tokens from i on can end well


class TokenAutomaton:
    """A finite automaton over token ids.

    Tokens with the same transitions form a class, so a vocabulary of 150,000 tokens needs a few
    hundred classes. Class 0 has no transitions.

    Attributes:
        token_class: (V,) long, the class of each token.
        classes: The number of classes.
        states: The number of states.
        start: The first state.
        accepting: The states in which an answer may end.
        edges: (E, 3) long, each a state, a class and the next state, sorted by class.
        constraint: What the automaton was compiled from, if anything.
        language: The automaton over bytes that it was compiled from, if any.
    """

    def __init__(
        self,
        edges: Tensor,
        token_class: Tensor,
        *,
        states: int,
        accepting: Iterable[int],
        start: int = 0,
        constraint: Constraint | None = None,
        language: ByteAutomaton | None = None,
    ) -> None:
        order = edges[:, 1].argsort(stable=True)
        self.edges: Tensor = edges[order].contiguous()
        self.token_class: Tensor = token_class
        self.classes: int = 1 + int(torch.cat([token_class, edges[:, 1]]).max())
        self.states: int = states
        self.start: int = start
        self.accepting: frozenset[int] = frozenset(accepting)
        self.constraint: Constraint | None = constraint
        self.language: ByteAutomaton | None = language
        counts = torch.bincount(self.edges[:, 1], minlength=self.classes)
        self._offset: list[int] = [0, *counts.cumsum(0).tolist()]
        self._forbids_at_most_one: bool = int((token_class == FORBIDDEN).sum()) <= 1
        self._final: int = to_bits(self.accepting)
        self._moves: dict[int, _Moves] = {}
        # Keys and values are sets, so large automata remember fewer steps.
        self._capacity: int = min(
            MAX_REMEMBERED, REMEMBERED_BITS // (states + 8 * self.classes) + 1
        )
        self._forward: dict[tuple[int, int], int] = {}
        self._backward: dict[tuple[int, int], int] = {}
        self._allowed: dict[tuple[int, int], Tensor] = {}
        self._on_device: dict[torch.device, TokenClasses] = {}
        self._ended: dict[tuple[tuple[int, ...], tuple[int, ...]], TokenAutomaton] = {}

    def with_end_tokens(
        self, ids: tuple[int, ...], *, without: tuple[int, ...] = ()
    ) -> TokenAutomaton:
        """Return the automaton whose answers may be followed by end tokens, and by nothing else.

        No answer contains a token of `without`.
        """
        without = tuple(id for id in without if self.token_class[id] != FORBIDDEN)
        if not ids and not without:
            return self
        found = self._ended.get((ids, without))
        if found is None:
            if len(self._ended) >= MAX_END_TOKENS:
                self._ended.clear()
            found = self._ended[ids, without] = self._add_end_tokens(ids, without)
        return found

    def _add_end_tokens(self, ids: tuple[int, ...], without: tuple[int, ...]) -> TokenAutomaton:
        end, final = self.classes, self.states
        token_class = self.token_class.clone()
        token_class[list(without)] = FORBIDDEN
        token_class[list(ids)] = end
        # An end token is not a part of the answer any more, so its class may have no token left.
        has_token = torch.bincount(token_class, minlength=end + 1) > 0
        edges = self.edges[has_token[self.edges[:, 1]]]
        last = [[state, end, final] for state in (*sorted(self.accepting), final) if ids]
        return TokenAutomaton(
            torch.cat([edges, torch.tensor(last, dtype=torch.long).view(-1, 3)]),
            token_class,
            states=final + 1,
            accepting=self.accepting | {final},
            start=self.start,
            constraint=self.constraint,
            language=self.language,
        )

    def classes_on(self, device: torch.device) -> TokenClasses:
        """Return the classes of the tokens, on a device."""
        if device not in self._on_device:
            order = self.token_class.argsort(stable=True)
            sizes = torch.bincount(self.token_class, minlength=self.classes).tolist()
            self._on_device[device] = TokenClasses(
                self.token_class.to(device), order.to(device), sizes
            )
        return self._on_device[device]

    # -- sets of states ---------------------------------------------------------------------------

    def forward(self, states: int, symbol: int) -> int:
        """Return the states after a token of the class `symbol`, or after any token."""
        key = states, symbol
        found = self._forward.get(key)
        if found is None:
            found = self._remember(self._forward, key, self._moves_of(symbol).after(states))
        return found

    def backward(self, states: int, symbol: int) -> int:
        """Return the states from which a token of the class leads to one of `states`."""
        key = states, symbol
        found = self._backward.get(key)
        if found is None:
            found = self._remember(self._backward, key, self._moves_of(symbol).before(states))
        return found

    def _moves_of(self, symbol: int) -> _Moves:
        """Return the transitions of a token class, or of all tokens if it is `ANY`."""
        if symbol not in self._moves:
            if symbol == ANY:
                pairs = torch.unique(self.edges[:, 0] * self.states + self.edges[:, 2])
                source, target = pairs // self.states, pairs % self.states
            else:
                part = slice(self._offset[symbol], self._offset[symbol + 1])
                source, _, target = self.edges[part].unbind(1)
            # Most steps from one set to the next are over a position that can take any token.
            few = 8 * FEW_MOVES if symbol == ANY else FEW_MOVES
            self._moves[symbol] = _Moves(source, target, states=self.states, few=few)
        return self._moves[symbol]

    def _remember(
        self, memory: dict[tuple[int, int], Value], key: tuple[int, int], value: Value
    ) -> Value:
        if len(memory) >= self._capacity:
            memory.clear()
        memory[key] = value
        return value

    @property
    def size(self) -> int:
        """The memory of the automaton in bytes, including its cached transitions."""
        entries = len(self._forward) + len(self._backward) + len(self._allowed)
        tensors = self.edges.numel() + self.token_class.numel()
        kept = 8 * tensors + entries * (self.states // 4 + self.classes)
        return kept + sum(one.size for one in self._ended.values())

    def sets(self, symbols: Sequence[int]) -> Sets:
        """Return the sets of states around every position of an answer."""
        left = [1 << self.start]
        for symbol in symbols:
            left.append(self.forward(left[-1], symbol))
        right = [self._final]
        for symbol in reversed(symbols):
            right.append(self.backward(right[-1], symbol))
        return Sets(left, right[::-1])

    def accepts(self, symbols: Sequence[int]) -> bool:
        """Return whether the undecided positions can be filled."""
        states = 1 << self.start
        for symbol in symbols:
            states = self.forward(states, symbol)
            if not states:
                return False
        return bool(states & self._final)

    def allowed(self, left: int, right: int) -> Tensor:
        """Return (C,) bool: the classes with a transition from a state of `left` to `right`."""
        return self.allowed_between([(left, right)])[0]

    def allowed_between(self, pairs: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Return (C,) bool for each pair of sets: see `allowed`."""
        known = {pair: self._allowed.get(pair) for pair in pairs}
        missing = [pair for pair, found in known.items() if found is None]
        for first in range(0, len(missing), MAX_PAIRS):
            part = missing[first : first + MAX_PAIRS]
            for pair, found in zip(part, self._find_allowed(part), strict=True):
                known[pair] = self._remember(self._allowed, pair, found)
        return [found for pair in pairs if (found := known[pair]) is not None]

    def _find_allowed(self, pairs: Sequence[tuple[int, int]]) -> Tensor:
        """Return (n, C) bool: the classes that join the two sets of each pair."""
        source, symbol, target = self.edges.unbind(1)
        left, right = (
            torch.stack([to_mask(one, self.states) for one in sets])
            for sets in zip(*pairs, strict=True)
        )
        joins = pick_columns(left, source) & pick_columns(right, target)
        which, edge = joins.nonzero(as_tuple=True)
        found = torch.zeros((len(pairs), self.classes), dtype=torch.bool)
        found[which, symbol[edge]] = True
        if self._forbids_at_most_one:
            # The mask token keeps its share of the probability where all others are allowed.
            found[:, FORBIDDEN] = found[:, 1:].all(-1)
        return found

    def shortest(self) -> int | None:
        """Return how many tokens the shortest answer has; None if there is no answer."""
        seen = reached = 1 << self.start
        for length in range(self.states + 1):
            if reached & self._final:
                return length
            reached = self.forward(reached, ANY) & ~seen
            seen |= reached
        return None

    # -- choices ----------------------------------------------------------------------------------

    def compatible(self, symbols: Sequence[int], commits: Sequence[tuple[int, int]]) -> list[int]:
        """Return the positions that can be written together.

        Args:
            symbols: The class at each position of an answer, ANY where it is not decided.
            commits: A position and the class of its new token, best first. Each of them alone is
                allowed. A commit that contradicts earlier ones is dropped. If the automaton and the
                answer are so large that checking takes too long, the last ones are dropped too.
        """
        trial = list(symbols)
        for position, symbol in commits:
            trial[position] = symbol
        if self.accepts(trial):
            return [position for position, _ in commits]
        trial, kept = list(symbols), []
        left, right = self.sets(trial)
        work = max(CHECKED_PASSES, MAX_STEP_WORK // max(1, len(self.edges))) * len(trial)
        for position, symbol in commits:
            after = self.forward(left[position], symbol)
            if not after & right[position + 1]:
                continue  # it contradicts those before it
            trial[position] = symbol
            kept.append(position)
            for at in range(position + 1, len(left)):
                if left[at] == after:
                    break
                left[at], work = after, work - 1
                if at < len(trial):
                    after = self.forward(after, trial[at])
            before = self.backward(right[position + 1], symbol)
            for at in range(position, -1, -1):
                if right[at] == before:
                    break
                right[at], work = before, work - 1
                if at:
                    before = self.backward(before, trial[at - 1])
            if work < 0:
                break
        return kept

    def best_path(self, symbols: Sequence[int], scores: Tensor) -> list[int]:
        """Return the class at each position in the best complete answer, by dynamic programming.

        Args:
            symbols: The class at each position of an answer, ANY where it is not decided.
            scores: (n, C) float64, the score of each class at each position. An answer's score is
                the sum over its undecided positions. A score of -inf is the worst, but an answer
                may need it.
        """
        scores = scores.clamp(min=LEAST)
        source, symbol, target = self.edges.unbind(1)
        number = torch.arange(len(source))
        value = torch.full((self.states,), float("-inf"), dtype=torch.float64)
        value[self.start] = 0.0
        back: list[Tensor] = []
        for at, decided in enumerate(symbols):
            part = slice(None)
            if decided != ANY:
                part = slice(self._offset[decided], self._offset[decided + 1])
            gain = value[source[part]]
            if decided == ANY:
                gain = gain + scores[at][symbol]
            after = torch.full_like(value, float("-inf"))
            after = after.scatter_reduce(0, target[part], gain, "amax")
            best = (gain == after[target[part]]) & (gain > float("-inf"))
            edge = torch.full((self.states,), len(source))
            edge = edge.scatter_reduce(0, target[part][best], number[part][best], "amin")
            back.append(edge)
            value = after
        ends = torch.tensor(sorted(self.accepting))
        state = int(ends[value[ends].argmax()])
        path = []
        for edge in reversed(back):
            state, taken, _ = self.edges[int(edge[state])].tolist()
            path.append(taken)
        return path[::-1]


def members(states: int) -> list[int]:
    """Return the states of a set."""
    return [state for state, bit in enumerate(bin(states)[:1:-1]) if bit == "1"]


def to_bits(states: Iterable[int]) -> int:
    """Return states as a set."""
    found = 0
    for state in states:
        found |= 1 << state
    return found


def to_mask(states: int, count: int) -> Tensor:
    """Return (count,) bool: whether each state is in the set."""
    size = count // 8 + 1
    packed = torch.frombuffer(bytearray(states.to_bytes(size, "little")), dtype=torch.uint8)
    return ((packed[:, None] >> torch.arange(8)) & 1).flatten()[:count].bool()


def from_mask(mask: Tensor) -> int:
    """Return (count,) bool as a set."""
    packed = torch.nn.functional.pad(mask, (0, -len(mask) % 8)).view(-1, 8).long()
    return int.from_bytes(bytes((packed << torch.arange(8)).sum(-1).tolist()), "little")


class _Moves:
    """Transitions between states."""

    def __init__(self, source: Tensor, target: Tensor, *, states: int, few: int) -> None:
        self._states, self._source, self._target = states, source, target
        self._after: _Union | None = None
        self._before: _Union | None = None
        if len(source) * states <= few:  # joining sets is faster than tensors
            pairs = list(zip(source.tolist(), target.tolist(), strict=True))
            self._after, self._before = _Union(pairs), _Union([(two, one) for one, two in pairs])

    def after(self, states: int) -> int:
        """Return the states that a transition from one of `states` leads to."""
        if self._after is None:
            return self._follow(states, self._source, self._target)
        return self._after.of(states)

    def before(self, states: int) -> int:
        """Return the states from which a transition leads to one of `states`."""
        if self._before is None:
            return self._follow(states, self._target, self._source)
        return self._before.of(states)

    def _follow(self, states: int, source: Tensor, target: Tensor) -> int:
        found = torch.zeros(self._states, dtype=torch.bool)
        found[target[to_mask(states, self._states)[source]]] = True
        return from_mask(found)


class _Union:
    """Joins the sets that each state of a set leads to, eight states at a time."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._leads_to: dict[int, int] = {}
        for one, two in pairs:
            self._leads_to[one] = self._leads_to.get(one, 0) | 1 << two
        self._eights: dict[tuple[int, int], int] = {}  # by the number of the byte, and the byte

    def of(self, states: int) -> int:
        """Return the union over a set of states."""
        found, eights = 0, self._eights
        for key in enumerate(states.to_bytes(states.bit_length() // 8 + 1, "little")):
            if key[1]:
                part = eights.get(key)
                if part is None:
                    part = self._join(*key)
                found |= part
        return found

    def _join(self, number: int, byte: int) -> int:
        if len(self._eights) >= MAX_EIGHTS:
            self._eights.clear()
        found = 0
        for bit in members(byte):
            found |= self._leads_to.get(8 * number + bit, 0)
        self._eights[number, byte] = found
        return found


# -- canvases -------------------------------------------------------------------------------------


class Span(NamedTuple):
    """An answer, or a hole of a text, that must be in the language."""

    row: int
    start: int  # its first position on the canvas
    symbols: list[int]  # the class of each of its tokens; ANY where it is masked


class AllowedTokens(NamedTuple):
    """The tokens that are allowed at some positions (B, Q) of a batch."""

    # (K, C) float32, the different sets of classes: inf in the set, otherwise -inf. It has a few
    # unused rows and columns.
    table: Tensor
    which: Tensor  # (B, Q) long: the row of the table for each position
    classes: TokenClasses

    def limit(self, chunk: slice) -> Tensor:
        """Return (n, V) float32 for a slice of the flattened positions: inf if allowed, or -inf."""
        return pick_columns(self.table[self.which.flatten()[chunk]], self.classes.of_token)


def pick_columns(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows[:, index]."""
    if rows.is_cuda:
        return rows[:, index]
    # A CPU picks from one row at a time several times faster.
    picked = rows.new_empty((len(rows), len(index)))
    for row, target in zip(rows, picked, strict=True):
        torch.index_select(row, 0, index, out=target)
    return picked


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device. The host does not wait for earlier work there."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def spans(automaton: TokenAutomaton, canvas: Canvas, answer: Tensor, *, rows: Tensor) -> list[Span]:
    """Return the runs of neighbouring answer positions.

    Args:
        automaton: The automaton.
        canvas: The canvases, on any device.
        answer: (B, L) bool, the positions of the answers, decided or not.
        rows: (B,) bool, the rows to look at.
    """
    tokens, masked, answer, chosen = (
        part.cpu() for part in (canvas.tokens, canvas.masked, answer, rows)
    )
    symbols = automaton.token_class[tokens].masked_fill(masked, ANY)
    found = []
    for row in chosen.nonzero()[:, 0].tolist():
        classes, start = symbols[row].tolist(), None
        for position, inside in enumerate([*answer[row].tolist(), False]):
            if inside and start is None:
                start = position
            elif not inside and start is not None:
                found.append(Span(row, start, classes[start:position]))
                start = None
    return found


def check_room(
    automaton: TokenAutomaton, canvas: Canvas, answer: Tensor, *, holes: bool = False
) -> None:
    """Check that every answer can be completed. With `holes`, each is a hole of a text.

    Raises:
        OptionError: A canvas has too few positions, or holds tokens that contradict the constraint.
    """
    for span in spans(automaton, canvas, answer, rows=answer.any(-1)):
        check_length(automaton, span.symbols, hole=holes)


def check_length(automaton: TokenAutomaton, symbols: Sequence[int], *, hole: bool = False) -> None:
    """Check that an answer can be completed; see `check_room`."""
    constraint, count = automaton.constraint, len(symbols)
    noun = "the constraint" if constraint is None else constraint.noun
    option = None if constraint is None else constraint.kind
    if count * len(automaton.edges) > MAX_STEP_WORK:
        raise OptionError(
            f"{noun.capitalize()} and {count} tokens are too large together: there are "
            f"{len(automaton.edges)} transitions, so at most "
            f"{MAX_STEP_WORK // len(automaton.edges)} tokens are possible. Use fewer tokens, or "
            "shorter limits.",
            option=option,
        )
    if automaton.accepts(symbols):
        return
    if any(symbol != ANY for symbol in symbols):
        raise OptionError(
            f"The tokens that are already written contradict {noun}: leave one of them out.",
            option=option,
        )
    shortest = automaton.shortest()
    if shortest is None:
        raise OptionError(
            f"This model's tokens cannot spell any answer that matches {noun}.", option=option
        )
    if count < shortest:
        raise OptionError(
            f"{count} tokens are too few for {noun}: the shortest answer has {shortest}; "
            f"{'make the hole longer' if hole else 'increase max_new_tokens'}.",
            option=option,
        )
    raise OptionError(
        f"No answer of exactly {count} tokens matches {noun}, and the model has no end token to "
        f"fill the rest: change {'the length of the hole' if hole else 'max_new_tokens'}.",
        option=option,
    )


def allowed_tokens(
    automaton: TokenAutomaton,
    canvas: Canvas,
    answer: Tensor,
    *,
    rows: Tensor,
    index: Tensor,
    device: torch.device,
) -> AllowedTokens:
    """Return the tokens that are allowed at the positions `index` (B, Q) long, on a device.

    A position outside the answers, or in a row outside `rows` (B,) bool, allows every token.
    If all tensors are on the host, the host does not wait for the device.

    Raises:
        OptionError: The decided tokens of a row contradict the constraint.
    """
    positions = index.tolist()
    pairs: dict[tuple[int, int], int] = {}
    which = [[0] * len(row) for row in positions]
    for row, start, symbols in spans(automaton, canvas, answer, rows=rows):
        left, right = automaton.sets(symbols)
        if not left[-1] & right[-1]:
            check_length(automaton, symbols)
        for column, position in enumerate(positions[row]):
            if start <= position < start + len(symbols):
                pair = left[position - start], right[position - start + 1]
                which[row][column] = pairs.setdefault(pair, 1 + len(pairs))
    everything = torch.ones(automaton.classes, dtype=torch.bool)
    found = [everything, *automaton.allowed_between(list(pairs))]
    # Few different sizes, so that a captured step can be used again, for other constraints too.
    table = torch.where(torch.stack(found), float("inf"), float("-inf"))
    more = _rounded_up(len(found), MIN_SETS), _rounded_up(automaton.classes, MIN_CLASSES)
    gaps = (0, more[1] - automaton.classes, 0, more[0] - len(found))
    table = torch.nn.functional.pad(table, gaps, value=float("-inf"))
    return AllowedTokens(
        upload(table, device), upload(torch.tensor(which), device), automaton.classes_on(device)
    )


class Writes(NamedTuple):
    """What the host must know about the writes of a step, to see whether they fit together.

    All fields are (B, L).
    """

    tokens: Tensor  # long, on the canvas before the step
    masked: Tensor  # bool
    answer: Tensor  # bool: the positions of the answers
    write: Tensor  # bool: the positions to write
    proposal: Tensor  # long, their tokens
    score: Tensor  # float32


def fitting_writes(automaton: TokenAutomaton, writes: Writes) -> Tensor | None:
    """Return (B, L) bool: the writes that together leave every answer completable; None: all.

    See `compatible_writes`. All tensors are on the host.
    """
    tokens, masked, answer, wanted, new, score = writes
    several = wanted.sum(-1) > 1
    if not bool(several.any()):
        return None
    order, new = score.float().nan_to_num(nan=float("-inf")), automaton.token_class[new]
    board, kept, dropped = Canvas(tokens, masked, ~masked, tokens), wanted.clone(), False
    for row, start, symbols in spans(automaton, board, answer, rows=several):
        here = slice(start, start + len(symbols))
        chosen = wanted[row, here].nonzero()[:, 0].tolist()
        values, classes = order[row, here].tolist(), new[row, here].tolist()
        ranked = sorted(chosen, key=lambda at: (symbols[at] != ANY, -values[at], at))
        fitting = automaton.compatible(symbols, [(at, classes[at]) for at in ranked])
        for at in set(chosen).difference(fitting):
            kept[row, start + at], dropped = False, True
    return kept if dropped else None


def _rounded_up(count: int, least: int) -> int:
    """Round up to a power of two, at least `least`."""
    return max(least, 1 << (count - 1).bit_length())


def compatible_writes(
    automaton: TokenAutomaton,
    canvas: Canvas,
    answer: Tensor,
    *,
    write: Tensor,
    proposal: Tensor,
    score: Tensor,
) -> Tensor:
    """Return (B, L) bool: the writes that together leave every answer completable.

    A commit that contradicts one with a higher score is dropped. If scores are equal, the left one
    is kept. Edits come after all commits, so that a step makes progress.
    If nothing is dropped, this is `write` itself.

    Args:
        automaton: The automaton.
        canvas: The canvases before the step.
        answer: (B, L) bool, the positions of the answers.
        write: (B, L) bool, the positions to write: a masked one is a commit, another one an edit.
        proposal: (B, L) long, their tokens, each allowed.
        score: (B, L) float32.
    """
    bits = score.float().view(torch.int32)
    parts = (canvas.tokens, canvas.masked, answer, write, proposal, bits)
    # One copy, so that the host waits only once.
    tokens, masked, answer, wanted, new, bits = torch.stack([p.long() for p in parts]).cpu()
    scores = bits.int().view(torch.float32)
    writes = Writes(tokens, masked.bool(), answer.bool(), wanted.bool(), new, scores)
    kept = fitting_writes(automaton, writes)
    return write if kept is None else upload(kept, write.device)


class ClassScores(NamedTuple):
    """The best token of each class at some positions: (B, Q, C) each."""

    score: Tensor  # float, comparable at one position; -inf if no token of the class is allowed
    token: Tensor  # long
    logp: Tensor  # float32, log p of the token


class BestAnswers(NamedTuple):
    """The tokens of the best answers at some positions: (B, Q) each."""

    filled: Tensor  # bool: the position was to be filled
    token: Tensor  # long
    logp: Tensor  # float32


def best_answers(
    automaton: TokenAutomaton,
    canvas: Canvas,
    answer: Tensor,
    *,
    fill: Tensor,
    index: Tensor,
    scores: ClassScores,
) -> BestAnswers:
    """Return the most probable tokens for some positions, as parts of complete answers.

    Args:
        automaton: The automaton.
        canvas: The canvases.
        answer: (B, L) bool, the positions of the answers.
        fill: (B, L) bool, the masked positions to fill. Other masked positions can take any token.
        index: (B, Q) long, the positions that were read. It holds every position of `fill`, and
            may repeat some.
        scores: The best token of each class at these positions. The result is on its device.
    """
    fill = fill.cpu()
    filled = torch.zeros_like(index, dtype=torch.bool, device="cpu")
    chosen = torch.zeros_like(index, device="cpu")
    for row, start, symbols in spans(automaton, canvas, answer, rows=fill.any(-1)):
        inside = fill[row, start : start + len(symbols)]
        if not bool(inside.any()):
            continue
        columns: dict[int, list[int]] = {}
        for number, at in enumerate(index[row].tolist()):
            columns.setdefault(at, []).append(number)
        first = [columns[start + at][0] if one else 0 for at, one in enumerate(inside.tolist())]
        own = scores.score[row, first].double().cpu()
        path = automaton.best_path(symbols, own.masked_fill(~inside[:, None], 0.0))
        for at in inside.nonzero()[:, 0].tolist():
            # Any of several columns of one position may be the one that is written.
            same = columns[start + at]
            filled[row, same], chosen[row, same] = True, path[at]
    device = scores.token.device
    filled, chosen = filled.to(device), chosen.to(device)[..., None]
    token, logp = (part.gather(-1, chosen)[..., 0] for part in scores[1:])
    return BestAnswers(filled, token, logp)
