"""HumanEval: complete a Python function from its signature and docstring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import CodeBenchmark
from wavefront.tasks.grading import Grade, program


@dataclass(frozen=True, kw_only=True)
class Humaneval(CodeBenchmark):
    """164 functions. Helpers from the prompt run with the tests; only the function is tested."""

    def samples(self, ask: Ask) -> list[Sample]:
        return [
            Sample(
                f"{self.name}/test/{row['task_id'].rpartition('/')[2]}",
                row["prompt"],
                row["canonical_solution"],
                row["canonical_solution"],
                sandbox_arguments(row),
            )
            for row in self.read("humaneval/HumanEval.jsonl", ask)
        ]

    def grade(self, sample: Sample, text: str) -> Grade:
        """Run the text after the prompt (strict), then the program found in it (flexible)."""
        given = (sample.extra["stub"], sample.extra["entry"], text)
        return self.grade_code(sample, program.strict_program(*given), program.find_program(*given))


def sandbox_arguments(row: Mapping[str, str]) -> dict[str, Any]:
    """Build the sandbox arguments: the published check, and before it the prompt's helpers.

    A test that calls the function by its name (number 33 compares the answer with itself) gets the
    published solution.
    """
    prompt, entry = row["prompt"], row["entry_point"]
    return {
        "stub": prompt,
        "entry": entry,
        "names": [entry],
        "setup": f"{prompt}{row['canonical_solution']}\npublished = {entry}\n",
        "tests": f"answer, {entry} = {entry}, published\n{row['test']}\ncheck(answer)\n",
    }
