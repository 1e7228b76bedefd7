"""Run directories that somebody else wrote: damaged or absurd files raise one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_runs import OPTIONS, make_run

from wavefront.core.errors import RunError
from wavefront.evaluation import compare_runs, explain, grade, merge, open_run, summary
from wavefront.evaluation.batches import Shard
from wavefront.tasks.base import Ask

ASK = Ask(count=3, style="bare")
NAN = float("nan")


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for name, strategy in (("a", "block(size=4)"), ("b", "standard")):
        grade(make_run(home / name, ask=ASK, options=OPTIONS | {"strategy": strategy}))
    for number in range(2):
        make_run(home / f"part{number}", ask=ASK, rows=2, shard=Shard(number, 2), trace="basic")
    return home


@pytest.fixture
def home(origin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "home"))


def edit_line(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the first line of a JSONL file."""
    first, *rest = file.read_text().splitlines()
    line = json.loads(first)
    change(line)
    file.write_text("".join(f"{text}\n" for text in (json.dumps(line), *rest)))


@pytest.mark.parametrize(
    ("file", "field", "values"),
    [
        ("answers.jsonl", "id", [None, [], 3]),
        ("answers.jsonl", "text", [None, NAN, 3, []]),
        ("answers.jsonl", "tokens", [None, 5, ["a"], [NAN], [-1], [2**80]]),
        ("answers.jsonl", "forwards", [None, NAN, -1, "8", True, 2**80]),
        ("answers.jsonl", "prompt_hash", [None, []]),
        ("answers.jsonl", "finish_reason", [3, []]),
        ("answers.jsonl", "key", ["", "x", "../../../etc/passwd", "A" * 32]),
        ("answers.jsonl", "batch", [None, NAN, "0"]),
        ("grades.jsonl", "id", [None, []]),
        ("grades.jsonl", "correct", [None, 1, NAN, "yes"]),
        ("grades.jsonl", "grader", [[], 3, NAN]),
        ("grades.jsonl", "target", [None, 3]),
        ("timings.jsonl", "batch", [None, []]),
        ("timings.jsonl", "seconds", [None, NAN, float("inf"), -1, "1"]),
        ("timings.jsonl", "tokens", [None, NAN, 0.5]),
    ],
)
def test_absurd_field_of_a_line_is_refused(
    home: Path, file: str, field: str, values: list[Any]
) -> None:
    origin = (home / "a" / file).read_text()
    for value in values:
        edit_line(home / "a" / file, lambda line, value=value: line.update({field: value}))
        with pytest.raises(RunError, match=rf"^Line 1 of \S+ has no (valid '{field}'|key)"):
            summary.summarise(open_run(home / "a"))
        (home / "a" / file).write_text(origin)
    if field not in ("batch", "grader"):
        edit_line(home / "a" / file, lambda line: line.pop(field))
        with pytest.raises(RunError, match=rf"^Line 1 of \S+ has no (valid '{field}'|key)"):
            summary.summarise(open_run(home / "a"))


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("answers", [None, -1, NAN, 2**80, "3"]),
        ("shard", [None, [], [0], [0, 1, 2], [0, NAN]]),
        ("model", [None, [], {}]),
        ("model.path", [None, 3]),
        ("decides.ask.count", ["x", NAN, -1, 10**30, 10**12]),
        ("decides.ask.seed", [None, NAN, [], "0"]),
        ("decides.ask.style", [None, []]),
        ("decides.ask.shots", [None, NAN, -1]),
        ("decides.ask.data", ["/etc"]),
        ("decides.task.count", [None, NAN, -1]),
        ("decides.task.spec", [None, []]),
        ("decides.batch.rows", [None, NAN, "8"]),
        ("decides.options.max_new_tokens", [None, NAN, "8", 2**80]),
        ("decides.options.strategy", [None, {}]),
        ("decides.wavefront", [None, 1]),
        ("decides.raw", [None, "no"]),
        ("decides.model.weights", [NAN, float("inf")]),
        ("decides.ask", [{}, []]),
    ],
)
def test_absurd_field_of_a_header_is_refused(home: Path, path: str, values: list[Any]) -> None:
    file = home / "a" / "header.json"
    origin = file.read_text()
    *parents, name = path.split(".")
    for value in values:
        header = json.loads(origin)
        inner = header
        for parent in parents:
            inner = inner[parent]
        inner[name] = value
        file.write_text(json.dumps(header))
        with pytest.raises(RunError, match="has missing or invalid fields") as error:
            grade(open_run(home / "a"))
        assert len(str(error.value)) < 300


def test_machine_with_a_number_that_is_not_finite_is_refused(home: Path) -> None:
    edit_line(home / "a" / "environment.jsonl", lambda line: line.update(threads=NAN))
    with pytest.raises(RunError, match="a number that is not finite"):
        grade(open_run(home / "a"))


def test_lines_of_two_answers_for_one_item_are_refused(home: Path) -> None:
    file = home / "a" / "answers.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    file.write_text(file.read_text() + json.dumps(line | {"key": "0" * 32}) + "\n")
    for use in (grade, summary.summarise, lambda run: compare_runs(run, open_run(home / "b"))):
        with pytest.raises(RunError, match="answers an item twice"):
            use(open_run(home / "a"))


def test_grade_of_another_item_is_refused(home: Path) -> None:
    edit_line(home / "a" / "grades.jsonl", lambda line: line.update(id="another"))
    for use in (compare_runs, explain):
        with pytest.raises(RunError, match=r"a grade for a different answer .*--regrade"):
            use(open_run(home / "a"), open_run(home / "b"))


def test_absurd_number_of_shards_is_refused(home: Path) -> None:
    file = home / "part0" / "header.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"shard": [0, 10**12]}))
    with pytest.raises(RunError, match="every shard of one run exactly once"):
        merge([home / "part0", home / "part1"], home / "merged")


def test_merging_copies_only_the_traces_of_the_answers(home: Path) -> None:
    traces, secret = home / "part0" / "traces", home / "secret.txt"
    secret.write_text("secret")
    victim, *others = sorted(traces.iterdir())
    victim.unlink()
    victim.symlink_to(secret)
    (traces / "more.sh").write_text("echo")
    merged = merge([home / "part0", home / "part1"], home / "merged")
    expected = {*(one.name for one in others)}
    expected |= {one.name for one in (home / "part1" / "traces").iterdir()}
    assert {one.name for one in (merged.folder / "traces").iterdir()} == expected
