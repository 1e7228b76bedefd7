"""Compile a regular expression to an automaton over bytes, with the library outlines-core.

This module runs in the child process of `limited`, because a short expression can describe an
automaton that fills the memory. It therefore imports neither torch nor the rest of the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wavefront.core.errors import OptionError

BYTES = 256
# Bytes that must be escaped in a JSON string: control characters, the quote and the backslash.
ESCAPED = {*range(0x20), ord('"'), ord("\\")}
SPARE = 4  # times the largest number of states, before equal states are joined


def compile_regex(
    pattern: str, patterns: list[str], *, max_states: int, what: str = "The pattern"
) -> dict[str, Any]:
    """Return the smallest automaton of the texts that match a whole pattern, as JSON.

    Args:
        pattern: The regular expression, in the syntax of Rust's crate `regex`. No part of it may
            match NUL; see `wavefront.text.pattern`.
        patterns: Expressions inside it that stand in a JSON string.
        max_states: The largest number of states.
        what: What the expression stands for, as the subject of an error's sentence.

    Returns:
        `byte_class`, the class of each byte; `rows`, for each state its next states by class, -1
        where there is none; and `accepting`, the accepting states. State 0 is the first.

    Raises:
        OptionError: The expression is wrong or too large, or matches no text.
    """
    for inner in patterns:
        part = f"The pattern {inner[:80]!r} of the schema"
        byte_class, found = _compile(inner, max_states, part)
        escaped = {byte_class[byte] for byte in ESCAPED}
        if any(row[one] >= 0 for row in found.rows for one in escaped):
            raise OptionError(
                f"{part} can match a quote, a backslash or a control character: use a class such "
                'as [^"\\\\\\x00-\\x1f] instead.'
            )
    byte_class, found = _compile(pattern, max_states, what)
    return {"byte_class": byte_class, "rows": found.rows, "accepting": found.accepting}


class Automaton(NamedTuple):
    """A deterministic automaton. State 0 is the first; -1 means that no text matches."""

    rows: list[list[int]]  # the next states of each state, by byte or by class of bytes
    accepting: list[int]


def minimize(automaton: Automaton) -> Automaton:
    """Return the smallest automaton of the same language.

    States start in two groups. A group splits if its states lead to different groups. Only states
    that lead to one with a new group are looked at again, and the largest part of a group keeps
    its number. So each state changes its group at most log(n) times.
    The first state comes first. If it leads nowhere, the result has no states.
    """
    dead = len(automaton.rows)
    rows = [[dead if after < 0 else after for after in row] for row in automaton.rows]
    rows.append([dead] * len(rows[0]))
    before: list[set[int]] = [set() for _ in rows]
    for state, row in enumerate(rows):
        for after in set(row):
            before[after].add(state)
    ends = set(automaton.accepting)
    group = [int(state in ends) for state in range(len(rows))]
    members = [{state for state in range(len(rows)) if group[state] == side} for side in (0, 1)]
    changed, known = set(range(len(rows))), len(members)
    while changed:  # states that lead to one with a new group
        parts: dict[int, dict[tuple[int, ...], set[int]]] = {}
        for state in changed:
            lead = tuple([group[after] for after in rows[state]])
            parts.setdefault(group[state], {}).setdefault(lead, set()).add(state)
        moved: list[int] = []
        for number, split in parts.items():
            pieces = sorted(split.values(), key=len)
            rest = len(members[number]) - sum(map(len, pieces))  # these still belong together
            if rest < len(pieces[-1]):
                largest = pieces.pop()
                if rest:
                    pieces.append(members[number].difference(*pieces, largest))
            for piece in pieces:
                members[number] -= piece
                members.append(piece)
                moved += piece
        for number in range(known, len(members)):
            for state in members[number]:
                group[state] = number
        known = len(members)
        changed = {state for after in moved for state in before[after]}
    if group[0] == group[dead]:
        return Automaton([], [])
    numbers = {group[0]: 0}
    for state in range(dead):
        if group[state] != group[dead]:
            numbers.setdefault(group[state], len(numbers))
    numbers[group[dead]] = -1
    first = {group[state]: state for state in reversed(range(dead))}
    kept = [first[number] for number in numbers if number in first and numbers[number] >= 0]
    return Automaton(
        [[numbers[group[after]] for after in rows[state]] for state in kept],
        [at for at, state in enumerate(kept) if state in ends],
    )


def _compile(pattern: str, max_states: int, what: str) -> tuple[list[int], Automaton]:
    """Return the class of each byte, and the smallest automaton of a pattern over the classes."""
    found = _read_index(pattern, max_states, what)
    byte_class, rows = _join_columns(found.rows)
    smallest = minimize(Automaton(rows, found.accepting))
    if not smallest.rows:
        raise _no_text(what)
    if len(smallest.rows) > max_states:
        raise _too_large(len(smallest.rows), max_states, what)
    joined, rows = _join_columns(smallest.rows)
    return [joined[one] for one in byte_class], Automaton(rows, smallest.accepting)


def _join_columns(rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Return the class of each column, and the rows by class. Equal columns form a class."""
    columns: dict[tuple[int, ...], int] = {}
    classes = [columns.setdefault(column, len(columns)) for column in zip(*rows, strict=True)]
    return classes, [list(row) for row in zip(*columns, strict=True)]


def _read_index(pattern: str, max_states: int, what: str) -> Automaton:
    """Return the automaton that outlines-core makes of a pattern, by byte.

    A NUL character stands before and after the text; see `wavefront.text.pattern`. A state accepts
    if the second one leads from it to a match. The first one keeps the automaton small, because
    outlines-core also prepares for matches that start later.
    """
    from outlines_core import Index, Vocabulary

    vocabulary: Any = Vocabulary(BYTES, {bytes([byte]): [byte] for byte in range(BYTES)})
    try:
        index = Index(rf"\x00(?:{pattern})\x00", vocabulary)
    except ValueError as error:
        text = str(error)
        if "no transitions" in text or "incompatible" in text:
            raise _no_text(what) from None
        if "building NFA" in text:
            text = "its syntax is wrong, or it uses a look-around or a back-reference"
        raise OptionError(f"{what} cannot be used: {' '.join(text.split())[:200]}.") from None
    transitions, final = index.get_transitions(), set(index.get_final_states())
    first = transitions.get(index.get_initial_state(), {}).get(0)
    if first is None:
        raise _no_text(what)
    names, reached = {first: 0}, [first]
    for state in reached:
        for after in transitions.get(state, {}).values():
            if after not in names:
                names[after] = len(names)
                reached.append(after)
    if len(names) > SPARE * max_states:
        raise _too_large(len(names), max_states, what)
    rows, accepting = [], []
    for number, state in enumerate(reached):
        moves, row = transitions.get(state, {}), [-1] * BYTES
        for byte, after in moves.items():
            if 0 < byte < BYTES:
                row[byte] = names[after]
        rows.append(row)
        if moves.get(0) in final:
            accepting.append(number)
    return Automaton(rows, accepting)


def _no_text(what: str) -> OptionError:
    return OptionError(f"No text matches {what[0].lower()}{what[1:]}.")


def _too_large(states: int, max_states: int, what: str) -> OptionError:
    return OptionError(
        f"{what} needs an automaton of {states} states, more than {max_states}: make it simpler, "
        "or give shorter limits."
    )
