"""GSM8K: grade-school word problems. Answers end with `#### number`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import MAX_SHOTS, Benchmark
from wavefront.tasks.grading.final_answer import MARK

FILES = {"test": "gsm8k/test.jsonl", "train": "gsm8k/train.jsonl.gz"}
CALCULATOR = re.compile(r"<<[^<>]*>>")  # the calculator annotations


@dataclass(frozen=True, kw_only=True)
class Gsm8k(Benchmark):
    """1,319 problems. The worked examples are the first of the training file."""

    splits: ClassVar[tuple[str, ...]] = ("test", "train")

    def samples(self, ask: Ask) -> list[Sample]:
        rows = self.read(FILES[ask.split], ask)
        return [
            Sample(
                f"{self.name}/{ask.split}/{index}",
                row["question"],
                CALCULATOR.sub("", row["answer"]),
                row["answer"].rpartition(MARK)[2].strip(),
            )
            for index, row in enumerate(rows)
        ]

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        rows = self.read(FILES["train"], ask)[:MAX_SHOTS]
        return [(row["question"], CALCULATOR.sub("", row["answer"])) for row in rows]
