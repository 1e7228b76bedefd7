"""New word problems in the format of GSM8K, for `qwen_texts.py`.

A small model that continues worked examples writes new questions with answers. Many of the answers
are wrong. This module keeps a problem only if the answer can be followed: every equation is between
plain numbers and true, every number comes from the question, from an earlier result or from common
knowledge, every number of the question and every result is used, units are converted, and the last
result is the final answer. An answer that can be followed may still be wrong, so `qwen_texts.py`
lets the model answer again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from number_variants import EQUATION, NUMBER, NUMERALS, USUAL, equations_hold, to_number

from wavefront.tasks.grading.final_answer import MARK

SHOTS = 3
BEGINNING = range(3, 9)  # words of a question; without them, the questions make less sense
QUESTION_LENGTH = range(50, 401)  # characters
ANSWER_LENGTH = range(12, 401)
SHORT = 260  # characters of a question or an answer that becomes a worked example
SMALL = {Fraction(n) for n in (1, 2, 100)}  # needs no mention: a person alone, half, per cent
ALIKE = 0.6  # a larger share of common words is a copy
# A small model forgets them most often.
UNITS = (
    (7, ("day", "week")),
    (12, ("month", "year")),
    (52, ("week", "year")),
    (60, ("minute", "hour")),
    (60, ("second", "minute")),
    (365, ("day", "year")),
)
TWO = re.compile(r"\b(twice|doubled?|half|halves)\b", re.IGNORECASE)
ASKS = re.compile(r"\b(how|what|find|calculate|determine|who|which)\b", re.IGNORECASE)
WORD = re.compile(r"[a-z]+")


class WordProblem(NamedTuple):
    """A question and its answer, which ends in `#### number`."""

    question: str
    answer: str

    @property
    def worked(self) -> str:
        """The text of a worked example."""
        return f"Q: {self.question}\nA: {self.answer}"


class Request(NamedTuple):
    """Worked examples and the beginning of a question, which the original continues."""

    text: str
    begin: str
    shown: Sequence[WordProblem]  # also the one that has this beginning


class Examples:
    """Worked examples to draw from, and the questions that a new problem must not repeat."""

    def __init__(self, problems: Iterable[WordProblem]) -> None:
        known = list(problems)
        self.known = {normal(one.question) for one in known}
        self.short = [
            one for one in known if max(len(one.question), len(one.answer)) <= SHORT and holds(one)
        ]

    def draw(self, number: int) -> Request:
        """Return a request; no two have the same examples and beginning."""
        rng = random.Random(number)
        *shown, last = rng.sample(self.short, SHOTS + 1)
        begin = " ".join(last.question.split()[: rng.choice(BEGINNING)])
        text = "".join(f"{one.worked}\n\n" for one in shown) + f"Q: {begin}"
        return Request(text, begin, (*shown, last))

    def is_new(self, problem: WordProblem, shown: Sequence[WordProblem]) -> bool:
        """Return whether a problem is neither a known one nor much like those that were shown."""
        return normal(problem.question) not in self.known and all(
            share_of_words(problem.question, one.question) <= ALIKE for one in shown
        )


def read_problem(text: str) -> WordProblem | None:
    """Return the problem at the start of a text; None if it is not in the format."""
    question, found, answer = text.split("\nQ:")[0].partition("\nA:")
    problem = WordProblem(question.strip(), answer.strip())
    return problem if found and holds(problem) else None


def holds(problem: WordProblem) -> bool:
    """Return whether the answer follows from the question, as far as numbers tell."""
    question, answer = problem
    body, final = answer.rpartition(MARK)[0], read_result(answer)
    if final is None or "\n\n" in answer or "\n" in question:
        return False
    if len(question) not in QUESTION_LENGTH or len(answer) not in ANSWER_LENGTH:
        return False
    if not asks(question) or not problem.answer.isascii() or not question.isascii():
        return False
    equations = EQUATION.findall(body)
    if not equations or len(equations) != body.count("=") or not equations_hold(body):
        return False
    given = [to_number(match[0]) for match in NUMBER.finditer(question)]
    said = {NUMERALS[word] for word in spoken(question) if word in NUMERALS}
    results: list[Fraction] = []
    used: set[Fraction] = set()
    for left, right in equations:
        operands = {to_number(match[0]) for match in NUMBER.finditer(left)}
        if not operands <= known_values(given, said, results):
            return False
        used |= operands
        results.append(to_number(right.rstrip(".,")))
    if len(set(given) | said) < 2 or not all(is_used(value, used) for value in given):
        return False
    if any(value not in used for value in said if value > 2):
        return False
    if TWO.search(question) and used.isdisjoint({Fraction(2), Fraction(1, 2)}):
        return False
    if any(unit not in used for unit in units(question)):
        return False
    if any(value not in used for value in results[:-1]):
        return False
    return results[-1] == final and min(results) > 0


def read_result(answer: str) -> Fraction | None:
    """Return the number after the last mark of an answer; None if there is none alone."""
    _, mark, final = answer.rpartition(MARK)
    return to_number(final) if mark and NUMBER.fullmatch(final.strip()) else None


def asks(question: str) -> bool:
    """Return whether the last sentence asks something."""
    last = re.split(r"(?<=[.?!])\s+", question)[-1]
    return last.endswith("?") or ASKS.search(last) is not None


def known_values(
    given: Iterable[Fraction], said: set[Fraction], results: Sequence[Fraction]
) -> set[Fraction]:
    """Return the numbers that an equation can use."""
    parts = {part for value in given if value <= 100 for part in percentages(value)}
    return {*given, *said, *results, *SMALL, *map(Fraction, USUAL)} | parts


def is_used(value: Fraction, used: Collection[Fraction]) -> bool:
    """Return whether a number of the question is used, perhaps as a share."""
    return value == 1 or any(part in used for part in (value, *percentages(value)))


def percentages(value: Fraction) -> set[Fraction]:
    """Return what a percentage can become in a computation."""
    return {value / 100, 1 - value / 100, 100 - value, 1 + value / 100, 100 + value}


def spoken(text: str) -> list[str]:
    """Return the words of a text, in the singular, as `NUMERALS` has them."""
    return re.findall(r"[a-z]+?(?=s?\b)", text.lower())


def normal(question: str) -> str:
    """Return the words of a question, without its numbers."""
    return " ".join(WORD.findall(question.lower()))


def units(question: str) -> Iterator[Fraction]:
    """Return the numbers that convert the units of a question into each other."""
    words = {*spoken(question)}
    for number, (small, large) in UNITS:
        if small in words and large in words:
            yield Fraction(number)


def share_of_words(first: str, second: str) -> float:
    """Return the share of the words of two texts that both have."""
    one, other = ({*WORD.findall(text.lower())} for text in (first, second))
    return len(one & other) / max(1, len(one | other))
