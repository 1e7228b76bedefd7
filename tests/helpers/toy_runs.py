"""Small runs of the toy model, for the tests of evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wavefront.evaluation import (
    Loader,
    LocalExecutor,
    Run,
    RunConfig,
    Worker,
    generate_answers,
    open_run,
)
from wavefront.tasks.base import Ask

LOADER = Loader(path="toy")
OPTIONS = {"strategy": "block(size=4)", "max_new_tokens": 8}
EXECUTOR = LocalExecutor(Worker(LOADER))  # one model for all tests of a process


def config(**changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "task": "boolean_expressions",
        "ask": Ask(count=7, style="bare"),
        "options": OPTIONS,
        "rows": 3,
        "loader": LOADER,
    }
    return RunConfig(**(given | changes))


def make_run(folder: Path, **changes: Any) -> Run:
    """Make a run of the toy model."""
    generate_answers(EXECUTOR, config(**changes), folder)
    return open_run(folder)


def sorted_answers(run: Run | Path) -> list[bytes]:
    """Return the answers of a run as bytes, sorted."""
    folder = run.folder if isinstance(run, Run) else run
    return sorted((folder / "answers.jsonl").read_bytes().splitlines(keepends=True))


def rewrite(file: Path, **changes: Any) -> None:
    """Change every line of a JSONL file; a value may be a function of the line."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line |= {n: v(line) if callable(v) else v for n, v in changes.items()}
    file.write_text("".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))
