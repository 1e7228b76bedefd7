"""Grade an answer to a task that `task_files` wrote.

Our task grades it, in its sandbox. lm-eval only computes the mean.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from wavefront import tasks
from wavefront.core.errors import OptionError, quote
from wavefront.evaluation.fingerprint import of_grader
from wavefront.evaluation.task_spec import open_task, parse
from wavefront.tasks.base import Sample, Task

METRICS = ("correct", "strict", "flexible")
# Classes outside the package that the user named. lm-eval passes only the line of a file to
# `process_results`, and a file imports nothing.
TRUSTED: set[str] = set()
UNSANDBOXED = "allow_unsandboxed"  # an option of a line; only the user can allow it


def trust(specs: Sequence[str], *, allow_unsandboxed: bool = False) -> None:
    """Let task files use these tasks, which the user wrote, such as `module.Class`.

    With `allow_unsandboxed`, tasks whose files ask for it run code even if no sandbox is available.

    Raises:
        OptionError: A spec does not name a task.
    """
    for spec in specs:
        open_task(spec)
        TRUSTED.add(parse(spec)[0])
    if allow_unsandboxed:
        TRUSTED.add(UNSANDBOXED)
    _task.cache_clear()


def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Grade one answer: 1.0 or 0.0 for each of `METRICS`. lm-eval calls this for every item.

    Raises:
        OptionError: The task file names another grader, so the result would name the wrong one.
    """
    text = results[0]
    if not isinstance(text, str):  # several samples of one item: the first counts
        text = text[0]
    task, grader = _task(doc["task"], doc["options"])
    if doc.get("grader") != grader:
        raise OptionError(
            f"Another version of the grader wrote the task file of {doc['task']}: write it again "
            "with `wavefront lm-eval tasks`."
        )
    grade = task.grade(sample(doc), text)
    return {name: float(getattr(grade, name)) for name in METRICS}


def sample(doc: Mapping[str, Any]) -> Sample:
    """Return the item of a line of a task file."""
    return Sample(
        doc["id"], doc["prompt"], doc["answer"], doc["target"], ast.literal_eval(doc["extra"])
    )


@cache
def _task(name: str, options: str) -> tuple[Task, str]:
    given = json.loads(options)
    unsandboxed = bool(given.pop(UNSANDBOXED, False)) and UNSANDBOXED in TRUSTED
    if name not in TRUSTED:
        if "." in name:
            raise OptionError(
                f"The task file uses the task {quote(name)}, which is not built in; importing it "
                "runs its code. If you trust it, name it: wavefront lm-eval run --task."
            )
        if unsandboxed:
            given[UNSANDBOXED] = True
        task = tasks.load(name, **given)
    else:
        spec = f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        task = open_task(spec, allow_unsandboxed=unsandboxed)
    return task, of_grader(task)
