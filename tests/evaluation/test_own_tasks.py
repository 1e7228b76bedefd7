"""Tasks of the user's own: a class by its dotted name, and a JSONL file. No file imports code."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from helpers.commands import run as run_cli
from helpers.toy_runs import make_run, rewrite

import wavefront
from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import compare_runs, explain, fingerprint, grade, open_run
from wavefront.evaluation.task_spec import items_of, open_task, samples_of
from wavefront.evaluation.trials import Scale
from wavefront.integrations.lm_eval import grading, task_files
from wavefront.paper.decoder import ItemDecoder
from wavefront.tasks.base import Ask

TASK = """
from dataclasses import dataclass

from wavefront.tasks.base import Draft, Procedural, draw_int, worked_answer

print("imported")


@dataclass(frozen=True)
class Sums(Procedural):
    most: int = 99

    @property
    def name(self):
        return "sums"

    def draft(self, rng, reserved):
        a, b = (draw_int(rng, 1, self.most) for _ in range(2))
        total = str(a + b)
        return Draft(f"{a} + {b} =", worked_answer(f"{a} + {b}", total), total, f"{a} {b}")


@dataclass
class Melting(Procedural):
    most: int = 9


class NoTask:
    pass
"""
SPEC = "own_sums.Sums(most=50)"
CODE = {"options": {"strategy": "block(size=4)", "max_new_tokens": 8}, "ask": Ask(count=3)}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with a task, in a directory on the path; not imported yet."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "own_sums.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_sums", raising=False)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{n} + 1 =", "target": str(n + 1)} for n in range(3)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def test_class_is_generated_graded_and_explained_only_if_named(module: Path, tmp_path: Path):
    # The default style of the prompts is the paper's, but no template is needed.
    runs = [
        make_run(tmp_path / name, task=SPEC, **{**CODE, "options": {**CODE["options"], "seed": n}})
        for n, name in enumerate("ab")
    ]
    assert [one["prompt"].endswith("=") for one in runs[0].answers.values()] == [True] * 3
    sys.modules.pop("own_sums")
    for run in runs:
        with pytest.raises(RunError, match=r"own_sums\.Sums.*not built in.*--task"):
            grade(open_run(run.folder))
        assert "own_sums" not in sys.modules  # a run imports nothing
    for run in runs:
        grade(open_run(run.folder), tasks=[SPEC])
    one, two = (open_run(run.folder) for run in runs)
    assert compare_runs(one, two).comparison.count == 3
    rewrite(two.folder / "grades.jsonl", correct=True, strict=True, flexible=True)
    one, two = (open_run(run.folder) for run in runs)
    with pytest.raises(RunError, match="--task"):
        explain(one, two)
    explain(one, two, tasks=["own_sums.Sums(most=50)"])


def test_editing_the_file_of_a_task_changes_its_grader(module: Path) -> None:
    before = fingerprint.of_grader(open_task(SPEC))
    assert fingerprint.of_grader(open_task(SPEC)) == before
    (module / "own_sums.py").write_text(TASK + "# changed\n")
    assert fingerprint.of_grader(open_task(SPEC)) != before
    gsm = fingerprint.of_grader(open_task("gsm"))
    assert gsm == fingerprint.of_grader(open_task("gsm"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("own_sums.NoTask", "is not a task: it has no name, version, executes, items, grade"),
        ("own_sums.Melting", "a task is a frozen dataclass"),
        ("own_sums.Sum", "did you mean 'Sums'"),
        ("no_such_module.Task", "Run from the directory that holds it"),
        ("own_sums.Sums(least=1)", "Sums has no option 'least'"),
        ("none.jsonl", r"none\.jsonl"),
    ],
)
def test_wrong_task_raises_one_sentence(module: Path, spec: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        open_task(spec).items(Ask())


@pytest.mark.parametrize("field", ["prompt", "target", "answer", "id", "suffix"])
def test_lone_surrogate_in_a_file_raises_one_sentence(tmp_path: Path, field: str) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "a", "target": "1"}, {"prompt": "b", "target": "2", field: "\ud800"}]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(OptionError, match=r"Line 2 of .*prompts\.jsonl has a lone surrogate"):
        samples_of(str(file), Ask())


def test_repeated_id_is_found_in_linear_time(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    ids = [*range(30_000), 29_999]
    file.write_text("".join(f'{{"prompt": "a", "target": "1", "id": "i{n}"}}\n' for n in ids))
    task = open_task(str(file))
    samples = task.items(Ask())
    stored = type("Stored", (), {"items": lambda self, ask: samples})()
    start = time.process_time()
    with pytest.raises(OptionError, match="two items with the id 'i29999'"):
        items_of(stored, Ask(), name="prompts")
    assert time.process_time() - start < 1


def test_file_works_by_its_path_in_every_step(prompts: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task=str(prompts), **CODE)
    assert run.task == "jsonl"
    assert run.task_label == prompts.name
    assert grade(open_run(run.folder))["n-samples"]["jsonl"]["effective"] == 3
    prompts.rename(tmp_path / "moved.jsonl")
    with pytest.raises(OptionError, match="prompts"):
        grade(open_run(run.folder), regrade=True)
    found = grade(open_run(run.folder), tasks=[str(tmp_path / "moved.jsonl")], regrade=True)
    assert found["n-samples"]["jsonl"]["effective"] == 3


def test_lm_eval_files_of_own_tasks_are_graded_only_if_named(
    module: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "TRUSTED", set())
    grading._task.cache_clear()
    written = task_files.write([SPEC, str(prompts)], tmp_path / "files", ask=Ask(count=2))
    assert [one.name for one in written] == ["wavefront_sums", "wavefront_prompts"]
    docs = [
        json.loads((tmp_path / "files" / "data" / f"{name}.jsonl").read_text().splitlines()[0])
        for name in ("sums", "prompts")
    ]
    assert grading.process_results(docs[1], [docs[1]["target"]])["flexible"] == 1.0
    sys.modules.pop("own_sums")
    with pytest.raises(OptionError, match=r"not built in.*lm-eval run --task"):
        grading.process_results(docs[0], [docs[0]["answer"]])
    assert "own_sums" not in sys.modules
    grading.trust([SPEC])
    assert grading.process_results(docs[0], [docs[0]["answer"]])["strict"] == 1.0


def test_experiments_of_the_paper_draw_items_of_own_tasks(module: Path, prompts: Path) -> None:
    tasks = (SPEC, str(prompts))
    scale = Scale(tasks=tasks, items=2, length=64, rows=2, style="bare")
    decoder = ItemDecoder(lm=wavefront.load("toy"), scale=scale)
    sums, written = (decoder.draw(name) for name in tasks)
    assert [len(sums), len(written)] == [2, 2]
    assert all(sample.prompt.endswith("=") for sample in (*sums, *written))


@pytest.mark.slow
def test_own_tasks_work_on_the_command_line(module: Path, prompts: Path, tmp_path: Path) -> None:
    options = ("-m", "toy", "-n", "8", "-i", "2", "-q")
    both = ("--task", SPEC, "--task", str(prompts))
    run_cli("eval", "run", *both, *options, "--out", str(tmp_path / "runs"))
    runs = sorted(path.parent for path in (tmp_path / "runs").glob("*/header.json"))
    assert len(runs) == 2
    run_cli("eval", "generate", "--task", SPEC, *options, "--out", str(tmp_path / "one"))
    run_cli("eval", "grade", str(tmp_path / "one"), "--task", SPEC)
    run_cli("eval", "diff", str(tmp_path / "one"), str(tmp_path / "one"))
    tune = ("--candidate", "standard", "--baseline", "block(size=4)")
    run_cli(
        "tune", SPEC, *tune, "-m", "toy", "-n", "8", "-i", "4", "-q", "--out", str(tmp_path / "t")
    )
    run_cli(
        "lm-eval", "tasks", SPEC, str(prompts), "--items", "2", "--out", str(tmp_path / "files")
    )
