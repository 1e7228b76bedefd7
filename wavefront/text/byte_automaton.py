"""Compile a regular expression to an automaton over bytes, with the library outlines-core.

This module runs in the child process of `limited`, because a short expression can describe an
automaton that fills the memory. It therefore imports neither torch nor the rest of the package.
"""

from __future__ import annotations

import re
from typing import Any

from wavefront.core.errors import OptionError

BYTES = 256
CLASSES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[ \t\n\r\f\v]",
    "S": r"[^ \t\n\r\f\v]",
}
# Bytes that must be escaped in a JSON string: control characters, the quote and the backslash.
ESCAPED = {*range(0x20), ord('"'), ord("\\")}


def compile_regex(pattern: str, patterns: list[str], max_states: int) -> dict[str, Any]:
    """Return the automaton of the texts that match a whole pattern, as JSON.

    Args:
        pattern: The regular expression, in the syntax of Rust's crate `regex`.
        patterns: Expressions inside it that stand in a JSON string.
        max_states: The largest number of states.

    Returns:
        `byte_class`, the class of each byte; `rows`, for each state its next states by class, -1
        where there is none; and `accepting`, the accepting states. State 0 is the first.

    Raises:
        OptionError: The expression is wrong or too large, or matches no text.
    """
    for inner in patterns:
        if re.search(r"\(\?[a-zA-Z]*x", inner):  # its comments could hide what follows the pattern
            raise OptionError("A pattern of the schema uses the flag x, which is not supported.")
        rows, _ = _rows(inner, max_states)
        if any(row[byte] >= 0 for row in rows for byte in ESCAPED):
            raise OptionError(
                f"The pattern {inner[:80]!r} of the schema can match a quote, a backslash or a "
                'control character: use a class such as [^"\\\\\\x00-\\x1f] instead.'
            )
    rows, accepting = _rows(pattern, max_states)
    # Most rows have long runs of one value, so classes of bytes make the reply much shorter.
    columns: dict[tuple[int, ...], int] = {}
    byte_class = [columns.setdefault(column, len(columns)) for column in zip(*rows, strict=True)]
    return {
        "byte_class": byte_class,
        "rows": [list(row) for row in zip(*columns, strict=True)],
        "accepting": accepting,
    }


def with_ascii_classes(pattern: str) -> str:
    r"""Return a pattern whose \d, \w and \s, and their opposites, know only ASCII.

    JSON Schema defines them so. All digits or letters of Unicode would also need large automata.
    """
    return re.sub(r"\\(.)", lambda found: CLASSES.get(found[1], found[0]), pattern, flags=re.DOTALL)


def _rows(pattern: str, max_states: int) -> tuple[list[list[int]], list[int]]:
    """Return the next states of each state by byte, and the accepting states."""
    from outlines_core import Index, Vocabulary

    vocabulary: Any = Vocabulary(BYTES, {bytes([byte]): [byte] for byte in range(BYTES)})
    try:
        index = Index(with_ascii_classes(pattern), vocabulary)
    except ValueError as error:
        text = str(error)
        if "no transitions" in text or "incompatible" in text:
            raise OptionError("No text matches the pattern.") from None
        if "universal start" in text:
            text = "it has an anchor that is not at its start or end"
        elif "building NFA" in text:
            text = "its syntax is wrong, or it uses a look-around or a back-reference"
        raise OptionError(f"The pattern cannot be used: {' '.join(text.split())[:200]}.") from None
    transitions, final = index.get_transitions(), index.get_final_states()
    names = {index.get_initial_state(): 0}
    for state, moves in transitions.items():
        names.setdefault(state, len(names))
        for after in moves.values():
            names.setdefault(after, len(names))
    if len(names) > max_states:
        raise OptionError(
            f"The pattern needs an automaton of {len(names)} states, more than {max_states}: make "
            "it simpler, or give shorter limits."
        )
    rows = [[-1] * BYTES for _ in names]
    for state, moves in transitions.items():
        row = rows[names[state]]
        for byte, after in moves.items():
            if byte < BYTES:
                row[byte] = names[after]
    return rows, sorted(names[state] for state in final if state in names)
