"""Sudoku, four by four, graded by the rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wavefront.core.errors import OptionError
from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade

GIVENS = range(4, 13)
VARIANTS = {"sudoku_4": {}}
EXAMPLES = (  # written for wavefront: the published files are test items
    ("1030\n0410\n2003\n0020", "1234\n3412\n2143\n4321"),
    ("0410\n3002\n0320\n4001", "2413\n3142\n1324\n4231"),
    ("4000\n0140\n0400\n1004", "4321\n2143\n3412\n1234"),
)
BOXES = [(row, column) for row in (0, 2) for column in (0, 2)]


@dataclass(frozen=True, kw_only=True)
class Sudoku(Benchmark):
    """972 grids, 108 for each of 4 to 12 given cells. `givens` selects one of these numbers."""

    givens: int = 0  # 0: all

    def __post_init__(self) -> None:
        if self.givens and self.givens not in GIVENS:
            raise OptionError(f"givens must be 0 (all grids) or 4 to 12, not {self.givens!r}.")

    @property
    def name(self) -> str:
        return "sudoku_4"

    def samples(self, ask: Ask) -> list[Sample]:
        return [
            Sample(
                f"{self.name}/test/{givens}-{index}",
                row["input"],
                row["output"],
                row["output"],
                {"question": row["input"]},
            )
            for givens in ([self.givens] if self.givens else GIVENS)
            for index, row in enumerate(self.read(f"planning/sudoku_4x4_{givens}.jsonl", ask))
        ]

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        return EXAMPLES

    def grade(self, sample: Sample, text: str) -> Grade:
        """Grade four lines of four digits at the start (strict), or the last grid (flexible)."""
        asked = sample.extra["question"].split()
        first = re.match(r"\s*((?:[1-4]{4}\s+){3}[1-4]{4})\b", text)
        strict = bool(first) and solves(asked, first[1].split())
        rows = re.findall(r"[1-4](?:[ |,]*[1-4]){3}(?!\d)", text)
        rows = [re.sub(r"\D", "", row) for row in rows]
        found = first[1].split() if first and strict else rows[-4:]
        flexible = strict or solves(asked, found)
        how = "strict" if strict else "flexible"
        return Grade(flexible, "\n".join(found) or None, how, strict, flexible)


def solves(asked: list[str], grid: list[str]) -> bool:
    """Return whether the grid keeps the given cells and obeys the rules."""
    if [len(row) for row in grid] != [4] * 4:
        return False
    columns = ["".join(row[column] for row in grid) for column in range(4)]
    boxes = [grid[r][c : c + 2] + grid[r + 1][c : c + 2] for r, c in BOXES]
    kept = all(
        given in ("0", cell)
        for line, row in zip(asked, grid, strict=True)
        for given, cell in zip(line, row, strict=True)
    )
    return kept and all(sorted(group) == list("1234") for group in (*grid, *columns, *boxes))
