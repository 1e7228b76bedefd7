"""MBPP: write a Python function from one sentence and its tests."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import CodeBenchmark
from wavefront.tasks.grading import Grade, program

# Which task ids belong to which split, as published.
RANGES = {
    "test": range(11, 511),
    "all": range(1, 975),
    "train": range(601, 975),
    "validation": range(511, 601),
    "prompt": range(1, 11),
}
EXAMPLES = (2, 3, 4)  # task ids of the published examples


@dataclass(frozen=True, kw_only=True)
class Mbpp(CodeBenchmark):
    """500 test items of 974. `split="all"` selects every item."""

    splits: ClassVar[tuple[str, ...]] = tuple(RANGES)
    file: ClassVar[str] = "mbpp/mbpp.jsonl"

    def samples(self, ask: Ask) -> list[Sample]:
        rows = [row for row in self.read(self.file, ask) if row["task_id"] in RANGES[ask.split]]
        return [
            Sample(
                f"{self.name}/{ask.split}/{row['task_id']}",
                question(row),
                row["code"],
                row["code"],
                sandbox_arguments(row),
            )
            for row in rows
        ]

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        rows = {row["task_id"]: row for row in self.read(self.file, ask)}
        fenced = [
            (rows[n], f"```python\n{tidy(rows[n]['code'])}\n```") for n in EXAMPLES if n in rows
        ]
        return [(question(row), answer) for row, answer in fenced]

    def grade(self, sample: Sample, text: str) -> Grade:
        """Run the text (strict), then the program found in it (flexible), on the item's tests."""
        entry = sample.extra["entry"]
        return self.grade_code(
            sample, program.strict_program("", entry, text), program.find_program("", entry, text)
        )


def tidy(text: str) -> str:
    """Normalise line ends and tabs."""
    return text.replace("\r\n", "\n").replace("\t", "    ").strip()


def question(row: Mapping[str, Any]) -> str:
    """Write the question: the sentence, and the tests that name the function."""
    tests = "\n".join(tidy(test) for test in row["test_list"])
    return f"{tidy(row.get('text') or row['prompt'])}\n\nIt must pass these tests:\n{tests}"


def sandbox_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Build the sandbox arguments: tests, imports before them, and the names that they use."""
    test_setup = row.get("test_setup_code", "")
    tests = "\n".join(tidy(part) for part in (test_setup, *row["test_list"]))
    tree = program.parse_or_none(row["code"])
    reference = tree.body if tree else []
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = [node.name for node in reference if isinstance(node, kinds)]
    used = [node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)]
    names = [name for name in dict.fromkeys(used) if name in defined]
    # The tests use the solution instead of a built-in only if they test nothing else.
    names = [name for name in names if not hasattr(builtins, name)] or names
    # A test may use a module that only the reference solution imports.
    imports = [ast.unparse(node) for node in reference if isinstance(node, ast.Import)]
    setup = "\n".join([*imports, *row.get("test_imports", ())])
    functions = [node.name for node in reference if isinstance(node, ast.FunctionDef)]
    entry = next((name for name in names if name in functions), "")
    return {"tests": tests, "names": names, "setup": setup, "entry": entry}
