"""The functions of `functions.txt` for the task `code`, and what each of them computes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from wavefront.tasks.base import PROCEDURAL
from wavefront.tasks.procedural._code_ops import Range, parse_head


class Function(NamedTuple):
    """A function: its parameters and types, its descriptions, its body, and what it computes."""

    name: str
    draws: tuple[Range, ...]
    takes: tuple[tuple[str, str], ...]
    gives: str
    says: tuple[str, ...]
    reserved: tuple[str, ...]
    body: str
    run: Callable[..., Any]


@cache
def functions() -> tuple[Function, ...]:
    """Read every function of `functions.txt`."""
    text = (PROCEDURAL / "functions.txt").read_text("utf-8")
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(_parse_function(block.split("\n")) for block in kept.strip().split("\n\n"))


def _parse_function(block: list[str]) -> Function:
    name, draws = parse_head(block[0].lstrip("!"))
    takes, _, gives = block[1].partition(" -> ")
    pairs = re.findall(r"(\w+): (.*?)(?=, \w+: |$)", takes[1:-1])
    says = tuple(line[2:] for line in block if line.startswith("? "))
    reserved = tuple(line[3:] for line in block if line.startswith("?! "))
    if block[0].startswith("!"):
        says, reserved = (), says + reserved
    body = "\n".join(line for line in block[2:] if not line.startswith("?"))
    return Function(name, draws, tuple(pairs), gives, says, reserved, body, RUNS[name])


def sequence(first: int, second: int, n: int) -> int:
    values = [first, second]
    while len(values) <= n:
        values.append(values[-1] + values[-2])
    return values[n]


def repeat(step: Callable[[int], int], value: int, times: int) -> int:
    return value if times <= 0 else repeat(step, step(value), times - 1)


def halvings(n: int, k: int) -> int:
    return 0 if n < k else 1 + halvings(n // 2, k)


# Independent of the bodies where possible, so that comparing the two is a check.
RUNS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "product_from": lambda n, k: math.prod(range(k, n + 1)),
        "sequence": lambda n, j, k: sequence(j, k, n),
        "greatest_divisor": math.gcd,
        "prime": lambda n: sum(1 for i in range(1, n + 1) if n % i == 0) == 2,
        "divisors": lambda n: list(filter(lambda i: n // i * i == n, range(1, n + 1))),
        "sum_multiples": lambda n, j, k: sum(set(range(0, n, j)) | set(range(0, n, k))),
        "sum_both": lambda n, j, k: sum(set(range(j, n + 1, j)) - set(range(0, n + 1, k))),
        "recurrence": lambda n, j, k, m: repeat(lambda x: k * x + m, j, n),
        "halvings": halvings,
        "fizz": lambda n, j, k: [str(n), "buzz", "fizz", "fizz"][(n % j == 0) * 2 + (n % k == 0)],
        "clamp": lambda n, low, high: low if min(n, high) < low else min(n, high),
        "countdown": lambda n, k, j: [n - i * k for i in range(200) if n - i * k >= j],
        "dot": lambda a, b: sum(map(int.__mul__, a, b)),
        "combine": lambda a, b, j, k: list(map(lambda x, y: j * x + k * y, a, b)),
        "larger": lambda a, b: list(map(max, a, b)),
        "count_pairs": lambda a, b, k: [x - y > k for x, y in zip(a, b, strict=False)].count(True),
        "common": lambda a, b: list(filter(b.__contains__, a)),
        "missing": lambda a, b: [x for x in a if b.count(x) == 0],
        "merge": lambda a, b: sorted(set(a) | set(b)),
        "flatten": lambda rows: list(chain(*rows)),
        "row_sums": lambda rows, k: [sum(row, k) for row in rows],
        "long_rows": lambda rows, k: len([row for row in rows if len(row) > k]),
        "row_max": lambda rows: [sorted(row)[-1] for row in rows if len(row)],
        "word_counts": lambda text: dict(Counter(text.split())),
        "letter_counts": lambda text: dict(Counter(text)),
        "word_sizes": lambda words, k: dict(
            filter(lambda p: p[1] > k, ((w, len(w)) for w in words))
        ),
        "initials": lambda words: "".join(w[:1].upper() for w in words),
        "select_words": lambda words, c, k: list(
            filter(lambda w: w.count(c) > 0 or len(w) > k, words)
        ),
        "join_words": lambda words, k: ",".join(filter(lambda w: not len(w) < k, words)),
        "keep_counts": lambda counts, k: dict(filter(lambda entry: entry[1] > k, counts.items())),
        "sum_counts": lambda counts, k: sum(filter(k.__lt__, counts.values())),
        "sorted_keys": lambda counts: [
            key for key, _ in sorted(counts.items(), key=lambda entry: -entry[1])
        ],
        "second": lambda numbers, k: next(iter(sorted(set(numbers), reverse=True)[1:]), k),
        "best_index": lambda numbers: max(range(len(numbers)), key=numbers.__getitem__, default=-1),
        "increasing": lambda numbers, k: all(
            numbers[i + 1] - numbers[i] >= k for i in range(len(numbers) - 1)
        ),
        "windows": lambda numbers, k: [
            sum(part) for part in zip(*(numbers[i:] for i in range(k)), strict=False)
        ],
        "chunks": lambda numbers, k: [
            numbers[i * k : i * k + k] for i in range(-(-len(numbers) // k))
        ],
        "pair_sum": lambda numbers, k: any(
            a + b == k for i, a in enumerate(numbers) for b in numbers[:i]
        ),
        "shift": lambda text, k: text.translate({97 + i: 97 + (i + k) % 26 for i in range(26)}),
    }
)
