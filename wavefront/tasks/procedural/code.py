"""Write a small Python function from its signature and docstring. Answers are graded by running.

There are four sources of functions: chains of operations on a list, a string or a number; loops
composed of a condition and updates; functions from `functions.txt`; and one or two operations shown
only by examples. The last is the hardest, because the model must infer the rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from wavefront.tasks import sandbox
from wavefront.tasks.base import Draft, Procedural, Sample, choose, draw_int, split_words
from wavefront.tasks.grading import Grade
from wavefront.tasks.procedural import _code_text_ops as text_ops
from wavefront.tasks.procedural._code_functions import Function, functions
from wavefront.tasks.procedural._code_loops import loop
from wavefront.tasks.procedural._code_ops import LIST_ENDS, LISTS, Op, Range
from wavefront.tasks.procedural._words import vocabulary

NAMES = split_words(
    "solve compute process transform calculate evaluate convert handle derive build f "
    "task apply result_of make"
)
TESTS = 5
SECONDS = 5.0  # time limit for the tests of one answer
EXAMPLES = 3  # for a function without a description
SHOWN = ("Do what the examples show.", "Return what the examples show.")
RESERVED_SHOWN = ("Behave as in these calls.", "Infer the rule.")


class Domain(NamedTuple):
    """The values that a chain of operations works on."""

    steps: tuple[Op, ...]
    ends: tuple[Op, ...]
    type: str
    arguments: tuple[str, ...]
    max_steps: int  # the most operations before the closing one


DOMAINS = (
    Domain(LISTS, LIST_ENDS, "list[int]", ("numbers", "values", "nums", "items", "data"), 3),
    Domain(text_ops.TEXTS, text_ops.TEXT_ENDS, "str", ("text", "s", "string", "word", "line"), 3),
    Domain(text_ops.WHOLES, text_ops.WHOLE_ENDS, "int", ("n", "x", "number", "value"), 4),
)
JOINS = (
    ("{0}, and return {1}.", ", "),
    ("{0}, then return {1}.", ", then "),
    ("{0}. Return {1}.", ". Then "),
    ("{0}; return {1}.", "; "),
)
RESERVED_JOINS = (("{0}; finally, give back {1}.", "; next, "), ("{0}: hand over {1}.", " and "))


@dataclass(frozen=True)
class Code(Procedural):
    """Grading runs the answer in a sandbox, or without one if `allow_unsandboxed` is set."""

    allow_unsandboxed: bool = False
    kind = "code"
    executes = True

    def draft(self, rng: Random, reserved: bool) -> Draft:
        source = rng.random()
        if source < 0.25:
            return example_function(rng, reserved)
        if source < 0.65:
            function, skeleton = chain_function(rng, reserved)
        elif source < 0.8:
            function = loop(rng, reserved)
            skeleton = function.body
        else:
            function, skeleton = file_function(rng, reserved)
        return make_draft(rng, function, skeleton)

    def grade(self, sample: Sample, text: str) -> Grade:
        """Run the function on the item's cases. A body without a signature gets the prompt's."""
        code = extract(sample.extra["stub"], sample.extra["entry"], text)
        verdict = sandbox.check_cases(
            code,
            sample.extra["entry"],
            sample.extra["tests"],
            timeout=SECONDS,
            allow_unsandboxed=self.allow_unsandboxed,
        )
        passed = verdict.passed
        return Grade(passed, verdict.reason, "executed", passed, passed, verdict.layers)


def draw_values(rng: Random, draws: tuple[Range, ...]) -> dict[str, Any]:
    """Draw values for the slots. The slots `c` and `d` hold letters."""
    values = {slot: draw_int(rng, low, high) for slot, low, high in draws}
    return {slot: chr(value) if slot in "cd" else value for slot, value in values.items()}


def file_function(rng: Random, reserved: bool) -> tuple[Function, str]:
    """Choose a function of `functions.txt`. Training never sees a reserved function or wording."""
    function = choose(rng, functions())
    while not (reserved or function.says):
        function = choose(rng, functions())
    values = draw_values(rng, function.draws)
    says = choose(rng, function.reserved if reserved else function.says)
    run = function.run
    filled = function._replace(
        says=(says.format_map(values),),
        body=function.body.format_map(values),
        run=lambda *args: run(*args, **values),
    )
    return filled, f"{function.name} {sorted(values.items())} {function.takes}"


def example_function(rng: Random, reserved: bool) -> Draft:
    """Describe a function of one or two operations only by examples."""
    while True:
        function, skeleton = chain_function(rng, reserved, most=1)
        calls = [case(rng, function) for _ in range(EXAMPLES)]
        if len({repr(value) for _, value in calls}) == EXAMPLES:
            break  # examples with equal results would not show the rule
    says = choose(rng, RESERVED_SHOWN if reserved else SHOWN)
    return make_draft(rng, function._replace(says=(says,)), f"{skeleton} {calls}", calls=calls)


def chain_function(rng: Random, reserved: bool, most: int | None = None) -> tuple[Function, str]:
    """Compose one to five operations, one per line.

    The last operation can be a closing one (`Domain.ends`). `most` limits the number of operations
    without the closing one; None means the limit of the domain.
    """
    domain = choose(rng, DOMAINS)
    ended = rng.random() < 0.7
    most = domain.max_steps if most is None else most
    steps = [choose(rng, domain.steps) for _ in range(draw_int(rng, 1 - ended, most))]
    steps = steps or [choose(rng, domain.steps)]
    last = [choose(rng, domain.ends)] if ended else []
    argument = choose(rng, domain.arguments)
    said: list[str] = []
    lines: list[str] = []
    runs: list[tuple[Any, dict[str, Any]]] = []
    for operation in steps + last:
        values = draw_values(rng, operation.draws)
        way = operation.reserved if reserved else choose(rng, operation.says)
        said.append(way.format_map(values))
        lines.append(f"{argument} = {operation.code.format_map({'v': argument, **values})}")
        runs.append((operation.run, values))
    lines[-1] = f"return {lines[-1].partition(' = ')[2]}"
    result = said.pop() if last else "the result"
    frame, link = choose(rng, RESERVED_JOINS if reserved else JOINS)
    text = frame.format(link.join(said), result)
    text = text[0].upper() + text[1:]

    def run(value: Any) -> Any:
        for function, values in runs:
            value = function(value, **values)
        return value

    gives = last[0].gives if last else domain.type
    skeleton = f"{domain.type} " + "; ".join(line.replace(argument, "v") for line in lines)
    takes = ((argument, domain.type),)
    return Function("chain", (), takes, gives, (text,), (), "\n".join(lines), run), skeleton


Case = tuple[tuple[Any, ...], Any]  # arguments and result


def case(rng: Random, function: Function) -> Case:
    """Draw arguments and compute the result."""
    args = tuple(INPUTS[kind](rng) for _, kind in function.takes)
    return args, function.run(*args)


def make_draft(
    rng: Random, function: Function, skeleton: str, *, calls: Sequence[Case] = ()
) -> Draft:
    """Make the item: signature and docstring are the question, the function is the answer.

    The docstring ends with the examples `calls`. Without any, it sometimes shows the first test.
    """
    name = choose(rng, NAMES)
    takes = ", ".join(f"{argument}: {kind}" for argument, kind in function.takes)
    signature = f"def {name}({takes}) -> {function.gives}:\n"
    tests = [case(rng, function) for _ in range(TESTS)]
    text = function.says[0]
    if not calls and rng.random() < 0.2:
        calls = tests[:1]
    if calls:
        lines = [f"    >>> {name}({', '.join(map(repr, a))})\n    {v!r}\n" for a, v in calls]
        text += f"\n\n{''.join(lines)}    "
    stub = f'{signature}    """{text}"""\n'
    answer = signature + "    " + function.body.replace("\n", "\n    ")
    extra = {"entry": name, "stub": stub, "tests": tests}
    return Draft(stub.rstrip("\n"), answer, answer, skeleton, extra)


def whole_number(rng: Random) -> int:
    return draw_int(rng, 0, 30)


def numbers(rng: Random) -> list[int]:
    return [draw_int(rng, -9, 20) for _ in range(draw_int(rng, 0, 8))]


def rows(rng: Random) -> list[list[int]]:
    return [numbers(rng)[:4] for _ in range(draw_int(rng, 0, 4))]


def words(rng: Random) -> list[str]:
    return [choose(rng, vocabulary()) for _ in range(draw_int(rng, 0, 5))]


def text(rng: Random) -> str:
    shown = " ".join(words(rng))
    if rng.random() < 0.4:
        shown = f" {shown.title()} {draw_int(rng, 0, 99)}"
    return shown


def counts(rng: Random) -> dict[str, int]:
    return {word: draw_int(rng, 0, 12) for word in words(rng)}


INPUTS = {
    "int": whole_number,
    "list[int]": numbers,
    "list[list[int]]": rows,
    "list[str]": words,
    "str": text,
    "dict[str, int]": counts,
}


def extract(stub: str, entry: str, text: str) -> str:
    """Find the function in a model's text. Remove fences, and add the stub to a bare body."""
    fenced = re.search(r"```(?:python)?\n(.*?)(?:```|\Z)", text, re.DOTALL)
    code = fenced.group(1) if fenced else text
    at = code.find(f"def {entry}(")
    if at >= 0:
        return code[at:]
    body = code if code.startswith((" ", "\t")) else "    " + code.replace("\n", "\n    ")
    return stub + body
