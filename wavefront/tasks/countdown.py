"""Countdown: reach a number from others by arithmetic, each used once; graded by calculating."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from wavefront.errors import one_of
from wavefront.grading import Grade
from wavefront.task import Ask, Sample
from wavefront.tasks._benchmark import Benchmark

SIZES = ("3", "4", "5")
VARIANTS = {f"countdown_{size}": {"numbers": int(size)} for size in SIZES}
STEP = re.compile(r"(\d+(?:/\d+)?)\s*([-+*/×x÷])\s*(\d+(?:/\d+)?)\s*=\s*(\d+(?:/\d+)?)")
ALIKE = {"×": "*", "x": "*", "÷": "/"}


@dataclass(frozen=True, kw_only=True)
class Countdown(Benchmark):
    """1,000 items; the last number of the question is the goal."""

    numbers: int = 3

    def __post_init__(self) -> None:
        one_of("numbers", str(self.numbers), SIZES)

    @property
    def name(self) -> str:
        return f"countdown_{self.numbers}"

    @property
    def template(self) -> str:
        return "countdown"

    def samples(self, ask: Ask) -> list[Sample]:
        rows = self.read(f"planning/cd{self.numbers}_test.jsonl", ask)
        return [
            Sample(
                f"{self.name}/test/{index}",
                row["input"],
                row["output"],
                row["output"],
                {"question": row["input"]},
            )
            for index, row in enumerate(rows)
        ]

    def grade(self, sample: Sample, text: str) -> Grade:
        """Strict: the first line is nothing but such steps. Flexible: the steps found anywhere."""
        *numbers, goal = map(int, sample.extra["question"].split(","))
        lines = text.strip().splitlines()
        first = lines[0].replace(" ", "") if lines else ""
        pure = [match.group(0) for match in STEP.finditer(first)]
        strict = ",".join(pure) == first and reaches(first, numbers, goal)
        shown = ",".join(match.group(0).replace(" ", "") for match in STEP.finditer(text))
        flexible = strict or reaches(text, numbers, goal)
        return Grade(flexible, shown or None, "strict" if strict else "flexible", strict, flexible)


def reaches(text: str, numbers: list[int], goal: int) -> bool:
    """Whether the steps are right, use each number once, and end with the goal."""
    left = Counter(Fraction(number) for number in numbers)
    result = None
    for first, sign, second, said in STEP.findall(text):
        a, b, result = Fraction(first), Fraction(second), Fraction(said)
        for value in (a, b):
            if left[value] == 0:
                return False
            left[value] -= 1
        sign = ALIKE.get(sign, sign)
        if sign == "/" and b == 0:
            return False
        made = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a / b
        if made != result:
            return False
        left[result] += 1
    return result == goal and sum(left.values()) == 1
