"""Read the word problems of `stories.txt`, and draw the numbers and steps of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import NamedTuple

from wavefront.tasks.base import PROCEDURAL, choose, draw_int

LARGEST = 2000  # a story with a larger result is drawn again with other numbers
PERCENTAGES = (5, 10, 20, 25, 30, 40, 50, 60, 75, 80)
DRAW = re.compile(r"(\w) (?:(\d+)-(\d+)|([<|%])(\w)(?: (\d+))?|~(\w)([+*-])(\w))$")
STEP = re.compile(r"(\w) = (\w) ([-+*/%]) (\w) : (.*)$")


class Draw(NamedTuple):
    """One number: drawn from a range, bounded by another number, or computed from two others."""

    name: str
    how: str  # "-" range, "<" below, "|" divisor, "%" percentage, "+" "*" "~" computed
    low: int
    high: int
    left: str
    right: str


class Equation(NamedTuple):
    """One equation of the worked answer and the sentence around it."""

    name: str
    left: str
    operator: str
    right: str
    sentence: str


Line = Draw | Equation


class Story(NamedTuple):
    """A word problem or a link of a chain: its wordings and its plot."""

    kind: str  # "@" for a complete story; "start", "event" or "end" for a link
    name: str
    wordings: tuple[str, ...]
    reserved_wordings: tuple[str, ...]
    plot: tuple[Line, ...]


def parse_line(text: str) -> Line:
    """Parse one line of a plot."""
    if step := STEP.match(text):
        return Equation(*step.groups())
    draw = DRAW.match(text)
    if draw is None:
        raise ValueError(f"This is not a line of a plot: {text!r}.")
    name, low, high, relation, other, most, left, operator, right = draw.groups()
    if low:
        return Draw(name, "-", int(low), int(high), "", "")
    if relation:
        return Draw(name, relation, 1, int(most or LARGEST), other, "")
    return Draw(name, operator if operator != "-" else "~", 0, 0, left, right)


@cache
def stories() -> tuple[Story, ...]:
    """Read every block of the file."""
    text = (PROCEDURAL / "stories.txt").read_text("utf-8")
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(_story(block.split("\n")) for block in kept.strip().split("\n\n"))


def _story(block: list[str]) -> Story:
    kind, name = block[0].split()
    wordings = tuple(line[2:] for line in block if line.startswith("? "))
    reserved = tuple(line[3:] for line in block if line.startswith("?! "))
    plot = tuple(parse_line(line) for line in block[1:] if not line.startswith("?"))
    if kind == "@!":
        wordings, reserved = (), wordings + reserved
    return Story(kind.rstrip("!"), name, wordings, reserved, plot)


def play(rng: Random, plot: tuple[Line, ...], numbers: dict[str, int]) -> list[Equation] | None:
    """Run a plot: fill `numbers` and return the steps, or None if a number is out of range."""
    steps: list[Equation] = []
    for line in plot:
        if isinstance(line, Draw):
            value = _draw_number(rng, line, numbers)
        else:
            left, right = _value(numbers, line.left), _value(numbers, line.right)
            value = calculate(left, line.operator, right)
            relation = "% of" if line.operator == "%" else f" {line.operator}"
            shown = f"{left}{relation} {right}"
            sentence = line.sentence.replace("{}", f"{shown} = {value}")
            steps.append(line._replace(sentence=sentence))
        if value is None or not 0 < value <= LARGEST:
            return None
        numbers[line.name] = value
    return steps


def _value(numbers: Mapping[str, int], name: str) -> int:
    return int(name) if name.isdigit() else numbers[name]


def calculate(left: int, operator: str, right: int) -> int | None:
    """Return the result if it is an integer, otherwise None."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "%":
        left, right = left * right, 100
    result, rest = divmod(left, right)
    return None if rest else result


def _draw_number(rng: Random, draw: Draw, numbers: Mapping[str, int]) -> int | None:
    if draw.how == "-":
        return draw_int(rng, draw.low, draw.high)
    left = numbers[draw.left]
    if draw.how == "<":
        most = min(left - 1, draw.high)
        return draw_int(rng, 1, most) if most > 0 else None
    if draw.how == "|":
        divisors = [number for number in range(2, 13) if left % number == 0 and number < left]
        return choose(rng, divisors) if divisors else None
    if draw.how == "%":
        shares = [share for share in PERCENTAGES if left * share % 100 == 0]
        return choose(rng, shares) if shares else None
    return calculate(left, "-" if draw.how == "~" else draw.how, numbers[draw.right])
