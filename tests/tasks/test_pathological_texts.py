"""Grading takes a time that grows with the length of the text, not with its square."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from wavefront import tasks
from wavefront.core.errors import PromptError
from wavefront.tasks.base import Sample
from wavefront.tasks.benchmarks.bbh import SUBSETS
from wavefront.tasks.benchmarks.countdown import Countdown
from wavefront.tasks.benchmarks.sudoku import Sudoku
from wavefront.tasks.grading import maths, program
from wavefront.tasks.grading.final_answer import grade_final
from wavefront.tasks.procedural.code import extract
from wavefront.text.chat_template import parse_holes

LENGTH = 100_000  # characters of a text
SECONDS = 1.0  # CPU time for one text
UNITS = (
    "\n", "\r\n", " ", "\t", "\\", "\\(", "\\)", "\\[", "\\( \\[", "\\boxed", "\\boxed{",
    "\\boxed ", "\\boxed{}", "\\fbox\n", "{", "}", "{}", "$", "$$", "$a", "$ $", "0", "1", "12 ",
    "1,", "1,1", "1.", ".1", "1/", "1/1", "-", "-1", ",", ".", "0.0", "1+", "1+1=", "1 + 1 = ",
    "1=", "1 ", "1\n", "1 \n", "1|", "1, ", "1234\n", "1234 ", "123 ", "`", "```", "```\n",
    "```python\n", "\n```", "``` ", "def f(", "def f", "def f():\n", "def f(x):\n  ", "\ndef ",
    "class f", " def f", "\n f", "import ", "@\n", "    ", "    \n", "\n    ", "answer is ",
    "answer is: *", "the answer is", "answer: ", "answer:\n", "answer:*", "#", "####", "#### ",
    "####\n", "(", ")", "(A)", "( A", "A", "((", "[", "<", ">", "<<", "<>", "*", "**", "**a", "_",
    "yes", "yes ", "no.", "yes\n", "true ", "valid", "invalid ", "in", "\\frac", "\\frac1",
    "\\text{", "\\text {", "\\text", "\\sqrt1", "^", "^{\\circ", "\\left", "\\!", "~", "x=",
    "a(b)=", "\\$", "%", "'", '"', '"""', "'''", "\\u0661", "\u0661", "\u0661,", "\u00bd", "\u2003",
    "\u2028", "\ud800", "\x00", "\x0c", "\x85", "\u00e9 ", "[DONE]", "<|eot_id|>", "if 1:\n", "(\n",
    "1 if ", "not ", "lambda:", "a.", "a\n", "a ", "a,", "a=", "\\\n", ";", ":", "f(", "[[",
    "0,0,0\n", "<mask:", "\\<mask:",
)  # fmt: skip
STARTS = (
    "answer is ", "\\boxed{", "$", "\\(", "\\[", "```", "```\n", "####", "(", "0", "1.", "1+",
    "def f(", "x=", "\\text{",
)  # fmt: skip
ENDS = ("", "1!")


QUICK = ("\n", "\\(", "\\[", "1", "{", " ", "\\", "```")  # once quadratic, or close to it
QUESTION = {"question": "3,5,2,16"}
GRID = {"question": "0410\n3002\n0320\n4001"}
PROGRAM = {"stub": "def f(x):\n", "entry": "f", "names": ["f"], "setup": "", "tests": "f(1)"}
EXTRA = {"countdown": QUESTION, "sudoku": GRID, "humaneval": PROGRAM, "mbpp": PROGRAM}


def texts(units: Sequence[str], starts: Sequence[str]) -> Iterator[str]:
    """Yield texts that repeat something, with a start or an end that makes a pattern fail late."""
    for unit in units:
        text = (unit * LENGTH)[:LENGTH]
        yield from (text + end for end in ENDS)
    for start in starts:
        for unit in ("\n", " ", "0", ",", "{", "\\", "`", "*", "a", "0,"):
            yield from ((start + unit * LENGTH)[:LENGTH] + end for end in ENDS)


def check_time(act: Callable[[str], object], texts: Iterable[str]) -> None:
    """Check the CPU time of every text: the best of three attempts, without garbage collection.

    A collection in a long test session takes as long as the limit, and a busy machine adds noise.
    A quadratic pattern is slow in every attempt.
    """
    for text in texts:
        spent = min_time(act, text, attempts=3)
        assert spent < SECONDS, f"{text[:20]!r} ... {text[-5:]!r} took {spent:.1f} s"


def min_time(act: Callable[[str], object], text: str, *, attempts: int) -> float:
    """Return the shortest CPU time of the call. Stop at the first attempt within the limit."""
    best = math.inf
    gc.disable()
    try:
        for _ in range(attempts):
            start = time.process_time()
            act(text)
            best = min(best, time.process_time() - start)
            if best < SECONDS:
                break
    finally:
        gc.enable()
    return best


def item(name: str) -> Sample:
    """Return an item of a task, without its data files."""
    if name in tasks.names() and name != "english":  # english draws its items from a data file
        return tasks.load(name).sample(Random(0))
    extra = next((extra for part, extra in EXTRA.items() if name.startswith(part)), {})
    return Sample("1", "", "18", "18", extra)


def different_graders() -> list[str]:
    """Return a task for each grader: a method and a kind of answer. Many tasks share one."""
    found: dict[object, str] = {}
    for name in (*tasks.names(), *tasks.benchmarks()):
        task: Any = tasks.load(name)
        kind = (
            SUBSETS[name.removeprefix("bbh_")]
            if name.startswith("bbh_")
            else getattr(task, "kind", "")
        )
        found.setdefault((type(task).grade, kind), name)
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", different_graders())
def test_grading_time_does_not_depend_on_the_text(name: str) -> None:
    task: Any = tasks.load(name)
    if task.executes:
        task = tasks.load(name, allow_unsandboxed=True)
    sample = item(name)
    # A sandbox takes a moment to start; the search for the program is also tested below.
    every = list(texts(UNITS, STARTS))
    check_time(lambda text: task.grade(sample, text), every[:: 40 if task.executes else 1])


@pytest.mark.slow
@pytest.mark.parametrize("stub", ["", "def f(x):\n"])
def test_finding_a_program_does_not_depend_on_the_text(stub: str) -> None:
    check_time(lambda text: program.find_program(stub, "f", text), texts(UNITS, STARTS))


@pytest.mark.parametrize(
    "act",
    [
        lambda text: grade_final("number", "18", text, spoken=True),
        lambda text: grade_final("words", "18", text, spoken=True),
        maths.last_boxed,
        maths.last_expression,
        maths.normalise,
        lambda text: program.strict_program("", "f", text),
        lambda text: Countdown().grade(Sample("", "", "", "", QUESTION), text),
        lambda text: Sudoku().grade(Sample("", "", "", "", GRID), text),
        lambda text: extract("def f(x):\n", "f", text),
        lambda text: parse_holes(text),
    ],
)
def test_patterns_take_linear_time(act: Callable[[str], object]) -> None:
    def run(text: str) -> None:
        with contextlib.suppress(PromptError):  # no hole may have this size
            act(text)

    check_time(run, texts(QUICK, ["```"]))


def test_trailing_zeros_are_removed_in_linear_time() -> None:
    zeros = "0" * LENGTH
    assert maths.normalise(f"1.{zeros}1") == f"1.{zeros}1"
    assert maths.normalise(f"1.5{zeros}") == "1.5"
    check_time(maths.normalise, [f"1.{zeros}1", f"1.5{zeros}"])


@pytest.mark.slow
def test_quadratic_patterns_are_noticed() -> None:
    pattern = re.compile(r" +\n")

    with pytest.raises(AssertionError, match="took"):
        check_time(pattern.search, [" " * LENGTH])


@pytest.mark.parametrize("text", ["1/0+1=1", "1+1/0=1", f"{'1' * 5000}+1=2", "\u0661/\u0660+1=2"])
def test_impossible_numbers_are_wrong_and_do_not_raise(text: str) -> None:
    assert not Countdown().grade(Sample("", "", "", "", QUESTION), text).correct
