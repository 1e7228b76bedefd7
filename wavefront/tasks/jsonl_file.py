"""A task from your own JSON-lines file of prompts and answers: `jsonl(path='q.jsonl')`.

The registry does not list it, because it needs a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from wavefront.core.errors import OptionError, check_choice
from wavefront.storage.read_file import check_unicode, read_lines
from wavefront.tasks.base import Ask, Sample, Style, digest
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import ANYWHERE, MARK, grade_final

KINDS = (*ANYWHERE, "text")


@dataclass(frozen=True, kw_only=True)
class Jsonl(Benchmark):
    """Items from a file. Each line is an object with `prompt`, and `answer` or `target`.

    `target` is the final answer alone. The target of an answer that ends with `#### x` is x.
    `answers` is the kind of final answer. If it is empty, the kind is inferred from the targets.
    """

    version: ClassVar[str] = "1"
    path: str = ""
    answers: str = ""  # the kind of final answer: one of KINDS, or empty to infer it

    def __post_init__(self) -> None:
        if not self.path:
            raise OptionError("jsonl needs a file, as in jsonl(path='prompts.jsonl').")
        if self.answers:
            check_choice("answers", self.answers, KINDS)

    @property
    def name(self) -> str:
        return "jsonl"

    def samples(self, ask: Ask) -> list[Sample]:
        found = [self._sample(number, row) for number, row in self._rows()]
        kind = self.answers or infer_kind([sample.target for sample in found])
        return [replace(sample, extra={**sample.extra, "kind": kind}) for sample in found]

    def ask(self, question: str, style: Style, shots: Sequence[tuple[str, str]]) -> str:
        """Return the prompt unchanged."""
        return question

    def grade(self, sample: Sample, text: str) -> Grade:
        return grade_final(str(sample.extra["kind"]), sample.target, text, spoken=True)

    def _rows(self) -> list[tuple[int, Any]]:
        """Return the value of every line that is not empty, with the number of the line."""
        try:
            file = Path(self.path).expanduser()
        except RuntimeError:
            raise OptionError(f"{self.path} names an unknown home directory.") from None
        rows = [
            (number, self._value(number, line))
            for number, line in enumerate(read_lines(file, error=OptionError), 1)
            if line.strip()
        ]
        if not rows:
            raise OptionError(f"{self.path} is empty: write one JSON object per line.")
        return rows

    def _value(self, number: int, line: bytes) -> Any:
        where = f"Line {number} of {self.path}"
        try:
            return json.loads(line.strip())
        except UnicodeDecodeError:
            raise OptionError(f"{where} is not UTF-8 text.") from None
        except json.JSONDecodeError as error:
            raise OptionError(
                f"{where} is not valid JSON: {error.msg} at column {error.colno}."
            ) from None
        except (RecursionError, ValueError) as error:
            raise OptionError(f"{where} cannot be read as JSON: {error}.") from None

    def _sample(self, number: int, row: Any) -> Sample:
        wrong = f"Line {number} of {self.path} needs a string `prompt`, and `answer` or `target`."
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise OptionError(wrong)
        check_unicode(row, f"Line {number} of {self.path}", error=OptionError)
        answer = str(row.get("answer", ""))
        target = str(row.get("target", answer.rpartition(MARK)[2])).strip()
        if not row["prompt"].strip() or not target:
            raise OptionError(wrong)
        name = str(row.get("id") or digest(f"{row['prompt']}\n{target}").hex())
        suffix = {"suffix": str(row["suffix"])} if row.get("suffix") else {}
        return Sample(name, row["prompt"], answer or target, target, suffix)


def infer_kind(targets: Sequence[str]) -> str:
    """Return the kind that all targets have, or "text" if they have none in common."""
    for kind, pattern in ANYWHERE.items():
        if targets and all(pattern.fullmatch(target.strip("$ ")) for target in targets):
            return kind
    return "text"
