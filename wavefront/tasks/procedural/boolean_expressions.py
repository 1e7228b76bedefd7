"""Evaluate `not ( True ) and ( True ) is`, one kind of operation at a time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, choose, draw_int, worked_answer

WORDINGS = Wordings(
    real="{} is",
    other=("Evaluate {}", "What is the value of {}?", "{} ="),
    reserved=("Is this True or False? {}", "Find the truth value of the expression {}."),
)
TOKENS = 8  # in every real expression, brackets included


@dataclass(frozen=True)
class BooleanExpressions(Procedural):
    """Expressions over True, False, not, and, or, brackets."""

    kind = "true_false"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        size = TOKENS if rng.random() < 0.75 else draw_int(rng, 3, 11)
        tokens = expression(rng, size)
        steps = list(reductions(tokens))
        target = steps[-1]
        text = " ".join(tokens)
        question, original = WORDINGS.ask(rng, reserved, text)
        return Draft(
            question, worked_answer("\n= ".join(steps), target), target, text, original=original
        )


def expression(rng: Random, size: int) -> list[str]:
    """Draw an expression of exactly `size` tokens."""
    if size == 1:
        return [choose(rng, ("True", "False"))]
    shape = rng.random()
    if size == 2 or shape < 0.3:
        return ["not", *expression(rng, size - 1)]
    if shape < 0.45:
        return ["(", *expression(rng, size - 2), ")"]
    left = draw_int(rng, 1, size - 2)
    operator = choose(rng, ("and", "or"))
    return [*expression(rng, left), operator, *expression(rng, size - 1 - left)]


def reductions(tokens: list[str]) -> list[str]:
    """Return the expression after each pass, down to one truth value."""
    lines = [" ".join(tokens)]
    while len(tokens) > 1:
        tokens = reduce_innermost(tokens)
        lines.append(" ".join(tokens))
    return lines


def reduce_innermost(tokens: list[str]) -> list[str]:
    """Reduce every innermost bracket once, or the whole expression if it has none."""
    if "(" not in tokens:
        return reduce_flat(tokens)
    out: list[str] = []
    opened = -1
    for token in tokens:
        if token == "(":
            opened = len(out)
        if token == ")" and opened >= 0:
            inside = out[opened + 1 :]
            if len(inside) > 1:
                inside = reduce_flat(inside)
            out[opened:] = inside if len(inside) == 1 else ["(", *inside, ")"]
            opened = -1
        else:
            out.append(token)
    return out


def reduce_flat(tokens: list[str]) -> list[str]:
    """Reduce an expression without brackets: double `not` first, then `not`, `and`, `or`."""
    if "not" in tokens:
        return reduce_not(tokens)
    operator, absorbing = ("and", "False") if "and" in tokens else ("or", "True")
    out = [tokens[0]]
    for index in range(1, len(tokens), 2):
        if tokens[index] == operator:
            if tokens[index + 1] == absorbing:
                out[-1] = absorbing
        else:
            out += tokens[index : index + 2]
    return out


def reduce_not(tokens: list[str]) -> list[str]:
    """Cancel pairs of `not`. Without any pair, apply each `not`."""
    out: list[str] = []
    paired = any(first == second == "not" for first, second in zip(tokens, tokens[1:]))  # noqa: B905, RUF007
    for token in tokens:
        if paired and token == "not" and out and out[-1] == "not":
            out.pop()
        elif not paired and out and out[-1] == "not":
            out[-1] = "False" if token == "True" else "True"
        else:
            out.append(token)
    return out
