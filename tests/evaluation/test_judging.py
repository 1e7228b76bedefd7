"""`stories`: answers without right or wrong, scored by the judge of the model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.commands import records, refused, run

from wavefront import tasks
from wavefront.analysis.quality import MEASURES, QualityJudge
from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import compare_quality, compare_runs, open_run
from wavefront.evaluation.judging import qualities
from wavefront.evaluation.summary import summarise
from wavefront.storage.jsonl import dump
from wavefront.tasks.base import Ask

FEW = ("-i", "3", "-n", "12", "-t", "6", "-b", "3", "-q")
STANDARD, WAVE = "stories--standard", "stories--wavefront"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two runs of three stories, and what the command printed."""
    home = tmp_path_factory.mktemp("stories")
    done = run("eval", "run", "--task", "stories", "-m", "tale", *FEW, "-s", "standard",
               "-s", "wavefront", "-o", str(home))  # fmt: skip
    return home, done.stdout


def test_eval_prints_quality_and_no_accuracy(made: tuple[Path, str]) -> None:
    said = " ".join(made[1].split())
    assert "nats 95 % tokens distinct nats@64 tokens@64 distinct@64 early ends" in said
    assert "(the original)" in said
    assert "measure first second difference 95 %" in said
    assert "right" not in said
    assert "strict" not in said


def test_grades_hold_the_judge_s_numbers(made: tuple[Path, str]) -> None:
    found = open_run(made[0] / WAVE)
    assert found.judged
    judge = QualityJudge.load("tale", device="cpu")
    for key, line in found.grades.items():
        assert "correct" not in line
        answer = found.answers[key]
        exact = judge.measure([answer["prompt"]], [SimpleNamespace(**answer)])[0]
        assert line["quality"] == pytest.approx(exact._asdict())
    stories = {story.id: story for story in tasks.load("stories").items(Ask(count=3))}
    for name, one in qualities(found, "original").items():
        text = judge.original(stories[name].prompt, stories[name].extra["text"], length=12)
        assert one._asdict() == pytest.approx(judge.measure_texts([text])[0]._asdict())


def test_summary_has_every_measure_with_its_interval(made: tuple[Path, str]) -> None:
    found = summarise(open_run(made[0] / WAVE))["results"]["stories"]
    for name in MEASURES:
        for source in ("none", "original"):
            if name == "first_distinct":  # no text has 64 tokens
                assert found[f"{name},{source}"] is found[f"{name}_interval,{source}"] is None
                continue
            low, high = found[f"{name}_interval,{source}"]
            assert low <= found[f"{name},{source}"] <= high
    assert not any("correct" in name or "exact_match" in name for name in found)
    stored = json.loads((made[0] / WAVE / "summary.json").read_text())
    assert stored["results"]["stories"] == found
    assert stored["higher_is_better"] == {"stories": {"nats": False}}


def test_runs_are_compared_in_pairs_over_every_measure(made: tuple[Path, str]) -> None:
    first, second = open_run(made[0] / STANDARD), open_run(made[0] / WAVE)
    pair = compare_quality(first, second)
    assert pair.count == 3
    one, two = qualities(first), qualities(second)
    gap = sum(two[item].nats - one[item].nats for item in one) / 3
    assert pair.as_json()["gaps"]["nats"]["value"] == pytest.approx(gap)
    with pytest.raises(RunError, match="not right or wrong: compare their quality with"):
        compare_runs(first, second)
    folders = [str(made[0] / name) for name in (STANDARD, WAVE)]
    said = run("eval", "diff", *folders).stdout
    assert "B - A" in said
    assert "of 3 texts differ." in said
    assert records(run("eval", "diff", *folders, "--json"))[0]["count"] == 3
    assert "not right or wrong" in refused("eval", "explain", *folders)


def test_interrupted_grading_continues(made: tuple[Path, str]) -> None:
    file = made[0] / WAVE / "grades.jsonl"
    before = file.read_text()
    lines = before.splitlines(keepends=True)
    file.write_text("".join(lines[:1]) + lines[1][:40])
    run("eval", "grade", str(made[0] / WAVE), "-q")
    assert file.read_text() == before
    broken = json.loads(lines[0]) | {"quality": {"nats": -1}}
    file.write_text(dump(broken) + "\n")
    with pytest.raises(RunError, match=r"Line 1 .* has no valid 'quality'"):
        _ = open_run(made[0] / WAVE).grades
    file.write_text(before)


def test_prompt_that_is_too_long_has_no_quality(tmp_path: Path) -> None:
    few = ("-i", "2", "-n", "745", "-t", "1", "-s", "left_to_right", "-b", "2", "-q")
    done = run("eval", "run", "--task", "stories", "-m", "tale", *few, "-o", str(tmp_path / "run"))
    assert "2 prompts were too long for the model and have no quality." in done.stdout


@pytest.mark.parametrize(
    ("task", "model", "said"),
    [
        ("stories", "toy", "The judge of tale cannot read the tokens of this model"),
        ("stories(model='ripple')", "tale", "ripple has no held-out prompts (prompts.jsonl)"),
        ("stories(modle='tale')", "tale", "no option 'modle' (did you mean 'model'?)"),
    ],
)
def test_model_without_a_judge_is_refused_before_decoding(
    task: str, model: str, said: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert said in refused("eval", "run", "--task", task, "-m", model, *FEW, "-o", str(out))
    assert not (out / "answers.jsonl").exists()


def test_folder_with_prompts_and_no_judge_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Tom", "text": " Tom ran."}\n')
    task = f"stories(model='{tmp_path}')"
    said = refused("eval", "run", "--task", task, "-m", "tale", *FEW, "-o", str(tmp_path / "run"))
    assert "has no judge to score stories" in said


def test_items_begin_with_the_report_half() -> None:
    task = tasks.load("stories")
    every = task.items(Ask())
    tune, report = (task.items(Ask(split=split)) for split in ("tune", "report"))
    assert (len(every), len(tune), len(report)) == (1024, 512, 512)
    assert every == [*report, *tune]
    assert [story.id for story in report[:2]] == ["stories/512", "stories/513"]
    assert task.items(Ask(count=10)) == report[:10]
    shuffled = task.items(Ask(seed=1))
    assert shuffled != every
    assert {story.id for story in shuffled} == {story.id for story in every}
    for story in every:
        assert story.extra["text"].lstrip() == story.prompt + story.answer
    with pytest.raises(OptionError, match="split must be one of"):
        task.items(Ask(split="test"))
    with pytest.raises(OptionError, match="stories has no right answers"):
        task.grade(every[0], "")


@pytest.mark.parametrize("line", ['{"prompt": "Tom"}', '{"prompt": " ", "text": "x"}', "[1]", "{"])
def test_damaged_prompts_are_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(f"{line}\n")
    with pytest.raises(OptionError, match=r"prompts\.jsonl"):
        tasks.load("stories", model=str(tmp_path)).items(Ask())


def test_command_that_counts_right_answers_refuses_stories(tmp_path: Path) -> None:
    out = ("-q", "-i", "12", "-o", str(tmp_path / "out"))
    said = refused("tune", "stories", "-m", "tale", *out)
    assert "stories has no right answers to count" in said


def test_lm_eval_task_file_of_stories_is_refused(tmp_path: Path) -> None:
    said = refused("lm-eval", "tasks", "stories", "--out", str(tmp_path / "tasks"))
    assert "stories has no right answers for lm-eval to count" in said
