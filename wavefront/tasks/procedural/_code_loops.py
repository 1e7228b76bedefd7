"""Loops for the task `code`: a condition, two updates of a total, sometimes a reason to stop."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import NamedTuple

from wavefront.tasks.base import choose, draw_int
from wavefront.tasks.procedural._code_functions import Function
from wavefront.tasks.procedural._code_ops import Op, op

# fmt: off
CONDITIONS = (
    op("even", "x % 2 == 0", lambda x: not x & 1, "is even / is not odd / can be halved"),
    op("odd", "x % 2 == 1", lambda x: bool(x & 1), "is odd / is not even / cannot be halved"),
    op("divisible k=3-9", "x % {k} == 0", lambda x, k: x // k * k == x,
       "is divisible by {k} / is a multiple of {k} / has {k} as a divisor"),
    op("above k=1-12", "x > {k}", lambda x, k: not x <= k,
       "is greater than {k} / is above {k} / exceeds {k}"),
    op("below k=1-12", "x < {k}", lambda x, k: not x >= k,
       "is less than {k} / is below {k} / falls short of {k}"),
    op("negative", "x < 0", lambda x: x < 0, "is negative / is below zero / has a minus sign"),
    op("equal k=0-9", "x == {k}", lambda x, k: not x - k, "is {k} / equals {k} / is exactly {k}"),
    op("both k=2-5 j=6-15", "x % {k} == 0 and x < {j}", lambda x, k, j: x < j and x // k * k == x,
       "is divisible by {k} and less than {j} / is below {j} and a multiple of {k}"
       " / has {k} as a divisor and falls short of {j}"),
    op("either k=3-7 j=8-15", "x % {k} == 0 or x > {j}", lambda x, k, j: x > j or x // k * k == x,
       "is divisible by {k} or greater than {j} / is above {j} or a multiple of {k}"
       " / has {k} as a divisor or exceeds {j}"),
)
UPDATES = (
    op("add", "total += x", lambda t, x: x + t,
       "add it / add it to the total / let the total grow by it"),
    op("subtract", "total -= x", lambda t, x: t + -x,
       "subtract it / subtract it from the total / let the total shrink by it"),
    op("add_times k=2-6", "total += x * {k}", lambda t, x, k: t + k * x,
       "add {k} times it / add it, multiplied by {k}, to the total"
       " / let the total grow by {k} of it"),
    op("add_square", "total += x * x", lambda t, x: t + x**2,
       "add its square / add its square to the total / let the total grow by it times itself"),
    op("add_constant k=1-9", "total += {k}", lambda t, x, k: k + t,
       "add {k} / increase the total by {k} / let the total grow by {k}"),
    op("less_constant k=1-9", "total -= {k}", lambda t, x, k: t + -k,
       "subtract {k} / decrease the total by {k} / let the total shrink by {k}"),
    op("double", "total *= 2", lambda t, x: t + t,
       "double the total / multiply the total by 2 / let the total become twice as large"),
    op("set", "total = x", lambda t, x: x,
       "set the total to it / replace the total by it / let it become the total"),
)
# fmt: on


class LoopPlan(NamedTuple):
    """A loop, from which its description and its Python are written."""

    ranged: bool  # a loop over 1 to n, not over a list
    start: int
    parts: tuple[Op, Op, Op, Op]  # test, reason to stop, update, other update
    values: list[dict[str, int]]
    stopping: bool
    otherwise: bool


def loop(rng: Random, reserved: bool) -> Function:
    """Compose a new function."""
    first, second = rng.sample(UPDATES, 2)
    parts = (choose(rng, CONDITIONS), choose(rng, CONDITIONS), first, second)
    values = [{slot: draw_int(rng, low, high) for slot, low, high in part.draws} for part in parts]
    plan = LoopPlan(
        ranged=rng.random() < 0.3,
        start=draw_int(rng, 0, 20),
        parts=parts,
        values=values,
        stopping=rng.random() < 0.3,
        otherwise=rng.random() < 0.6,
    )
    ways = [part.reserved if reserved else choose(rng, part.says) for part in parts]
    takes = (("n", "int"),) if plan.ranged else (("numbers", "list[int]"),)
    return Function(
        "loop", (), takes, "int", (describe(plan, ways),), (), body(plan), partial(run, plan)
    )


def describe(plan: LoopPlan, ways: list[str]) -> str:
    """Write the docstring."""
    test, stop, first, second = (
        way.format_map(values) for way, values in zip(ways, plan.values, strict=True)
    )
    text = f"Start with a total of {plan.start}. For each number"
    text += " from 1 to n" if plan.ranged else ""
    text += f", {first} if it {test}"
    text += f", otherwise {second}." if plan.otherwise else "."
    text += f" Stop before the first number that {stop}." if plan.stopping else ""
    return f"{text} Return the total."


def body(plan: LoopPlan) -> str:
    """Write the Python body."""
    test, stop, first, second = (
        part.code.format_map(values) for part, values in zip(plan.parts, plan.values, strict=True)
    )
    over = "range(1, n + 1)" if plan.ranged else "numbers"
    lines = [f"total = {plan.start}", f"for x in {over}:"]
    if plan.stopping:
        lines += [f"    if {stop}:", "        break"]
    lines += [f"    if {test}:", f"        {first}"]
    if plan.otherwise:
        lines += ["    else:", f"        {second}"]
    return "\n".join([*lines, "return total"])


def run(plan: LoopPlan, given: list[int] | int) -> int:
    """Compute what the loop returns."""
    test, stop, first, second = (
        partial(part.run, **values) for part, values in zip(plan.parts, plan.values, strict=True)
    )
    total = plan.start
    for number in range(1, given + 1) if isinstance(given, int) else given:
        if plan.stopping and stop(number):
            return total
        if test(number):
            total = first(total, number)
        elif plan.otherwise:
            total = second(total, number)
    return total
