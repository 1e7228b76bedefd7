r"""Prepare a regular expression that must match a whole text.

outlines-core compiles an expression together with a NUL character before and after it. Alone, it
would stop at the first match: of `a|ab`, it would know only `a`. So no part of the expression may
match NUL. What is wrong alone, such as `a)|(b`, could be right there, and an anchor would stand at
another place. So both are found here.
"""

from __future__ import annotations

import re
from typing import Any

from wavefront.core.errors import OptionError, quote

AT_START, AT_END = ("^", r"\A"), ("$", r"\z", r"\Z")
# An escape, a class by name, the start of a group, or a character.
TOKEN = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\\.|\(\?[a-zA-Z-]+[:)]|.", re.DOTALL)
# JSON Schema defines these by ASCII. All digits or letters of Unicode need large automata.
CLASSES = {
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\s": r"[ \t\n\r\f\v]",
    r"\S": r"[^ \t\n\r\f\v]",
}
NO_NUL = r"--\x00"  # in a class: without NUL


def whole_text(pattern: Any) -> str:
    r"""Return an expression of the same texts that fits between two NUL characters.

    It has no anchors, `\d`, `\w` and `\s` know only ASCII, and no class holds NUL.

    Raises:
        OptionError: It is not a text, has an anchor inside, has a flag that is not supported, or
            its parentheses do not match.
    """
    if not isinstance(pattern, str):
        raise OptionError(f"A pattern must be a string, not {quote(pattern)}.")
    tokens: list[str] = TOKEN.findall(pattern)
    if tokens and tokens[0] in AT_START:
        tokens = tokens[1:]
    if tokens and tokens[-1] in AT_END and not _class_depths([*tokens, ""])[-1]:
        tokens = tokens[:-1]
    depths = _class_depths([*tokens, ""])
    found, any_line = list[str](), [False]  # whether a dot matches line breaks, for each open group
    for token, depth, after in zip(tokens, depths, depths[1:], strict=False):
        if depth or after:
            token = CLASSES.get(token) or token
            opens, closes = not depth, not after
            found.append(("[" if opens else "") + token + (f"{NO_NUL}]" if closes else ""))
            continue
        if token in AT_START + AT_END:
            raise _error(f"{token} may stand only at its start or its end, and outside groups")
        if token.startswith("(?"):
            any_line = _read_flags(token, any_line)
        elif token == "(":
            any_line = [*any_line, any_line[-1]]
        elif token == ")":
            any_line = any_line[:-1]
            if not any_line:
                break
        elif token == ".":
            token = r"[^\x00]" if any_line[-1] else r"[^\n\x00]"
        elif token in CLASSES or token[:2] in (r"\p", r"\P"):
            token = f"[{CLASSES.get(token, token)}{NO_NUL}]"
        found.append(token)
    if len(any_line) != 1:
        raise _error("its parentheses do not match")
    return "".join(found)


def _read_flags(token: str, any_line: list[bool]) -> list[bool]:
    """Return whether a dot matches line breaks in each open group, after flags such as `(?s:`."""
    on, _, off = token[2:-1].partition("-")
    if unknown := set(on) & {"x", "R"}:
        raise _error(f"it uses the flag {min(unknown)}, which is not supported")
    inside = (any_line[-1] or "s" in on) and "s" not in off
    return [*any_line, inside] if token.endswith(":") else [*any_line[:-1], inside]


def _class_depths(tokens: list[str]) -> list[int]:
    """Return for each token how many character classes, such as [a-z], are open before it."""
    depth, first, depths = 0, False, []
    for token in tokens:
        depths.append(depth)
        if token == "[":
            depth, first = depth + 1, True
            continue
        if token == "]" and depth and not first:
            depth -= 1
        first = first and token == "^"  # a bracket at the start of a class is a character
    return depths


def _error(reason: str) -> OptionError:
    return OptionError(f"The pattern cannot be used: {reason}.")
