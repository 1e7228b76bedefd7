"""Small Python functions from a signature and a docstring, judged by running them.

Four sources: chains of operations on a list, a string or a number; loops put together from a
condition and updates; functions written whole; and one or two operations told by examples alone,
which is the hard part: what is described only has to be translated, what is shown has to be found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from wavefront.tasks import sandbox
from wavefront.tasks.base import Draft, Procedural, Sample, between, choose, terms
from wavefront.tasks.grading import Grade
from wavefront.tasks.procedural import _code_text_ops as text_ops
from wavefront.tasks.procedural._code_functions import Whole, wholes
from wavefront.tasks.procedural._code_loops import loop
from wavefront.tasks.procedural._code_ops import LIST_ENDS, LISTS, Op, Range
from wavefront.tasks.procedural._words import vocabulary

NAMES = terms(
    "solve compute process transform calculate evaluate convert handle derive build f "
    "task apply result_of make"
)
TESTS = 5
SECONDS = 5.0  # for the tests of one answer
EXAMPLES = 3  # of a function that is told by them alone
SHOWN = ("Do what the examples show.", "Return what the examples show.")
RESERVED_SHOWN = ("Behave as in these calls.", "Infer the rule.")


class Domain(NamedTuple):
    """What chains of operations work on."""

    steps: tuple[Op, ...]
    ends: tuple[Op, ...]
    type: str
    arguments: tuple[str, ...]
    most: int  # steps before the end


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
    """Grading runs what the model wrote, in a sandbox, or without where that is allowed."""

    allow_unsandboxed: bool = False
    kind = "code"
    executes = True

    def draft(self, rng: Random, reserved: bool) -> Draft:
        source = rng.random()
        if source < 0.25:
            return shown(rng, reserved)
        if source < 0.65:
            function, skeleton = chained(rng, reserved)
        elif source < 0.8:
            function = loop(rng, reserved)
            skeleton = function.body
        else:
            function, skeleton = written(rng, reserved)
        return present(rng, function, skeleton)

    def grade(self, sample: Sample, text: str) -> Grade:
        """Run the function on the sample's cases; a bare body is put under the asked signature."""
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


def drawn(rng: Random, draws: tuple[Range, ...]) -> dict[str, Any]:
    """Values for the slots; `c` and `d` stand for letters."""
    values = {slot: between(rng, low, high) for slot, low, high in draws}
    return {slot: chr(value) if slot in "cd" else value for slot, value in values.items()}


def written(rng: Random, reserved: bool) -> tuple[Whole, str]:
    """A function of the shelf; training never sees the reserved ones, nor any reserved wording."""
    function = choose(rng, wholes())
    while not (reserved or function.says):
        function = choose(rng, wholes())
    values = drawn(rng, function.draws)
    says = choose(rng, function.reserved if reserved else function.says)
    run = function.run
    filled = function._replace(
        says=(says.format_map(values),),
        body=function.body.format_map(values),
        run=lambda *args: run(*args, **values),
    )
    return filled, f"{function.name} {sorted(values.items())} {function.takes}"


def shown(rng: Random, reserved: bool) -> Draft:
    """A function told by examples: one operation, or one and what is returned of its result."""
    while True:
        function, skeleton = chained(rng, reserved, most=1)
        calls = [case(rng, function) for _ in range(EXAMPLES)]
        if len({repr(value) for _, value in calls}) == EXAMPLES:
            break  # examples that all give the same would show nothing
    says = choose(rng, RESERVED_SHOWN if reserved else SHOWN)
    return present(rng, function._replace(says=(says,)), f"{skeleton} {calls}", calls)


def chained(rng: Random, reserved: bool, most: int | None = None) -> tuple[Whole, str]:
    """A chain of one to five operations, each a line; `most` steps before its end."""
    domain = choose(rng, DOMAINS)
    ended = rng.random() < 0.7
    most = domain.most if most is None else most
    steps = [choose(rng, domain.steps) for _ in range(between(rng, 1 - ended, most))]
    steps = steps or [choose(rng, domain.steps)]
    last = [choose(rng, domain.ends)] if ended else []
    argument = choose(rng, domain.arguments)
    said: list[str] = []
    lines: list[str] = []
    runs: list[tuple[Any, dict[str, Any]]] = []
    for operation in steps + last:
        values = drawn(rng, operation.draws)
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
    return Whole("chain", (), takes, gives, (text,), (), "\n".join(lines), run), skeleton


Case = tuple[tuple[Any, ...], Any]  # arguments, and what the function gives for them


def case(rng: Random, function: Whole) -> Case:
    """One call with its result."""
    args = tuple(INPUTS[kind](rng) for _, kind in function.takes)
    return args, function.run(*args)


def present(rng: Random, function: Whole, skeleton: str, calls: Sequence[Case] = ()) -> Draft:
    """Signature and docstring as the question, the whole function as the answer, and its tests.

    The docstring ends with `calls`, if there are any; otherwise sometimes with the first test.
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
    return between(rng, 0, 30)


def numbers(rng: Random) -> list[int]:
    return [between(rng, -9, 20) for _ in range(between(rng, 0, 8))]


def rows(rng: Random) -> list[list[int]]:
    return [numbers(rng)[:4] for _ in range(between(rng, 0, 4))]


def words(rng: Random) -> list[str]:
    return [choose(rng, vocabulary()) for _ in range(between(rng, 0, 5))]


def text(rng: Random) -> str:
    shown = " ".join(words(rng))
    if rng.random() < 0.4:
        shown = f" {shown.title()} {between(rng, 0, 99)}"
    return shown


def counts(rng: Random) -> dict[str, int]:
    return {word: between(rng, 0, 12) for word in words(rng)}


INPUTS = {
    "int": whole_number,
    "list[int]": numbers,
    "list[list[int]]": rows,
    "list[str]": words,
    "str": text,
    "dict[str, int]": counts,
}


def extract(stub: str, entry: str, text: str) -> str:
    """The function in what a model wrote: fences removed, a bare body completed by its stub."""
    fenced = re.search(r"```(?:python)?\n(.*?)(?:```|\Z)", text, re.DOTALL)
    code = fenced.group(1) if fenced else text
    at = code.find(f"def {entry}(")
    if at >= 0:
        return code[at:]
    body = code if code.startswith((" ", "\t")) else "    " + code.replace("\n", "\n    ")
    return stub + body
