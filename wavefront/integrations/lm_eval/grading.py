"""Grade an answer to a task that `task_files` wrote.

Our own task decides, with its sandbox. lm-eval only computes the mean.
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
    """Grade one answer: 1.0 or 0.0 for each of `METRICS`. lm-eval calls this for every item."""
    text = results[0]
    if not isinstance(text, str):  # several samples of one item: the first counts
        text = text[0]
    grade = _task(doc["task"], doc["options"]).grade(sample(doc), text)
    return {name: float(getattr(grade, name)) for name in METRICS}


def sample(doc: Mapping[str, Any]) -> Sample:
    """Return the item of a line of a task file."""
    return Sample(
        doc["id"], doc["prompt"], doc["answer"], doc["target"], ast.literal_eval(doc["extra"])
    )


@cache
def _task(name: str, options: str) -> Task:
    return tasks.load(name, **json.loads(options))
