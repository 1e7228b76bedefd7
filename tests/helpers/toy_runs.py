"""Small runs of the toy, for the tests of evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wavefront.evaluation import Loader, Local, Run, Setup, Worker, open_run, produce
from wavefront.tasks.base import Ask

LOADER = Loader(path="toy")
OPTIONS = {"strategy": "block(size=4)", "max_new_tokens": 8}
ENGINE = Local(Worker(LOADER))  # one model for all tests of a process


def setup(**changes: Any) -> Setup:
    given: dict[str, Any] = {
        "task": "boolean_expressions",
        "ask": Ask(count=7, style="bare"),
        "options": OPTIONS,
        "rows": 3,
        "loader": LOADER,
    }
    return Setup(**(given | changes))


def made(folder: Path, **changes: Any) -> Run:
    """A run of the toy."""
    produce(ENGINE, setup(**changes), folder)
    return open_run(folder)


def ordered(run: Run | Path) -> list[bytes]:
    """The answers of a run, byte for byte, in order."""
    folder = run.folder if isinstance(run, Run) else run
    return sorted((folder / "answers.jsonl").read_bytes().splitlines(keepends=True))


def rewrite(file: Path, **changes: Any) -> None:
    """Change every line of a file; a value may be a function of the line."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line |= {n: v(line) if callable(v) else v for n, v in changes.items()}
    file.write_text("".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))
