"""HumanEval: complete a Python function from its signature and docstring."""

from __future__ import annotations

from dataclasses import dataclass

from wavefront.grading import Grade, code
from wavefront.task import Ask, Sample
from wavefront.tasks._benchmark import CodeBenchmark


@dataclass(frozen=True, kw_only=True)
class Humaneval(CodeBenchmark):
    """164 functions. The prompt's own helpers belong to the tests; only the function is tested."""

    def samples(self, ask: Ask) -> list[Sample]:
        return [
            Sample(
                f"{self.name}/test/{row['task_id'].rpartition('/')[2]}",
                row["prompt"],
                row["canonical_solution"],
                row["canonical_solution"],
                {
                    "stub": row["prompt"],
                    "entry": row["entry_point"],
                    "names": [row["entry_point"]],
                    "before": row["prompt"],
                    "tests": f"{row['test']}\ncheck({row['entry_point']})\n",
                },
            )
            for row in self.read("humaneval/HumanEval.jsonl", ask)
        ]

    def grade(self, sample: Sample, text: str) -> Grade:
        """Run the function: the text under the prompt, then what can be found in the text."""
        given = (sample.extra["stub"], sample.extra["entry"], text)
        return self.grade_code(sample, code.plain(*given), code.found(*given))
