"""Run: the directory of an evaluation, its header, and what has been written into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.analysis.quality import MEASURES
from wavefront.core.errors import RunError, WavefrontError
from wavefront.evaluation.batches import Shard
from wavefront.storage import jsonl
from wavefront.storage.fingerprint import of_value
from wavefront.storage.read_file import MIB, read_json, reason
from wavefront.tasks.base import Ask, Sample

HEADER, ANSWERS, GRADES = "header.json", "answers.jsonl", "grades.jsonl"
TIMINGS, ENVIRONMENT, SUMMARY, TRACES = (
    "timings.jsonl", "environment.jsonl", "summary.json", "traces",
)  # fmt: skip
FORMAT, VERSION = "wavefront-answers", 1
MAKE_ONE = "make one with `wavefront eval generate`"
MAX_ITEMS = 10_000_000  # of a run that is read; drawing more would take hours
MAX_COUNT = 1 << 53  # no token, count or time of a run is as large
HEADER_LIMIT = 64 * MIB  # bytes
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
    def task_label(self) -> str:
        """The name of the task in tables: of a file of prompts, the name of the file."""
        files = re.findall(r"[^/'\"]+\.jsonl?", self.task_spec) if self.task == "jsonl" else []
        return files[-1] if files else self.task

    @property
    def task_spec(self) -> str:
        """The task with its options, as the user wrote it."""
        return self.decides["task"]["spec"]

    @property
    def judged(self) -> bool:
        """Whether a judge scores the answers, which are then not right or wrong."""
        return self.decides["task"].get("judged") is True

    @property
    def strategy(self) -> str:
        return self.decides["options"]["strategy"]

    @property
    def shard(self) -> Shard:
        return Shard(*self.header["shard"])

    @cached_property
    def answers(self) -> dict[str, dict[str, Any]]:
        """The answers by key. Raises `RunError` if a line is incomplete or an item occurs twice."""
        file = self.folder / ANSWERS
        lines = jsonl.read(file)
        _check_lines(lines, file, ANSWER_FIELDS)
        ids = [line["id"] for line in lines]
        if len({*ids}) < len(ids):
            raise RunError(f"{file} answers an item twice: remove one of the two lines.")
        return jsonl.by_key(lines, file)

    @cached_property
    def grades(self) -> dict[str, dict[str, Any]]:
        """The grades by key; empty before grading.

        Raises `RunError` if two graders produced them.
        """
        file = self.folder / GRADES
        lines = jsonl.read(file)
        _check_lines(lines, file, QUALITY_FIELDS if self.judged else GRADE_FIELDS)
        found = jsonl.by_key(lines, file)
        for key, line in found.items():
            if key not in self.answers or line["id"] != self.answers[key]["id"]:
                raise RunError(f"{file} has a grade for a different answer ({key}): use --regrade.")
        if len({(line.get("version"), line.get("grader")) for line in found.values()}) > 1:
            raise RunError(
                f"{file} has grades from two graders, which are not comparable: run "
                f"`wavefront eval grade {self.folder}`."
            )
        return found

    @property
    def grader(self) -> str | None:
        """The fingerprint of the grader; None before grading, or if the grades name none."""
        return next((line.get("grader") for line in self.grades.values()), None)

    @property
    def timings(self) -> list[dict[str, Any]]:
        """One timing for each batch; the later one if a batch was decoded twice."""
        file = self.folder / TIMINGS
        lines = jsonl.read(file)
        _check_lines(lines, file, TIMING_FIELDS)
        return list({line["batch"]: line for line in lines}.values())

    @property
    def environments(self) -> list[dict[str, Any]]:
        file = self.folder / ENVIRONMENT
        lines = jsonl.read(file)
        for number, line in enumerate(lines, 1):
            try:
                jsonl.dump(line)
            except ValueError:
                raise RunError(
                    f"Line {number} of {file} has a number that is not finite: remove the line."
                ) from None
        return lines

    @property
    def expected(self) -> int:
        """The number of answers in the finished run."""
        return self.header["answers"]

    @property
    def finished(self) -> bool:
        return len(self.answers) == self.expected

    def ask(self, data: str = "") -> Ask:
        """Return which items the run asked; `data` is the folder of the files on this machine."""
        return Ask(**self.decides["ask"], data=data)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_optional_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MAX_COUNT  # false for NaN


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def _is_quality(value: Any) -> bool:
    def is_number(name: str) -> bool:
        one = value[name]
        return type(one) in (bool, int, float) and 0 <= one < MAX_COUNT

    if value is None:  # the prompt was too long
        return True
    if not isinstance(value, dict) or value.keys() != {*MEASURES}:
        return False
    return all((value[name] is None and "distinct" in name) or is_number(name) for name in MEASURES)


def _are_layers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


# The fields of a line that are read later, and what they hold. A `?` marks an optional field.
Fields = Mapping[str, Callable[[Any], bool]]
ANSWER_FIELDS: Fields = {
    "key": _is_key, "id": _is_text, "prompt": _is_text, "prompt_hash": _is_text, "text": _is_text,
    "tokens": _are_tokens, "finish_reason": _is_optional_text, "forwards": _is_count,
    "positions?": _is_count, "batch?": _is_count,
    "problem?": _is_text,
}  # fmt: skip
GRADE_FIELDS: Fields = {
    "key": _is_key, "id": _is_text, "correct": _is_bool, "strict": _is_bool, "flexible": _is_bool,
    "answer": _is_optional_text, "target": _is_text, "version": _is_text,
    "grader?": _is_optional_text, "layers?": _are_layers,
}  # fmt: skip
QUALITY_FIELDS: Fields = {
    "key": _is_key, "id": _is_text, "quality": _is_quality, "original": _is_quality,
    "version": _is_text, "grader?": _is_optional_text,
}  # fmt: skip
TIMING_FIELDS: Fields = {"batch": _is_count, "seconds": _is_time, "tokens": _is_count}


def _check_lines(lines: Sequence[Mapping[str, Any]], file: Path, fields: Fields) -> None:
    """Raise `RunError` if a line lacks a field or holds an impossible value."""
    for number, line in enumerate(lines, 1):
        for field, is_valid in fields.items():
            name = field.removesuffix("?")
            valid = is_valid(line[name]) if name in line else name != field
            if not valid:
                raise RunError(
                    f"Line {number} of {file} has no valid {name!r}: remove the line, and the run "
                    "will produce it again."
                )


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
    """Open a run directory. Raises `RunError` with the reason if it is not a run."""
    home = Path(folder)
    file = home / HEADER
    if not file.is_file():
        if inside := [run.name for run in _children(home)]:
            raise RunError(f"{home} holds several runs: name one, such as {home / inside[0]}.")
        raise RunError(f"{home} is not a run, because it has no {HEADER}: {MAKE_ONE}.")
    header = read_json(file, limit=HEADER_LIMIT, error=RunError)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RunError(f"{file} is not the header of a run: {MAKE_ONE}.")
    if header.get("version") != VERSION:
        raise RunError(
            f"{file} has format version {header.get('version')!r}, but only version {VERSION} can "
            "be read."
        )
    _check(header, file)
    return Run(home, header)


def _check(header: Mapping[str, Any], file: Path) -> None:
    """Check that a header has every field that is read later."""
    try:
        decides, shard = header["decides"], header["shard"]
        names = [decides["task"][name] for name in ("name", "spec", "version", "items")]
        names += [decides["options"]["strategy"], decides["wavefront"], header["model"]["path"]]
        numbers = [*shard, header["answers"], decides["batch"]["rows"], decides["task"]["count"]]
        numbers.append(decides["options"]["max_new_tokens"])
        ask = Ask(**decides["ask"], data="")
        names += [ask.split, ask.style]
        numbers += [0 if ask.count is None else ask.count, decides["ask"]["shots"]]
        jsonl.dump(header)  # raises ValueError if a number is NaN or infinite
        valid = all(map(_is_text, names)) and all(map(_is_count, numbers)) and len(shard) == 2
        valid = valid and type(ask.seed) is int and (ask.count or 0) <= MAX_ITEMS
        valid = valid and isinstance(decides["model"], dict) and isinstance(header["model"], dict)
        valid = valid and _is_bool(decides["raw"]) and _is_text(decides["code"])
    except (LookupError, TypeError, ValueError):
        valid = False
    if not valid:
        raise RunError(f"{file} has missing or invalid fields: {MAKE_ONE}.")


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
    """Raise `RunError` with the differences if a run has different settings."""
    found = describe_differences(mine, theirs)
    if not found:
        return
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise RunError(
        f"{folder} has a run with different settings: {'; '.join(found[:SHOWN])}{more}. Choose "
        "another --out, or use the options of that run."
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
        raise WavefrontError(f"{folder} cannot be read: {reason(error)}.") from None
    if inside := [run.name for run in _children(folder)]:
        raise RunError(
            f"{folder} holds several runs, such as {inside[0]}, and cannot be one itself: choose "
            "another directory inside or beside it."
        )
    if foreign:
        raise RunError(
            f"{folder} is not empty ({foreign[0].name}) and is not a run directory: choose an "
            "empty or a new directory."
        )
    return True


def _is_ours(name: str) -> bool:
    return name == jsonl.LOCK or (name.startswith(f".{HEADER}.") and name.endswith(".part"))
