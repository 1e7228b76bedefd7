"""Your own prompts: a JSON-lines file of prompts and answers, as a task: `jsonl(path='q.jsonl')`.

It is on no list, because it is nothing without a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from wavefront.core.errors import OptionError, check_choice
from wavefront.tasks.base import Ask, Sample, Style, digest
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import ANYWHERE, MARK, grade_final

KINDS = (*ANYWHERE, "text")


@dataclass(frozen=True, kw_only=True)
class Jsonl(Benchmark):
    """A line is an object with `prompt` and `answer`, or `target`: the final answer alone.

    An answer that ends with `#### x` has x as its target. `answers` says what a final answer is;
    when it is not given, the targets tell.
    """

    version: ClassVar[str] = "1"
    path: str = ""
    answers: str = ""  # what a final answer is: one of KINDS

    def __post_init__(self) -> None:
        if not self.path:
            raise OptionError("jsonl needs a file: jsonl(path='prompts.jsonl').")
        if self.answers:
            check_choice("answers", self.answers, KINDS)

    @property
    def name(self) -> str:
        return "jsonl"

    def samples(self, ask: Ask) -> list[Sample]:
        found = [self._sample(number, row) for number, row in enumerate(self._rows(), 1)]
        kind = self.answers or kind_of([sample.target for sample in found])
        return [
            Sample(one.id, one.prompt, one.answer, one.target, {**one.extra, "kind": kind})
            for one in found
        ]

    def ask(self, question: str, style: Style, shown: Sequence[tuple[str, str]]) -> str:
        """A prompt of yours is put as it is."""
        return question

    def grade(self, sample: Sample, text: str) -> Grade:
        return grade_final(str(sample.extra["kind"]), sample.target, text, spoken=True)

    def _rows(self) -> list[Any]:
        try:
            text = Path(self.path).expanduser().read_text("utf-8")
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise OptionError(f"{self.path} cannot be read as JSON lines: {reason}.") from None

    def _sample(self, number: int, row: Any) -> Sample:
        wrong = f"Line {number} of {self.path} needs a text `prompt`, and `answer` or `target`."
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise OptionError(wrong)
        answer = str(row.get("answer", ""))
        target = str(row.get("target", answer.rpartition(MARK)[2])).strip()
        if not row["prompt"].strip() or not target:
            raise OptionError(wrong)
        name = str(row.get("id") or digest(f"{row['prompt']}\n{target}").hex())
        suffix = {"suffix": str(row["suffix"])} if row.get("suffix") else {}
        return Sample(name, row["prompt"], answer or target, target, suffix)


def kind_of(targets: Sequence[str]) -> str:
    """What the targets are, all of them; "text" when nothing else holds."""
    for kind, pattern in ANYWHERE.items():
        if targets and all(pattern.fullmatch(one.strip("$ ")) for one in targets):
            return kind
    return "text"
