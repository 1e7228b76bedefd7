"""Run: the directory of an evaluation, its header, and what was written into it so far."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import RunError, WavefrontError
from wavefront.evaluation.batches import Shard
from wavefront.evaluation.fingerprint import digest
from wavefront.storage import jsonl
from wavefront.tasks.base import Ask, Sample

HEADER, ANSWERS, GRADES = "header.json", "answers.jsonl", "grades.jsonl"
TIMINGS, ENVIRONMENT, SUMMARY, TRACES = (
    "timings.jsonl", "environment.jsonl", "summary.json", "traces",
)  # fmt: skip
FORMAT, VERSION = "wavefront-answers", 1
MAKE_ONE = "make one with `wavefront eval generate`"
SHOWN = 3  # differences that a sentence names
UNSAID = "nothing"


@dataclass(frozen=True)
class Run:
    """A run directory, read. Nothing here writes."""

    folder: Path
    header: Mapping[str, Any]

    @property
    def decides(self) -> Mapping[str, Any]:
        """Everything that decides the answers."""
        return self.header["decides"]

    @property
    def task(self) -> str:
        return self.decides["task"]["name"]

    @property
    def task_spec(self) -> str:
        """The task with its options, as it was asked for."""
        return self.decides["task"]["spec"]

    @property
    def strategy(self) -> str:
        return self.decides["options"]["strategy"]

    @property
    def shard(self) -> Shard:
        return Shard(*self.header["shard"])

    @cached_property
    def answers(self) -> dict[str, dict[str, Any]]:
        """By key."""
        file = self.folder / ANSWERS
        return jsonl.by_key(jsonl.read(file), file)

    @cached_property
    def grades(self) -> dict[str, dict[str, Any]]:
        """By key; empty before anything was graded."""
        file = self.folder / GRADES
        return jsonl.by_key(jsonl.read(file), file)

    @property
    def timings(self) -> list[dict[str, Any]]:
        """One a batch: of a batch that was made twice, the last."""
        told = jsonl.read(self.folder / TIMINGS)
        return list({one.get("batch"): one for one in told}.values())

    @property
    def environments(self) -> list[dict[str, Any]]:
        return jsonl.read(self.folder / ENVIRONMENT)

    @property
    def expected(self) -> int:
        """Answers that the run has when it is done."""
        return self.header["answers"]

    @property
    def finished(self) -> bool:
        return len(self.answers) == self.expected

    def ask(self, data: str = "") -> Ask:
        """Which items were asked; the folder of the files is the reader's own."""
        return Ask(**self.decides["ask"], data=data)


def key_of(decides: Mapping[str, Any], sample: Sample) -> str:
    """What an answer is known by: a hash of everything that decides it."""
    parts = {name: value for name, value in decides.items() if name not in ("task", "ask")}
    return digest([parts, sample.id, prompt_hash(sample)])


def prompt_hash(sample: Sample) -> str:
    """Of the words that an item is asked in, those after a hole included."""
    return digest([sample.prompt, str(sample.extra.get("suffix", ""))])


def items_digest(samples: Sequence[Sample]) -> str:
    """Of which items are asked, and how."""
    return digest([[sample.id, prompt_hash(sample)] for sample in samples])


def open_run(folder: str | Path) -> Run:
    """A run directory, or a sentence that says why it is none."""
    home = Path(folder)
    file = home / HEADER
    if not file.is_file():
        if inside := [run.name for run in _children(home)]:
            raise RunError(f"{home} holds several runs: name one, such as {home / inside[0]}.")
        raise RunError(f"{home} is not a run, it holds no {HEADER}: {MAKE_ONE}.")
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} is not valid JSON: {error}.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RunError(f"{file} is not of a run: {MAKE_ONE}.")
    if header.get("version") != VERSION:
        raise RunError(
            f"{file} is of version {header.get('version')!r}, and this reads version {VERSION}."
        )
    _check(header, file)
    return Run(home, header)


def _check(header: Mapping[str, Any], file: Path) -> None:
    """Refuse a header that lacks what everything after this reads from it."""
    try:
        decides, shard = header["decides"], header["shard"]
        names = [decides["task"][name] for name in ("name", "spec", "version", "items")]
        names.append(decides["options"]["strategy"])
        numbers = (*shard, header["answers"], decides["batch"]["rows"])
        Ask(**decides["ask"])
        good = all(isinstance(one, str) for one in names) and len(shard) == 2
        good = good and all(type(one) is int and one >= 0 for one in numbers)
        good = good and isinstance(decides["model"], dict) and isinstance(header["model"], dict)
    except (LookupError, TypeError):
        good = False
    if not good:
        raise RunError(f"{file} lacks what a run needs: {MAKE_ONE}.")


def _children(home: Path) -> Iterator[Path]:
    if home.is_dir():
        yield from sorted(one.parent for one in home.glob(f"*/{HEADER}"))


def runs_in(folder: str | Path) -> list[Run]:
    """The run that a directory is, or those that it holds."""
    home = Path(folder)
    found = [] if (home / HEADER).is_file() else list(_children(home))
    return [open_run(one) for one in found] or [open_run(home)]


class Contrast(NamedTuple):
    """Something that two descriptions say differently."""

    name: str
    mine: str
    theirs: str


def contrasts(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Contrast]:
    """What two headers decide differently."""
    one, two = _flat(mine), _flat(theirs)
    names = [name for name in {**one, **two} if one.get(name, UNSAID) != two.get(name, UNSAID)]
    return [Contrast(name, _said(one, name), _said(two, name)) for name in names]


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The same, each as a part of a sentence."""
    found = contrasts(mine, theirs)
    return [f"{one.name} is {one.mine} here and {one.theirs} there" for one in found]


def refuse_other(folder: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to go on with a run of another configuration, and say what is other."""
    found = differences(mine, theirs)
    if not found:
        return
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise RunError(
        f"{folder} is another run: {'; '.join(found[:SHOWN])}{more}. Choose another --out, or "
        "give the options it was made with."
    )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    flat: dict[str, Any] = {}
    for part, inner in value.items():
        flat |= _flat(inner, f"{name}.{part}" if name else str(part))
    return flat


def _said(flat: Mapping[str, Any], name: str) -> str:
    text = repr(flat[name]) if name in flat else UNSAID
    return text if len(text) <= 80 else f"{text[:77]}..."


def same_or_warned(run: Run, environment: Mapping[str, Any]) -> str:
    """A sentence on what is other about the machine than when the run was last at work, or ""."""
    before = run.environments
    if not before or any(one == environment for one in before):
        return ""
    found = differences(environment, before[-1])
    return (
        f"The machine is another than the one that began {run.folder}: {'; '.join(found[:SHOWN])}. "
        "Answers may differ in places where two tokens are about equally likely."
    )


def write_environment(folder: Path, environment: Mapping[str, Any]) -> None:
    """Note a machine that works on the run, once."""
    with jsonl.Lines(folder / ENVIRONMENT) as told:
        if environment not in told.found:
            told.append(environment)


def is_fresh(folder: Path) -> bool:
    """Whether nothing but our own lock is there; what holds other things is left alone."""
    if (folder / HEADER).is_file():
        return False
    try:
        strangers = [one for one in folder.iterdir() if not _ours(one.name)]
    except OSError as error:
        raise WavefrontError(f"{folder} cannot be read: {jsonl.reason(error)}.") from None
    if strangers:
        raise RunError(
            f"{folder} holds other things ({strangers[0].name}) and is no run: choose an empty or "
            "a new directory."
        )
    return True


def _ours(name: str) -> bool:
    return name == jsonl.LOCK or (name.startswith(f".{HEADER}.") and name.endswith(".part"))
