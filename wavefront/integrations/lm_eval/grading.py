"""What lm-eval calls to grade an answer of a task that `harness.task_files` wrote.

The verdict is our own task's, sandbox included; lm-eval only averages.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from wavefront import tasks
from wavefront.tasks.base import Sample, Task

METRICS = ("correct", "strict", "flexible")


def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """The grade of one answer: the headline, and the verdicts of strict and flexible reading."""
    text = results[0]
    if not isinstance(text, str):  # several samples of one item: the first counts
        text = text[0]
    grade = _task(doc["task"], doc["options"]).grade(sample(doc), text)
    return {name: float(getattr(grade, name)) for name in METRICS}


def sample(doc: Mapping[str, Any]) -> Sample:
    """The item that a line of a task file stands for."""
    return Sample(
        doc["id"], doc["prompt"], doc["answer"], doc["target"], ast.literal_eval(doc["extra"])
    )


@cache
def _task(name: str, options: str) -> Task:
    return tasks.load(name, **json.loads(options))
