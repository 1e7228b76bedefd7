r"""MATH: competition problems. Answers are in `\boxed{}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.maths import grade_maths, last_boxed

TRAIN = "math/train.jsonl.gz"
# Short solutions from four subjects.
EXAMPLES = (
    "train/prealgebra/4.json",
    "train/algebra/8.json",
    "train/number_theory/26.json",
    "train/geometry/5.json",
)


@dataclass(frozen=True, kw_only=True)
class Math(Benchmark):
    """5,000 test problems of seven subjects."""

    kind: ClassVar[str] = "maths"
    splits: ClassVar[tuple[str, ...]] = ("test", "train")
    files: ClassVar[Mapping[str, str]] = {"test": "math/test.jsonl.gz", "train": TRAIN}

    def samples(self, ask: Ask) -> list[Sample]:
        rows = self.read(self.files[ask.split], ask)
        return [
            Sample(
                f"{self.name}/{row['unique_id'].removesuffix('.json')}",
                row["problem"],
                row["solution"],
                row.get("answer") or last_boxed(row["solution"]) or "",
                {"level": str(row["level"]), "subject": row.get("subject") or row["type"]},
            )
            for row in rows
        ]

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        rows = {row["unique_id"]: row for row in self.read(TRAIN, ask)}
        return [
            (rows[name]["problem"], rows[name]["solution"]) for name in EXAMPLES if name in rows
        ]

    def grade(self, sample: Sample, text: str) -> Grade:
        return grade_maths(sample.target, text)
