"""Grading the answers of a run, and the summary."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from pathlib import Path

import pytest
from helpers.toy_runs import make_run, rewrite

from wavefront import tasks
from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import fingerprint, grade, grades, open_run, summary
from wavefront.results.interval import wilson_share
from wavefront.tasks.base import Ask, Grade


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with edited answers: four strictly right, two flexibly right, two wrong."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "run", task="gsm", ask=Ask(count=8)).folder
    samples = {sample.id: sample for sample in tasks.load("gsm").items(Ask(count=8))}
    order = sorted(samples)

    def text(line: dict) -> str:
        sample, place = samples[line["id"]], order.index(line["id"])
        if place < 4:
            return sample.answer
        return f"So it is {sample.target}." if place < 6 else "#### minus a lot"

    rewrite(folder / "answers.jsonl", text=text)
    return folder


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


def test_grades_have_every_verdict_and_the_version(run: Path) -> None:
    grade(open_run(run))
    lines = sorted(open_run(run).grades.values(), key=lambda line: line["id"])
    assert [line["strict"] for line in lines] == [True] * 4 + [False] * 4
    assert [line["flexible"] for line in lines] == [True] * 6 + [False] * 2
    assert [line["correct"] for line in lines] == [True] * 6 + [False] * 2
    assert {line["version"] for line in lines} == {tasks.load("gsm").version}
    assert all(line["target"] and line["task"] == "gsm" for line in lines)


def test_summary_has_the_format_of_lm_eval(run: Path) -> None:
    summary = grade(open_run(run))
    assert json.loads((run / "summary.json").read_text()) == summary
    results = summary["results"]["gsm"]
    assert results["exact_match,strict-match"] == 4 / 8
    assert results["exact_match,flexible-extract"] == 6 / 8
    error = results["exact_match_stderr,strict-match"]
    assert error == pytest.approx(math.sqrt(0.25 / 7))
    assert summary["n-samples"]["gsm"] == {"original": 8, "effective": 8}
    assert summary["versions"]["gsm"] == tasks.load("gsm").version
    assert summary["n-shot"]["gsm"] == 0
    assert summary["configs"]["gsm"]["style"] == "paper"
    assert summary["config"]["gen_kwargs"]["strategy"] == "block(size=4)"
    assert summary["config"]["model"] == "toy"
    assert summary["environment"][0]["python"]
    assert results["forwards"] == 8
    assert results["tokens_per_forward"] <= 1
    assert results["seconds"] > 0


@pytest.mark.slow
def test_grading_resumes_and_repeats_nothing(run: Path) -> None:
    first = grade(open_run(run))
    whole = (run / "grades.jsonl").read_bytes()
    for end in range(0, len(whole), 97):
        (run / "grades.jsonl").write_bytes(whole[:end])
        assert grade(open_run(run)) == first
        assert (run / "grades.jsonl").read_bytes() == whole


def test_grades_of_another_version_or_answer_are_refused(run: Path) -> None:
    first = grade(open_run(run))
    rewrite(run / "grades.jsonl", version="0")
    with pytest.raises(RunError, match=r"version 0 of gsm, but the current version is .*--regrade"):
        grade(open_run(run))
    assert grade(open_run(run), regrade=True) == first
    rewrite(run / "answers.jsonl", text=lambda line: line["text"] + "!")
    with pytest.raises(RunError, match="a grade for a different answer"):
        grade(open_run(run))


def change_grader(folder: Path, count: int) -> None:
    """Make the first `count` grades look like those of another grader, which found all wrong."""
    file = folder / "grades.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[:count]:
        line |= {"grader": "0" * 32, "correct": False, "strict": False, "flexible": False}
    file.write_text("".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_grades_of_another_grader_are_graded_again(run: Path, count: int) -> None:
    first = grade(open_run(run))
    whole = (run / "grades.jsonl").read_bytes()
    change_grader(run, count)
    graded: list[int] = []
    assert grade(open_run(run), progress=lambda done, _: graded.append(done)) == first
    lines = (run / "grades.jsonl").read_bytes().splitlines()
    assert sorted(lines) == sorted(whole.splitlines())


def test_mixed_grades_are_refused(run: Path) -> None:
    grade(open_run(run))
    change_grader(run, 3)
    for read in (grades.verdicts, summary.summarise, summary.shares_of, summary.layers_of):
        with pytest.raises(RunError, match=r"two graders.*`wavefront eval grade .*run`"):
            read(open_run(run))
    rewrite(run / "grades.jsonl", grader=None)
    with pytest.raises(RunError, match=r"unknown grader.*`wavefront eval grade .*run`"):
        grades.verdicts(open_run(run))


def test_summary_names_the_grader(run: Path) -> None:
    found = grade(open_run(run))
    grader = fingerprint.of_grader(tasks.load("gsm"))
    assert found["configs"]["gsm"]["grader"] == grader
    assert {line["grader"] for line in open_run(run).grades.values()} == {grader}


def test_items_with_another_prompt_are_refused(run: Path) -> None:
    rewrite(run / "answers.jsonl", prompt_hash="0")
    with pytest.raises(RunError, match="a different prompt for it"):
        grade(open_run(run))


def test_unfinished_run_is_graded_so_far(run: Path) -> None:
    lines = (run / "answers.jsonl").read_bytes().splitlines(keepends=True)
    (run / "answers.jsonl").write_bytes(b"".join(lines[:3]))
    assert grade(open_run(run))["n-samples"]["gsm"] == {"original": 8, "effective": 3}
    (run / "grades.jsonl").unlink()
    (run / "answers.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match="has no answers to grade"):
        grade(open_run(run))


def test_too_long_prompts_count_as_wrong(run: Path) -> None:
    rewrite(run / "answers.jsonl", problem="too long")
    summary = grade(open_run(run))
    assert summary["results"]["gsm"]["correct,none"] == 0
    assert summary["results"]["gsm"]["too_long"] == 8
    assert {line["how"] for line in open_run(run).grades.values()} == {"not asked"}


def test_verdicts_need_grades(run: Path) -> None:
    with pytest.raises(RunError, match="8 answers without a grade"):
        grades.verdicts(open_run(run))
    grade(open_run(run))
    assert sum(grades.verdicts(open_run(run), "strict").values()) == 4
    with pytest.raises(OptionError, match="one of correct, strict, flexible"):
        grades.verdicts(open_run(run), "loose")


def test_interval_is_wilsons() -> None:
    # Newcombe (1998), table I: 81 of 263, and 15 of 148.
    for right, count, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        found = wilson_share(right, count)
        assert (found.low, found.high) == (
            pytest.approx(low, abs=1e-4),
            pytest.approx(high, abs=1e-4),
        )
    assert wilson_share(0, 20).low == 0
    assert wilson_share(20, 20).high == 1
    assert wilson_share(1, 1).error == 0
    for right, count in ((0, 0), (2, 1), (-1, 3)):
        with pytest.raises(OptionError, match="not a share"):
            wilson_share(right, count)


def test_programs_are_graded_several_at_a_time_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run", task="code", ask=Ask(count=4)).folder
    both = threading.Barrier(2)

    def wait(self: object, sample: object, text: str) -> Grade:
        both.wait(timeout=20)  # one alone would wait in vain
        return Grade(True, "passed", "executed", True, True)

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(type(tasks.load("code")), "grade", wait)
    grade(open_run(folder))
    run = open_run(folder)
    assert [line["key"] for line in run.grades.values()] == sorted(run.answers)
