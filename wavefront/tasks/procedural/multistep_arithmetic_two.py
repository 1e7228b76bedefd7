"""Compute `((-1 + 2 * 9 - 5) * (4 - -7 + 0 - 3)) =`, one operation at a time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, choose, draw_int, worked_answer

WORDINGS = Wordings(
    real="{} =",
    other=("Calculate {}", "What is {}?"),
    reserved=("Find the value of {}.", "Work out {} step by step."),
)
OPERATORS = ("+", "-", "*")


@dataclass(frozen=True)
class MultistepArithmeticTwo(Procedural):
    """Two brackets of four small numbers, joined by one operation."""

    def draft(self, rng: Random, reserved: bool) -> Draft:
        left, right = bracket(rng), bracket(rng)
        operator = choose(rng, OPERATORS)
        text = f"(({' '.join(left)}) {operator} ({' '.join(right)}))"
        first, second = reductions(left), reductions(right)
        a, b = int(first[-1]), int(second[-1])
        joined, target = join(a, operator, b)
        steps = f"A = {' = '.join(first)}\nB = {' = '.join(second)}\nA {operator} B = {joined}"
        question, original = WORDINGS.ask(rng, reserved, text)
        return Draft(
            question, worked_answer(steps, str(target)), str(target), text, original=original
        )


def bracket(rng: Random) -> list[str]:
    """Draw four numbers and three operators, alternating."""
    tokens = [str(draw_int(rng, -9, 9))]
    for _ in range(3):
        tokens += (choose(rng, OPERATORS), str(draw_int(rng, -9, 9)))
    return tokens


def reductions(tokens: list[str]) -> list[str]:
    """Return the bracket after each operation: products first, then from the left."""
    lines = [" ".join(tokens)]
    while len(tokens) > 1:
        at = tokens.index("*") if "*" in tokens else 1
        value = apply(int(tokens[at - 1]), tokens[at], int(tokens[at + 1]))
        tokens = [*tokens[: at - 1], str(value), *tokens[at + 2 :]]
        lines.append(" ".join(tokens))
    return lines


def apply(left: int, operator: str, right: int) -> int:
    if operator == "*":
        return left * right
    return left + right if operator == "+" else left - right


def join(left: int, operator: str, right: int) -> tuple[str, int]:
    """Write the last operation. Split a long product by the digits of the shorter factor."""
    value = apply(left, operator, right)
    text = f"{left} {operator} {right}"
    long, short = sorted((abs(left), abs(right)), reverse=True)
    if operator != "*" or short < 10:
        return f"{text} = {value}", value
    digits = str(short)
    parts = [int(digit) * 10 ** (len(digits) - 1 - place) for place, digit in enumerate(digits)]
    parts = [part for part in parts if part]
    if len(parts) > 1:
        text += f"\n{long} * {short} = " + " + ".join(f"{long} * {part}" for part in parts)
        text += " = " + " + ".join(str(long * part) for part in parts)
        total = long * parts[0]
        for index in range(1, len(parts)):
            total += long * parts[index]
            text += " = " + " + ".join([str(total), *(str(long * p) for p in parts[index + 1 :])])
        return f"{text}\nA * B = {value}", value
    return f"{text} = {value}", value
