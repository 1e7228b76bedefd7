"""The list operations that the task `code` composes: descriptions, Python text, and effect.

Each effect is implemented apart from the Python text, in another way where possible. So running the
text and comparing the results is a check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Range = tuple[str, int, int]


class Op(NamedTuple):
    """One operation on a value `{v}`, with numbers drawn for the other slots."""

    name: str
    draws: tuple[Range, ...]
    code: str
    run: Callable[..., Any]
    says: tuple[str, ...]
    reserved: str  # a description that training never sees
    gives: str


def parse_head(head: str) -> tuple[str, tuple[Range, ...]]:
    """Parse `above k=1-9` into a name and the ranges of its numbers."""
    name, *ranges = head.split()
    draws: list[Range] = []
    for text in ranges:
        slot, bounds = text.split("=")
        low, high = bounds.split("-")
        draws.append((slot, int(low), int(high)))
    return name, tuple(draws)


def op(head: str, code: str, run: Callable[..., Any], says: str, gives: str = "") -> Op:
    """Make an operation. `says` holds descriptions separated by ` / `; the last is reserved."""
    name, draws = parse_head(head)
    *ways, reserved = says.split(" / ")
    return Op(name, draws, code, run, tuple(ways), reserved, gives)


def unique(values: list[int]) -> list[int]:
    return [value for index, value in enumerate(values) if value not in values[:index]]


def running(values: list[int]) -> list[int]:
    return [sum(values[: index + 1]) for index in range(len(values))]


# From a list of integers to a list of integers.
# fmt: off
LISTS = (
    op("above k=0-12", "[x for x in {v} if x > {k}]", lambda v, k: list(filter(k.__lt__, v)),
       "keep only the numbers greater than {k} / remove every number that is at most {k}"
       " / drop whatever does not exceed {k}"),
    op("below k=0-12", "[x for x in {v} if x < {k}]", lambda v, k: list(filter(k.__gt__, v)),
       "keep only the numbers less than {k} / remove every number that is at least {k}"
       " / drop whatever is not below {k}"),
    op("even", "[x for x in {v} if x % 2 == 0]", lambda v: [x for x in v if not x & 1],
       "keep only the even numbers / remove the odd numbers / drop whatever is odd"),
    op("odd", "[x for x in {v} if x % 2 == 1]", lambda v: [x for x in v if x & 1],
       "keep only the odd numbers / remove the even numbers / drop whatever is even"),
    op("positive", "[x for x in {v} if x > 0]", lambda v: [x for x in v if x > 0],
       "keep only the positive numbers / remove zeros and negative numbers"
       " / drop whatever is not positive"),
    op("negative", "[x for x in {v} if x < 0]", lambda v: [x for x in v if x < 0],
       "keep only the negative numbers / remove everything that is zero or more"
       " / drop whatever is not negative"),
    op("multiple k=3-9", "[x for x in {v} if x % {k} == 0]",
       lambda v, k: [x for x in v if x == x // k * k],
       "keep only the multiples of {k} / keep the numbers divisible by {k}"
       " / drop whatever {k} does not divide"),
    op("no_multiple k=3-9", "[x for x in {v} if x % {k} != 0]",
       lambda v, k: [x for x in v if x != x // k * k],
       "remove the multiples of {k} / keep the numbers not divisible by {k}"
       " / drop whatever {k} divides"),
    op("inside j=0-5 k=6-15", "[x for x in {v} if {j} <= x <= {k}]",
       lambda v, j, k: [x for x in v if x in range(j, k + 1)],
       "keep the numbers from {j} to {k} / keep only numbers between {j} and {k} inclusive"
       " / drop whatever lies outside {j} to {k}"),
    op("without k=0-9", "[x for x in {v} if x != {k}]", lambda v, k: [x for x in v if x - k],
       "remove every {k} / keep the numbers that are not {k} / drop whatever equals {k}"),
    op("add k=1-12", "[x + {k} for x in {v}]", lambda v, k: list(map(k.__add__, v)),
       "add {k} to each number / increase every number by {k} / make all numbers {k} larger"),
    op("subtract k=1-12", "[x - {k} for x in {v}]", lambda v, k: list(map((-k).__add__, v)),
       "subtract {k} from each number / decrease every number by {k}"
       " / make all numbers {k} smaller"),
    op("times k=2-9", "[x * {k} for x in {v}]", lambda v, k: list(map(k.__mul__, v)),
       "multiply each number by {k} / make every number {k} times as large"
       " / scale all numbers by {k}"),
    op("square", "[x * x for x in {v}]", lambda v: [x**2 for x in v],
       "square each number / replace every number by its square"
       " / raise all numbers to the power 2"),
    op("cube", "[x ** 3 for x in {v}]", lambda v: [x * x * x for x in v],
       "cube each number / replace every number by its cube / raise all numbers to the power 3"),
    op("negate", "[-x for x in {v}]", lambda v: [0 - x for x in v],
       "negate each number / change the sign of every number / flip all signs"),
    op("absolute", "[abs(x) for x in {v}]", lambda v: [max(x, -x) for x in v],
       "take the absolute value of each number / replace every number by its absolute value"
       " / make all numbers nonnegative by dropping their signs"),
    op("modulo k=2-12", "[x % {k} for x in {v}]", lambda v, k: [x - x // k * k for x in v],
       "take each number modulo {k} / replace every number by its remainder when divided by {k}"
       " / reduce all numbers modulo {k}"),
    op("floor k=2-9", "[x // {k} for x in {v}]", lambda v, k: [divmod(x, k)[0] for x in v],
       "divide each number by {k}, rounding down / floor-divide every number by {k}"
       " / cut all numbers to a {k}th, rounded down"),
    op("cap k=3-15", "[min(x, {k}) for x in {v}]", lambda v, k: [k if x > k else x for x in v],
       "replace numbers above {k} by {k} / limit every number to at most {k}"
       " / clip all numbers at {k}"),
    op("raise k=0-6", "[max(x, {k}) for x in {v}]", lambda v, k: [k if x < k else x for x in v],
       "replace numbers below {k} by {k} / make every number at least {k}"
       " / clip all numbers from below at {k}"),
    op("sort", "sorted({v})", lambda v: [v[i] for i in sorted(range(len(v)), key=v.__getitem__)],
       "sort the numbers / put the numbers in increasing order / order them from low to high"),
    op("sort_down", "sorted({v}, reverse=True)", lambda v: sorted(v)[::-1],
       "sort the numbers in descending order / put the numbers in decreasing order"
       " / order them from high to low"),
    op("reverse", "{v}[::-1]", lambda v: list(reversed(v)),
       "reverse the list / put the numbers in reverse order / turn the list around"),
    op("unique", "list(dict.fromkeys({v}))", unique,
       "remove duplicates, keeping the first of each / keep only the first copy of each number"
       " / drop repeated numbers"),
    op("take k=1-5", "{v}[:{k}]", lambda v, k: [x for i, x in enumerate(v) if i < k],
       "keep the first {k} numbers / take only the first {k} / cut the list after {k} numbers"),
    op("drop k=1-4", "{v}[{k}:]", lambda v, k: [x for i, x in enumerate(v) if i >= k],
       "skip the first {k} numbers / remove the first {k} / cut {k} numbers off the front"),
    op("last k=1-5", "{v}[-{k}:]", lambda v, k: [x for i, x in enumerate(v) if i >= len(v) - k],
       "keep the last {k} numbers / take only the last {k} / cut the list down to its final {k}"),
    op("every k=2-4", "{v}[::{k}]", lambda v, k: [x for i, x in enumerate(v) if i % k == 0],
       "keep every {k}th number, starting with the first"
       " / take the numbers at indices divisible by {k}"
       " / step through the list in strides of {k}"),
    op("running", "[sum({v}[:i + 1]) for i in range(len({v}))]", running,
       "replace the list by its running sums / take the cumulative sums / sum up prefixes"),
    op("differences", "[b - a for a, b in zip({v}, {v}[1:])]",
       lambda v: [v[i + 1] - v[i] for i in range(len(v) - 1)],
       "take the differences of neighbors"
       " / replace the list by the differences of consecutive numbers"
       " / subtract each number from the next"),
    op("append k=0-20", "{v} + [{k}]", lambda v, k: [*v, k],
       "append {k} to the list / add {k} at the end / put {k} last"),
    op("prepend k=0-20", "[{k}] + {v}", lambda v, k: [k, *v],
       "insert {k} at the front / put {k} at the beginning / put {k} first"),
    op("rotate k=1-3", "{v}[{k}:] + {v}[:{k}]",
       lambda v, k: v[min(k, len(v)):] + v[: min(k, len(v))],
       "rotate the list to the left by {k} / move the first {k} numbers to the end"
       " / shift the list cyclically by {k}"),
    op("index_add", "[x + i for i, x in enumerate({v})]",
       lambda v: [v[i] + i for i in range(len(v))],
       "add its index to each number / increase every number by its index"
       " / add positions to numbers"),
    op("index_times", "[x * i for i, x in enumerate({v})]",
       lambda v: [v[i] * i for i in range(len(v))],
       "multiply each number by its index / replace every number by its product with its index"
       " / weight numbers by position"),
)

# From a list of integers to one value.
LIST_ENDS = (
    op("sum", "sum({v})", lambda v: sum(v, 0),
       "their sum / the sum of the numbers / what they add up to", "int"),
    op("count", "len({v})", lambda v: sum(1 for _ in v),
       "how many there are / the number of elements / the size of the list", "int"),
    op("max k=0-1", "max({v}, default={k})", lambda v, k: sorted(v)[-1] if v else k,
       "the largest, or {k} if there is none / the maximum, or {k} for an empty list"
       " / the greatest of them ({k} without any)", "int"),
    op("min k=0-1", "min({v}, default={k})", lambda v, k: sorted(v)[0] if v else k,
       "the smallest, or {k} if there is none / the minimum, or {k} for an empty list"
       " / the least of them ({k} without any)", "int"),
    op("sum_mod k=2-12", "sum({v}) % {k}", lambda v, k: divmod(sum(v), k)[1],
       "their sum modulo {k} / the remainder of their sum when divided by {k}"
       " / what is left of their sum after division by {k}", "int"),
    op("sum_plus k=1-30", "sum({v}) + {k}", lambda v, k: sum(v, k),
       "their sum plus {k} / {k} more than their sum / {k} added to their sum", "int"),
    op("count_value k=0-9", "{v}.count({k})", lambda v, k: sum(x == k for x in v),
       "how often {k} occurs / the number of times {k} appears / the count of {k}", "int"),
    op("contains k=0-9", "{k} in {v}", lambda v, k: any(x == k for x in v),
       "whether {k} is among them / True if the list contains {k}, else False"
       " / if {k} can be found", "bool"),
    op("all_above k=0-9", "all(x > {k} for x in {v})", lambda v, k: not [x for x in v if x <= k],
       "whether all are greater than {k} / True if every number is above {k}, else False"
       " / if none is {k} or less", "bool"),
    op("any_above k=3-15", "any(x > {k} for x in {v})", lambda v, k: bool([x for x in v if x > k]),
       "whether any is greater than {k} / True if at least one number is above {k}, else False"
       " / if some number exceeds {k}", "bool"),
    op("spread", "max({v}) - min({v}) if {v} else 0",
       lambda v: sorted(v)[-1] - sorted(v)[0] if v else 0,
       "the largest minus the smallest, or 0 if there is none / the range, or 0 for an empty list"
       " / how far apart the extremes are (0 without any)", "int"),
    op("join", "' '.join(str(x) for x in {v})", lambda v: " ".join(map(str, v)),
       "them as a string, separated by spaces / a string of the numbers with spaces between"
       " / one text with the numbers spaced apart", "str"),
    op("first k=0-1", "{v}[0] if {v} else {k}", lambda v, k: next(iter(v), k),
       "the first, or {k} if there is none / the first number, or {k} for an empty list"
       " / the one in front ({k} without any)", "int"),
)
# fmt: on
