"""Countdown: reach a goal by arithmetic that uses each number once. Graded by calculation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from wavefront.core.errors import check_choice
from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade

SIZES = ("3", "4", "5")
VARIANTS = {f"countdown_{size}": {"numbers": int(size)} for size in SIZES}
EXAMPLES = {  # written for wavefront: the published files are test items
    3: (
        ("3,5,2,16", "3+5=8,8*2=16"),
        ("20,4,7,12", "20/4=5,5+7=12"),
        ("30,6,9,15", "30-6=24,24-9=15"),
    ),
    4: (
        ("2,3,4,5,25", "2+3=5,5*4=20,20+5=25"),
        ("40,8,3,7,22", "40/8=5,5*3=15,15+7=22"),
        ("50,20,6,9,27", "50-20=30,30+6=36,36-9=27"),
    ),
    5: (
        ("2,6,4,8,10,14", "2*6=12,12+4=16,16+8=24,24-10=14"),
        ("60,5,3,9,7,38", "60/5=12,12*3=36,36+9=45,45-7=38"),
        ("70,30,11,2,25,34", "70-30=40,40/2=20,25-11=14,20+14=34"),
    ),
}
# A step starts where a number starts, so a long number is read once and not from every digit.
STEP = re.compile(r"(?<!\d)(\d+(?:/\d+)?)\s*([-+*/×x÷])\s*(\d+(?:/\d+)?)\s*=\s*(\d+(?:/\d+)?)")
ALIKE = {"×": "*", "x": "*", "÷": "/"}


@dataclass(frozen=True, kw_only=True)
class Countdown(Benchmark):
    """1,000 items; the last number of the question is the goal."""

    numbers: int = 3

    def __post_init__(self) -> None:
        check_choice("numbers", str(self.numbers), SIZES)

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

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        return EXAMPLES[self.numbers]

    def grade(self, sample: Sample, text: str) -> Grade:
        """Grade the first line if it has only steps (strict), or all steps found (flexible)."""
        *numbers, goal = map(int, sample.extra["question"].split(","))
        lines = text.strip().splitlines()
        first = lines[0].replace(" ", "") if lines else ""
        pure = [match.group(0) for match in STEP.finditer(first)]
        strict = ",".join(pure) == first and reaches(first, numbers, goal)
        shown = ",".join(match.group(0).replace(" ", "") for match in STEP.finditer(text))
        flexible = strict or reaches(text, numbers, goal)
        return Grade(flexible, shown or None, "strict" if strict else "flexible", strict, flexible)


def reaches(text: str, numbers: list[int], goal: int) -> bool:
    """Return whether the steps are right, use each number once, and end with the goal."""
    left = Counter(Fraction(number) for number in numbers)
    result = None
    for first, sign, second, said in STEP.findall(text):
        try:
            a, b, result = Fraction(first), Fraction(second), Fraction(said)
        except (ValueError, ZeroDivisionError):  # too many digits for an int, or a denominator of 0
            return False
        for number in (a, b):
            if left[number] == 0:
                return False
            left[number] -= 1
        sign = ALIKE.get(sign, sign)
        if sign == "/" and b == 0:
            return False
        value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a / b
        if value != result:
            return False
        left[result] += 1
    return result == goal and sum(left.values()) == 1
