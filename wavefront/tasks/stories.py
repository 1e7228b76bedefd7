"""Stories: continue the held-out openings of an adapted model; its judge scores the texts.

The openings and the judge are files of the model's folder (docs/train.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from wavefront.core.errors import OptionError, check_int
from wavefront.storage.hub import locate
from wavefront.storage.read_file import check_unicode, parse_json, read_lines
from wavefront.tasks.base import Ask, Sample, Style
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade

PROMPTS = "prompts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Stories(Benchmark):
    """The held-out openings of a model made by `train adapt`, and what its original wrote.

    A continuation is not right or wrong: the judge of the model scores it. `model` is a built-in
    name or a directory. An item's `answer` is the original's own continuation, and `extra["text"]`
    is the original's whole text, opening included.
    """

    judged: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("all", "tune", "report")
    model: str = "tale"

    def items(self, ask: Ask) -> list[Sample]:
        """Return the first `ask.count` openings; a seed other than 0 shuffles them before.

        The original drew them at random, so the first ones are a random choice. The second half of
        the file, `report`, comes first: tune on the first half, and show results on the second.
        """
        found = super().items(Ask(split=ask.split, style=ask.style, shots=ask.shots))
        if ask.count is not None:
            check_int("count", ask.count, 1)
        if ask.seed:
            Random(f"{ask.seed} {self.name} {ask.split}").shuffle(found)
        return found[: ask.count]

    def samples(self, ask: Ask) -> list[Sample]:
        rows = self._rows()
        numbers = range(len(rows))
        half = len(rows) // 2
        chosen = {
            "tune": numbers[:half],
            "report": numbers[half:],
            "all": (*numbers[half:], *numbers[:half]),
        }[ask.split]
        return [self._sample(number, rows[number]) for number in chosen]

    def ask(self, question: str, style: Style, shots: Sequence[tuple[str, str]]) -> str:
        """Return the opening unchanged."""
        return question

    def grade(self, sample: Sample, text: str) -> Grade:
        """Raise OptionError: a continuation has a quality, but is not right or wrong."""
        raise OptionError(
            f"{self.name} has no right answers; `wavefront eval run` scores them with the judge."
        )

    def _sample(self, number: int, row: dict[str, Any]) -> Sample:
        prompt, text = row["prompt"], row["text"]
        return Sample(
            f"{self.name}/{number}",
            prompt,
            text.lstrip().removeprefix(prompt),
            "",
            {"text": text, "finished": row.get("finished")},
        )

    def _rows(self) -> list[dict[str, Any]]:
        file = locate(self.model, offline=True, weights=False) / PROMPTS
        if not file.is_file():
            raise OptionError(
                f"{self.model} has no held-out prompts ({PROMPTS}): use tale, or a model made by "
                "`wavefront train adapt`.",
                option="model",
                value=self.model,
            )
        lines = read_lines(file, error=OptionError)
        rows = [parse_json(line, str(file), error=OptionError) for line in lines]
        for number, row in enumerate(rows, 1):
            valid = isinstance(row, dict) and all(
                isinstance(row.get(name), str) and row[name].strip() for name in ("prompt", "text")
            )
            if not valid:
                raise OptionError(f"Line {number} of {file} needs the strings `prompt` and `text`.")
            check_unicode(row, f"Line {number} of {file}", error=OptionError)
        return rows
