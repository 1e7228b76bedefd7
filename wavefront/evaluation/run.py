"""Run: the directory of an evaluation, its header, and what has been written into it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import RunError, WavefrontError
from wavefront.evaluation.batches import Shard
from wavefront.storage import jsonl
from wavefront.storage.fingerprint import of_value
from wavefront.tasks.base import Ask, Sample

HEADER, ANSWERS, GRADES = "header.json", "answers.jsonl", "grades.jsonl"
TIMINGS, ENVIRONMENT, SUMMARY, TRACES = (
    "timings.jsonl", "environment.jsonl", "summary.json", "traces",
)  # fmt: skip
FORMAT, VERSION = "wavefront-answers", 1
MAKE_ONE = "make one with `wavefront eval generate`"
SHOWN = 3  # differences that an error message lists
NOT_SET = "nothing"


@dataclass(frozen=True)
class Run:
    """A run directory, for reading."""

    folder: Path
    header: Mapping[str, Any]

    @property
    def decides(self) -> Mapping[str, Any]:
        """Everything that determines the answers."""
        return self.header["decides"]

    @property
    def task(self) -> str:
        return self.decides["task"]["name"]

    @property
    def task_spec(self) -> str:
        """The task with its options, as the user wrote it."""
        return self.decides["task"]["spec"]

    @property
    def strategy(self) -> str:
        return self.decides["options"]["strategy"]

    @property
    def shard(self) -> Shard:
        return Shard(*self.header["shard"])

    @cached_property
    def answers(self) -> dict[str, dict[str, Any]]:
        """The answers by key."""
        file = self.folder / ANSWERS
        return jsonl.by_key(jsonl.read(file), file)

    @cached_property
    def grades(self) -> dict[str, dict[str, Any]]:
        """The grades by key; empty before grading."""
        file = self.folder / GRADES
        return jsonl.by_key(jsonl.read(file), file)

    @property
    def timings(self) -> list[dict[str, Any]]:
        """One timing for each batch; the last one of a batch that was decoded twice."""
        lines = jsonl.read(self.folder / TIMINGS)
        return list({line.get("batch"): line for line in lines}.values())

    @property
    def environments(self) -> list[dict[str, Any]]:
        return jsonl.read(self.folder / ENVIRONMENT)

    @property
    def expected(self) -> int:
        """The number of answers of the finished run."""
        return self.header["answers"]

    @property
    def finished(self) -> bool:
        return len(self.answers) == self.expected

    def ask(self, data: str = "") -> Ask:
        """Return which items the run asked; `data` is the folder of the files on this machine."""
        return Ask(**self.decides["ask"], data=data)


def key_of(decides: Mapping[str, Any], sample: Sample) -> str:
    """Return the key of an answer: a hash of everything that determines it."""
    parts = {name: value for name, value in decides.items() if name not in ("task", "ask")}
    return of_value([parts, sample.id, prompt_hash(sample)])


def prompt_hash(sample: Sample) -> str:
    """Return a hash of an item's prompt, including the text after a hole."""
    return of_value([sample.prompt, str(sample.extra.get("suffix", ""))])


def items_digest(samples: Sequence[Sample]) -> str:
    """Return a hash of the items and their prompts."""
    return of_value([[sample.id, prompt_hash(sample)] for sample in samples])


def open_run(folder: str | Path) -> Run:
    """Open a run directory; `RunError` says why it is not a run."""
    home = Path(folder)
    file = home / HEADER
    if not file.is_file():
        if inside := [run.name for run in _children(home)]:
            raise RunError(f"{home} holds several runs: name one, such as {home / inside[0]}.")
        raise RunError(f"{home} is not a run, because it has no {HEADER}: {MAKE_ONE}.")
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} is not valid JSON: {error}.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RunError(f"{file} is not the header of a run: {MAKE_ONE}.")
    if header.get("version") != VERSION:
        raise RunError(
            f"{file} has format version {header.get('version')!r}, and only version {VERSION} can "
            "be read."
        )
    _check(header, file)
    return Run(home, header)


def _check(header: Mapping[str, Any], file: Path) -> None:
    """Check that a header has every field that is read later."""
    try:
        decides, shard = header["decides"], header["shard"]
        names = [decides["task"][name] for name in ("name", "spec", "version", "items")]
        names.append(decides["options"]["strategy"])
        numbers = (*shard, header["answers"], decides["batch"]["rows"])
        Ask(**decides["ask"])
        valid = all(isinstance(name, str) for name in names) and len(shard) == 2
        valid = valid and all(type(number) is int and number >= 0 for number in numbers)
        valid = valid and isinstance(decides["model"], dict) and isinstance(header["model"], dict)
    except (LookupError, TypeError):
        valid = False
    if not valid:
        raise RunError(f"{file} lacks fields that a run needs: {MAKE_ONE}.")


def _children(home: Path) -> Iterator[Path]:
    if home.is_dir():
        yield from sorted(header.parent for header in home.glob(f"*/{HEADER}"))


def runs_in(folder: str | Path) -> list[Run]:
    """Open the run in a directory, or all runs in its subdirectories."""
    home = Path(folder)
    found = [] if (home / HEADER).is_file() else list(_children(home))
    return [open_run(child) for child in found] or [open_run(home)]


class SettingDifference(NamedTuple):
    """A setting that differs between two runs."""

    name: str
    mine: str
    theirs: str


def setting_differences(
    mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> list[SettingDifference]:
    """Return the settings that differ between two headers."""
    one, two = _flatten(mine), _flatten(theirs)
    names = [name for name in {**one, **two} if one.get(name, NOT_SET) != two.get(name, NOT_SET)]
    return [SettingDifference(name, _show(one, name), _show(two, name)) for name in names]


def describe_differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ, each as a clause for a message."""
    found = setting_differences(mine, theirs)
    return [f"{one.name} is {one.mine} here and {one.theirs} there" for one in found]


def check_same_settings(folder: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise `RunError` with the differences if a run has other settings."""
    found = describe_differences(mine, theirs)
    if not found:
        return
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise RunError(
        f"{folder} is another run: {'; '.join(found[:SHOWN])}{more}. Choose another --out, or "
        "use the options of that run."
    )


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    flat: dict[str, Any] = {}
    for part, inner in value.items():
        flat |= _flatten(inner, f"{name}.{part}" if name else str(part))
    return flat


def _show(flat: Mapping[str, Any], name: str) -> str:
    text = repr(flat[name]) if name in flat else NOT_SET
    return text if len(text) <= 80 else f"{text[:77]}..."


def environment_warning(run: Run, environment: Mapping[str, Any]) -> str:
    """Return a warning if this machine differs from those that worked on the run, else ""."""
    before = run.environments
    if not before or any(one == environment for one in before):
        return ""
    found = describe_differences(environment, before[-1])
    return (
        f"This machine differs from the one that began {run.folder}: {'; '.join(found[:SHOWN])}. "
        "Answers may differ where two tokens are almost equally likely."
    )


def write_environment(folder: Path, environment: Mapping[str, Any]) -> None:
    """Record a machine that works on the run, once."""
    with jsonl.JsonLines(folder / ENVIRONMENT) as lines:
        if environment not in lines.found:
            lines.append(environment)


def is_new(folder: Path) -> bool:
    """Return whether the directory is empty except for our lock.

    Raises `RunError` if it holds other files and is not a run.
    """
    if (folder / HEADER).is_file():
        return False
    try:
        foreign = [file for file in folder.iterdir() if not _is_ours(file.name)]
    except OSError as error:
        raise WavefrontError(f"{folder} cannot be read: {jsonl.reason(error)}.") from None
    if foreign:
        raise RunError(
            f"{folder} is not empty ({foreign[0].name}) and is not a run directory: choose an "
            "empty or a new directory."
        )
    return True


def _is_ours(name: str) -> bool:
    return name == jsonl.LOCK or (name.startswith(f".{HEADER}.") and name.endswith(".part"))
