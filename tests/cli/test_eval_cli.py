"""The commands of `wavefront eval`, inside the test process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers.commands import records, refused, run
from helpers.toy_runs import rewrite
from rich.console import Console

from wavefront.cli import eval_tables, output
from wavefront.cli.eval_options import override_preset
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.evaluation import open_run
from wavefront.results.interval import Interval

GENERATE = ("eval", "generate")
SMALL = ("--task", "boolean_expressions", "--items", "5", "--style", "bare", "-n", "8", "-b", "2")


def test_run_is_generate_then_grade(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    result = run(*GENERATE, *SMALL, "-s", "block(size=4)", "--out", one)
    assert result.stdout == f"5 of 5 answers in {one}\n"
    assert not (tmp_path / "one" / "grades.jsonl").exists()
    (apart,) = records(run("eval", "grade", one, "--json"))
    (together,) = records(run("eval", "run", *SMALL, "-s", "block(size=4)", "--out", two, "--json"))
    apart, together = apart["runs"][0], together["runs"][0]
    for told in (apart, together):
        for name in ("seconds", "tokens_per_second"):
            del told["results"]["boolean_expressions"][name]
        del told["config"]["command"]
    assert apart == together
    assert apart["config"]["gen_kwargs"]["eos"] == "stop"


@pytest.mark.slow
def test_several_tasks_and_strategies_make_one_run_each_and_a_comparison(tmp_path: Path) -> None:
    more = ("--task", "navigate", "-s", "block(size=4)", "-s", "standard", "--out", str(tmp_path))
    result = run("eval", "run", *SMALL, *more)
    names = sorted(path.name for path in tmp_path.iterdir())
    tasks = ("boolean_expressions", "navigate")
    assert names == [f"{task}--{s}" for task in tasks for s in ("block-4", "standard")]
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["task", "strategy", "items"]
    note = "did not end within 8 tokens; raise -n to give them more."
    cut = [line for line in lines if line.endswith(note)]
    assert len(lines) == 1 + 4 + 1 + len(cut) + 1 + 1 + 2 + 1
    assert lines[5] == eval_tables.GRADES
    assert "strict: " in lines[5]
    assert "flexible: " in lines[5]
    assert lines[-1] == eval_tables.EXACT
    ended = [[o["finish_reason"] for o in open_run(tmp_path / n).answers.values()] for n in names]
    assert len(cut) == sum("length" in reasons for reasons in ended) > 0
    assert f"{ended[0].count('length')} of 5 answers" in cut[0]
    assert all("block(size=4)" in line and "standard" in line for line in lines[-3:-1])
    assert not any("standard()" in line for line in lines)
    (told,) = records(run("eval", "grade", str(tmp_path), "--json"))
    assert [len(told["runs"]), len(told["pairs"])] == [4, 2]
    assert "holds several runs" in refused("eval", "diff", str(tmp_path), str(tmp_path))


def test_same_command_continues_a_run(tmp_path: Path) -> None:
    command = (*GENERATE, *SMALL, "--out", str(tmp_path / "run"))
    run(*command)
    file = tmp_path / "run" / "answers.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    run(*command)
    assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert "batch.rows is 3 here and 2 there" in refused(*command, "-b", "3")


def test_shards_are_merged(tmp_path: Path) -> None:
    parts = [str(tmp_path / f"part{n}") for n in range(2)]
    for n, part in enumerate(parts):
        run(*GENERATE, *SMALL, "--out", part, "--shard", f"{n}/2")
    run(*GENERATE, *SMALL, "--out", str(tmp_path / "whole"))
    out = str(tmp_path / "joined")
    assert run("eval", "merge", *parts, "--out", out).stdout == f"5 of 5 answers in {out}\n"
    joined, whole = ((tmp_path / n / "answers.jsonl").read_bytes() for n in ("joined", "whole"))
    assert sorted(joined.splitlines()) == sorted(whole.splitlines())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    home = tmp_path_factory.mktemp("two")
    run("eval", "run", *SMALL, "-s", "block(size=4)", "-s", "standard", "--out", str(home))
    first, second = (home / f"boolean_expressions--{n}" for n in ("block-4", "standard"))
    rewrite(first / "grades.jsonl", correct=True)
    order = sorted(line["id"] for line in open_run(second).grades.values())
    rewrite(second / "grades.jsonl", correct=lambda line: order.index(line["id"]) > 2)
    return str(first), str(second)


def test_show_prints_wrong_answers_first(two: tuple[str, str]) -> None:
    lines = run("eval", "show", two[1]).stdout.splitlines()
    assert lines[0] == (
        f"{two[1]}: 5 answers to boolean_expressions with standard, 2 right and 3 wrong."
    )
    verdicts = [line.split()[2].strip(";") for line in lines if line[:1].isdigit()]
    assert verdicts == ["wrong"] * 3 + ["right"] * 2
    grades = open_run(two[1]).grades.values()
    first = next(one for one in grades if one["id"] == lines[2].split()[1].strip(":"))
    assert f"read {first['answer'] or 'nothing'}, target {first['target']}" in lines[2]
    assert lines[3].startswith("   prompt: ")
    few = run("eval", "show", two[1], "--show", "1").stdout
    assert few.endswith("\n4 more: --all prints them.\n")
    assert run("eval", "show", two[1], "--show", "1", "--all").stdout.splitlines() == lines
    told = records(run("eval", "show", two[1], "--json"))
    assert [one["correct"] for one in told] == [False] * 3 + [True] * 2
    assert {"prompt", "text", "answer", "target"} <= told[0].keys()


def test_show_says_that_answers_are_not_graded(tmp_path: Path) -> None:
    home = str(tmp_path / "run")
    run(*GENERATE, *SMALL, "--out", home)
    head = run("eval", "show", home).stdout.splitlines()[0]
    assert f"Not all are graded: run `wavefront eval grade {home}`." in head
    assert "holds several runs" not in refused("report", home)
    assert "without a grade" in refused("report", home)


def test_run_names_the_command_that_shows_the_answers(tmp_path: Path) -> None:
    home = str(tmp_path / "run")
    given = ("eval", "run", *SMALL, "--out", home)
    done = run(*given)
    assert f"Read the answers: wavefront eval show {home}\n" in done.stderr
    assert done.stdout.splitlines()[1].split()[:2] == ["boolean_expressions", "default"]
    assert f"\ndefault: {DEFAULT_STRATEGY}.\n" in done.stdout, "its long name is said once"
    assert "eval show" not in run(*given, "--quiet").stderr
    both = run("eval", "grade", home).stderr
    assert "eval diff" not in both, "there is only one run"


def test_report_shows_an_evaluation(two: tuple[str, str], tmp_path: Path) -> None:
    home, page = str(Path(two[0]).parent), tmp_path / "page.html"
    run("report", home, "-o", str(page))
    text = page.read_text("utf-8")
    assert "<h1>Evaluation on boolean_expressions</h1>" in text
    assert "boolean_expressions, standard: wrong answers (3 of 5)" in text
    assert "block(size=4): wrong answers" not in text, "it has none"
    assert "p (McNemar)" in text
    one = next(iter(line for line in open_run(two[1]).grades.values() if not line["correct"]))
    assert one["id"] in text
    run("report", two[1], "-o", str(page))
    assert "Wrong answers (3 of 5)" in page.read_text("utf-8")
    assert "`wavefront eval show`" in refused("report", str(tmp_path))


def test_diff_describes_the_difference(two: tuple[str, str]) -> None:
    lines = run("eval", "diff", *two).stdout.splitlines()
    assert lines[:2] == [f"A: {two[0]}", f"B: {two[1]}"]
    assert lines[2].startswith("options.strategy: 'block(size=4)' in A, 'standard")
    assert "A has 100 % right and B 40 %: -60 points" in "\n".join(lines)
    assert lines[2].endswith("'standard' in B"), "without options that equal the defaults"
    assert "(95 %: -96 to +47)" in "\n".join(lines), "three of five items bound little"
    assert "p = 0.250" in "\n".join(lines)
    assert sum("right in A, wrong in B" in line for line in lines) == 3
    assert "\n2 more: --show 3 prints them." in run("eval", "diff", *two, "--show", "1").stdout
    (told,) = records(run("eval", "diff", *two, "--json"))
    assert told["comparison"]["mcnemar"]["first_only"] == 3


def test_equal_verdicts_are_not_a_certain_difference_of_zero(two: tuple[str, str]) -> None:
    text = run("eval", "diff", two[0], two[0]).stdout
    assert "+0 points (95 %: -58 to +58)" in text
    assert "No verdict changed, but 5 items cannot exclude a difference of 58 points." in text
    assert "+0 to +0" not in text


def test_quality_of_few_items_has_no_interval() -> None:
    wide, point = Interval(0.2, -0.1, 0.5), Interval(0.0, 0.0, 0.0)
    assert eval_tables.gap_text(wide, 1, items=20) == "-0.1 to +0.5"
    assert eval_tables.gap_text(wide, 1, items=5) == eval_tables.TOO_FEW
    assert eval_tables.gap_text(point, 1, items=20) == eval_tables.TOO_FEW
    assert eval_tables.gap_text(0.0, 1, items=1) == eval_tables.TOO_FEW
    assert eval_tables.gap_text(None, 1, items=20) == ""


def test_explain_describes_the_divergence(two: tuple[str, str]) -> None:
    (told,) = records(run("eval", "explain", *two, "--json"))
    assert told["divergences"]
    text = run("eval", "explain", *two).stdout
    for one in told["divergences"]:
        assert f"position with different tokens is {one['slot']}:" in text
        assert f"at step {one['first']['step']}, p = {one['first']['probability']:.3f}" in text
    assert "It gave B's token" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*GENERATE, "--task", "gsn", "--out", "x"), "no task 'gsn' (did you mean 'gsm'"),
        ((*GENERATE, "--task", "zzz", "--out", "x"), "'zzz'. `wavefront list tasks` lists all"),
        ((*GENERATE, "--items", "0", "--out", "x"), "items must be at least 1"),
        ((*GENERATE, "--shard", "2/2", "--out", "x"), "i/n"),
        ((*GENERATE, "--style", "odd", "--out", "x"), "style must be one of bare, paper"),
        ((*GENERATE, "--trace", "odd", "--out", "x"), "trace must be one of"),
        ((*GENERATE, "-s", "blok", "--out", "x"), "did you mean 'block'"),
        (
            (*GENERATE, "--engine", "slurm", "--out", "x"),
            "engine must be one of local, ray",
        ),
        ((*GENERATE, "--workers", "2", "--out", "x"), "give --engine ray"),
        (
            (*GENERATE, "--engine", "ray", "--workers", "0", "--out", "x"),
            "workers must be",
        ),
        ((*GENERATE, "--threads", "0", "--out", "x"), "threads must be at least 1"),
        ((*GENERATE, "-b", "0", "--out", "x"), "--batch-size must be at least 1"),
        (("eval", "grade", "nowhere"), "nowhere is not a run"),
        (("eval", "diff", "nowhere", "x"), "nowhere is not a run"),
        (("eval", "explain", "nowhere", "x"), "nowhere is not a run"),
        (("eval", "merge", "nowhere", "--out", "x"), "nowhere is not a run"),
        (("eval", "diff", "a", "b", "--show", "-1"), "show must be at least 0"),
    ],
)
def test_wrong_input_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(*args)
    assert list(tmp_path.iterdir()) == []


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install -e '.[ray]'" in refused(*GENERATE, "--engine", "ray", "--out", "x")


def test_run_needs_a_directory_and_distinct_strategies() -> None:
    assert "--out DIR" in run(*GENERATE, code=2).stderr
    assert "'--out'" in run("eval", "merge", "nowhere", code=2).stderr
    assert "given twice" in run(*GENERATE, "--out", "x", "-s", "a", "-s", "a", code=2).stderr


def test_code_runs_without_a_sandbox_only_if_allowed(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    run(*GENERATE, "--task", "code", "--items", "1", "-n", "4", "--out", out)
    from wavefront import tasks

    if not hasattr(tasks.load("code"), "executes"):  # otherwise there may be a sandbox
        assert "sandbox" in refused("eval", "grade", out)
    (told,) = records(run("eval", "grade", out, "--allow-unsandboxed", "--json"))
    assert told["runs"][0]["results"]["code"]["correct,none"] == 0
    (line,) = (json.loads(one) for one in (tmp_path / "run/grades.jsonl").read_text().splitlines())
    assert told["runs"][0]["results"]["code"]["sandbox"] == [line["layers"]]
    assert "code ran inside" in run("eval", "grade", out, "--allow-unsandboxed").stdout


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, {"max_new_tokens": 64, "steps": 64, "block_length": 8, "logits_eos_inf": True}),
        ({"strategy": "standard"}, {"max_new_tokens": 64, "steps": 64, "logits_eos_inf": True}),
        ({"gen_length": 9}, {"block_length": 8, "logits_eos_inf": True}),
        ({"max_new_tokens": 9, "steps": 3}, {"block_length": 8, "logits_eos_inf": True}),
        ({"eos": "keep"}, {"max_new_tokens": 64, "steps": 64, "block_length": 8}),
        ({"eos_policy": "keep", "alg": "origin"}, {"max_new_tokens": 64, "steps": 64}),
    ],
)
def test_options_win_over_a_preset(given: dict, left: dict) -> None:
    preset = {"max_new_tokens": 64, "steps": 64, "block_length": 8, "logits_eos_inf": True}
    assert override_preset(preset, given) == left | given


def test_preset_sets_decoding_and_item_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wavefront import tasks

    def preset(name: str, task: str) -> dict:
        assert (name, task) == ("mine", "boolean_expressions")
        return {"strategy": "block(size=2)", "max_new_tokens": 6, "steps": 6, "style": "bare"}

    monkeypatch.setattr(tasks, "preset", preset)
    given = ("--task", "boolean_expressions", "--items", "2", "--preset", "mine")
    run(*GENERATE, *given, "--out", str(tmp_path / "a"))
    run(*GENERATE, *given, "--out", str(tmp_path / "b"), "-s", "standard", "-n", "4")
    a, b = (open_run(tmp_path / name).decides for name in "ab")
    assert (a["options"]["strategy"], a["options"]["steps"]) == ("block(size=2)", 6)
    assert b["options"]["strategy"].startswith("standard")
    assert b["options"]["steps"] == 4
    assert a["ask"]["style"] == "bare"


def test_wide_table_becomes_paragraphs_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def narrow() -> Console:
        return Console(width=60, highlight=False, emoji=False, markup=False)

    monkeypatch.setattr(output, "stdout", narrow)
    columns = ("task", "strategy", "items", "right", "95 %", "tokens/forward")
    row = ["gsm", "block(size=32)", 4, "75.0 %", "30.1 % to 95.4 %", "5.69"]
    output.print_columns(columns, [row])
    wide = capsys.readouterr().out
    assert wide.splitlines() == [
        "gsm · block(size=32)",
        "  items: 4,  right: 75.0 %,  95 %: 30.1 % to 95.4 %,",
        "  tokens/forward: 5.69",
    ]
    output.print_columns(columns[:3], [row[:3]])
    assert capsys.readouterr().out.startswith("task  strategy        items\n")
