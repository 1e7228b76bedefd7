"""Merge: join the shards of one run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import run
from wavefront.evaluation.run import Run
from wavefront.storage import jsonl
from wavefront.storage.write_file import write_text


def merge(parts: Sequence[str | Path], out: str | Path) -> Run:
    """Join all shards of a run in a new directory; every shard must be finished."""
    if not parts:
        raise OptionError("There is nothing to merge: name the directories of the shards.")
    runs = sorted((run.open_run(part) for part in parts), key=lambda one: one.shard)
    _check(runs)
    home = Path(out)
    with jsonl.lock_directory(home):
        if not run.is_new(home):
            raise RunError(f"{home} is already a run: choose another --out.")
        answers = [answer for one in runs for answer in one.answers.values()]
        _write(home / run.ANSWERS, answers)
        _write(home / run.TIMINGS, [timing for one in runs for timing in one.timings])
        machines = [machine for one in runs for machine in one.environments]
        _write(home / run.ENVIRONMENT, list({jsonl.dump(one): one for one in machines}.values()))
        for one in runs:
            for file in (one.folder / run.TRACES / f"{key}.npz" for key in one.answers):
                if file.is_file() and not file.is_symlink():
                    (home / run.TRACES).mkdir(exist_ok=True)
                    shutil.copyfile(file, home / run.TRACES / file.name)
        joined = {"shard": [0, 1], "answers": len(answers)}
        # Written last: without a header, the directory is not a run.
        jsonl.write_json(home / run.HEADER, {**runs[0].header, **joined})
    return run.open_run(home)


def _check(runs: Sequence[Run]) -> None:
    first = runs[0]
    parts = first.shard.parts
    for one in runs[1:]:
        run.check_same_settings(one.folder, first.decides, one.decides)
    if len(runs) != parts or any(one.shard != (number, parts) for number, one in enumerate(runs)):
        names = ", ".join(f"{one.shard.number}/{one.shard.parts}" for one in runs)
        raise RunError(f"merge needs every shard of one run exactly once, and got {names}.")
    for one in runs:
        if not one.finished:
            raise RunError(
                f"{one.folder} has {len(one.answers)} of {one.expected} answers: finish it first."
            )


def _write(file: Path, records: Sequence[dict[str, object]]) -> None:
    """Write the records in sorted order, in one piece."""
    text = "".join(sorted(f"{jsonl.dump(one)}\n" for one in records))
    write_text(file, text, error=RunError)
