"""GSM8K's training problems with other numbers, for `qwen_texts.py`.

The solutions of the training file carry annotations such as `<<48/2=24>>`. They tell how each
number comes from the numbers of the question, so the solution can be computed again for other
numbers. A number of the question changes only if that is safe: it is a whole number above 3, its
text is no part of a fraction, a percentage, a time or an ordinal, and nothing else has its value,
such as a word ("quarter").
Numbers keep their order and roughly their size, and a whole result stays whole and positive.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from wavefront.tasks.grading.final_answer import MARK

ANNOTATION = re.compile(r"<<([^<>=]*)=([^<>=]*)>>")
NUMBER = re.compile(
    r"(?:(?<![\d.])(?<!\d,)\d{1,3}(?:,\d{3})+|(?<![\d.])\d+)(?:\.\d+)?|(?<!\d)\.\d+"
)
BEFORE = re.compile(r"(?:\d\s*/\s*|\d:|\w-?|\d\.)$")
AFTER = re.compile(r"\s*(?:%|/\s*\d|:\d|st\b|nd\b|rd\b|th\b|percent)|-?[A-Za-z]*\d|[A-Za-z]")
WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty
"""
RATIOS = {
    "half": 2, "halve": 2, "twice": 2, "double": 2, "third": 3, "thrice": 3, "triple": 3,
    "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "dozen": 12,
}  # fmt: skip
NUMERALS = {word: Fraction(n) for n, word in enumerate(WORDS.split())}
NUMERALS |= {word: Fraction(n) for word, n in RATIOS.items()}
USUAL = {7, 10, 12, 24, 30, 31, 36, 52, 60, 90, 100, 360, 365, 366, 1000, 2000}  # weeks, hours …
EQUATION = re.compile(r"(\d[\d.,]*(?:\s*[-+*/x]\s*\$?\d[\d.,]*)+)\s*=\s*\$?(\d[\d.,]*)")
OPERATORS: Mapping[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
TRIES = 60


class Step(NamedTuple):
    """An annotated computation: its expression, and the result as the text gives it."""

    expression: ast.expr
    result: Fraction


class Problem(NamedTuple):
    """A question and its annotated solution, and the numbers that can change."""

    question: str
    solution: str
    steps: Sequence[Step]
    free: Sequence[Fraction]  # in order of size

    def variant(self, rng: random.Random) -> tuple[str, str] | None:
        """Return question and solution with other numbers; None if none were found."""
        for _ in range(TRIES):
            values = draw(self.free, rng)
            if values is None or not follow(self.steps, values):
                continue
            texts = [replace(text, values) for text in (self.question, self.solution)]
            plain = ANNOTATION.sub("", texts[1])
            if texts[0] != self.question and equations_hold(plain):
                return texts[0], plain
        return None


def read_problem(question: str, solution: str) -> Problem | None:
    """Return a problem whose numbers can change; None if that is not safe."""
    steps: list[Step] = []
    for expression, result in ANNOTATION.findall(solution):
        try:
            tree = ast.parse(expression.replace(",", "").strip(), mode="eval").body
            steps.append(Step(tree, to_number(result)))
            if evaluate(tree, {}) != steps[-1].result:
                return None  # rounded, or wrong
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None
    final = solution.rpartition(MARK)[2].strip()
    if not steps or not NUMBER.fullmatch(final) or to_number(final) != steps[-1].result:
        return None
    numbers = list(NUMBER.finditer(question))
    values = {to_number(match[0]) for match in numbers}
    said = re.findall(r"[a-z]+?(?=s?\b)", f"{question} {solution}".lower())
    words = {NUMERALS[word] for word in said if word in NUMERALS}
    fixed = {to_number(match[0]) for match in numbers if is_fixed(match, question)} | words
    results = [step.result for step in steps]
    made = {value for value in results if value not in values}
    operands = {value for step in steps for value in constants(step.expression)}
    others = operands - values - made  # such as the 2 of "half as many"
    if any(value > 10 and value not in USUAL for value in others):
        return None  # the result of a computation without an annotation
    fixed |= others
    free = (values & operands) - fixed
    known = set(free)
    for value in results:
        if value in known | fixed | values:
            return None  # two numbers of one value could need different replacements
        known.add(value)
    if any(to_number(match[0]) not in known | fixed for match in NUMBER.finditer(solution)):
        return None
    return Problem(question, solution, steps, sorted(free)) if free else None


def equations_hold(text: str) -> bool:
    """Return whether the equations between plain numbers in a solution are true."""
    for left, right in EQUATION.findall(text):
        try:
            tree = ast.parse(re.sub(r"[$,\s]", "", left).replace("x", "*"), mode="eval").body
            if evaluate(tree, {}) != to_number(right.rstrip(".,")):
                return False
        except (SyntaxError, ValueError, ZeroDivisionError):
            return False
    return True


def is_fixed(match: re.Match[str], text: str) -> bool:
    """Return whether a number of a question must stay as it is."""
    value = to_number(match[0])
    small = value.denominator != 1 or value <= 3 or value in USUAL or 1900 <= value <= 2100
    joined = BEFORE.search(text[max(0, match.start() - 4) : match.start()])
    return small or joined is not None or AFTER.match(text, match.end()) is not None


def to_number(text: str) -> Fraction:
    return Fraction(text.strip().replace(",", "").replace("$", ""))


def constants(tree: ast.expr) -> Iterator[Fraction]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            yield Fraction(str(node.value))


def evaluate(tree: ast.expr, values: Mapping[Fraction, Fraction]) -> Fraction:
    """Compute an expression with replaced numbers.

    Raises:
        ValueError: It is not arithmetic.
    """
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        number = Fraction(str(tree.value))
        return values.get(number, number)
    if isinstance(tree, ast.BinOp) and type(tree.op) in OPERATORS:
        left, right = evaluate(tree.left, values), evaluate(tree.right, values)
        return OPERATORS[type(tree.op)](left, right)
    raise ValueError(ast.dump(tree))


def draw(free: Sequence[Fraction], rng: random.Random) -> dict[Fraction, Fraction] | None:
    """Return a new number for each free one, of a similar size, roundness and the same order."""
    values: dict[Fraction, Fraction] = {}
    for number in free:
        unit = next(unit for unit in (1000, 100, 10, 5, 1) if number % unit == 0)
        low, high = int(number / 2 / unit), int(number * 2 / unit)
        values[number] = Fraction(rng.randint(max(1, low), max(1, high)) * unit)
    drawn = list(values.values())
    rising = all(first < second for first, second in pairwise(drawn))
    return values if rising and min(drawn) > 3 else None


def follow(steps: Sequence[Step], values: dict[Fraction, Fraction]) -> bool:
    """Add the results of the steps to `values`. Return whether they are like the old ones."""
    for step in steps:
        try:
            result = evaluate(step.expression, values)
        except ZeroDivisionError:
            return False
        whole = step.result.denominator == 1
        if result <= 0 or (whole and result.denominator != 1) or 100 * result % 1:
            return False
        if result > 100 * step.result and result > 1000:
            return False
        values[step.result] = result
    return True


def replace(text: str, values: Mapping[Fraction, Fraction]) -> str:
    """Return a text with its numbers replaced, written as before: with commas if it had some."""

    def new(match: re.Match[str]) -> str:
        number = values.get(to_number(match[0]))
        if number is None or number == to_number(match[0]):
            return match[0]
        if number.denominator == 1:
            commas = "," in match[0] or (number >= 1000 and to_number(match[0]) < 1000)
            return f"{int(number):,}" if commas and "," in match[0] else str(int(number))
        places = 2 if "." in match[0] and len(match[0].partition(".")[2]) == 2 else 0
        return f"{float(number):.2f}" if places else f"{float(number):g}"

    return NUMBER.sub(new, text)


def variants(question: str, solution: str, times: int) -> Iterator[tuple[str, str]]:
    """Return up to `times` different variants of a question and its annotated solution."""
    problem = read_problem(question, solution)
    if problem is None:
        return
    found = {question}
    for number in range(times):
        variant = problem.variant(random.Random(f"{number} {question}"))
        if variant is not None and variant[0] not in found:
            found.add(variant[0])
            yield variant
