"""The commands of evaluation inside the test process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers.commands import records, refused, run
from helpers.toy_runs import rewrite

from wavefront.cli.eval_options import over
from wavefront.evaluation import open_run

SMALL = ("--task", "boolean_expressions", "--items", "5", "--style", "bare", "-n", "8", "-b", "2")


def test_answers_then_grade_is_eval(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    result = run("answers", *SMALL, "-s", "block(size=4)", "--out", one)
    assert result.stdout == f"5 of 5 answers in {one}\n"
    assert not (tmp_path / "one" / "grades.jsonl").exists()
    (apart,) = records(run("grade", one, "--json"))
    (together,) = records(run("eval", *SMALL, "-s", "block(size=4)", "--out", two, "--json"))
    apart, together = apart["runs"][0], together["runs"][0]
    for told in (apart, together):
        for name in ("seconds", "tokens_per_second"):
            del told["results"]["boolean_expressions"][name]
        del told["config"]["command"]
    assert apart == together
    assert apart["config"]["gen_kwargs"]["eos"] == "stop"


def test_several_tasks_and_strategies_make_a_run_each_and_a_comparison(tmp_path: Path) -> None:
    more = ("--task", "navigate", "-s", "block(size=4)", "-s", "standard", "--out", str(tmp_path))
    result = run("eval", *SMALL, *more)
    names = sorted(path.name for path in tmp_path.iterdir())
    tasks = ("boolean_expressions", "navigate")
    assert names == [f"{task}--{s}" for task in tasks for s in ("block-size=4", "standard")]
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["task", "strategy", "items"]
    cut = [line for line in lines if line.endswith("no end in their 8 places; -n gives them more.")]
    assert len(lines) == 1 + 4 + len(cut) + 1 + 1 + 2
    ended = [[o["finish_reason"] for o in open_run(tmp_path / n).answers.values()] for n in names]
    assert len(cut) == sum("length" in reasons for reasons in ended) > 0
    assert f"{ended[0].count('length')} of 5 answers" in cut[0]
    assert all("block(size=4)" in line and "standard" in line for line in lines[-2:])
    (told,) = records(run("grade", str(tmp_path), "--json"))
    assert [len(told["runs"]), len(told["pairs"])] == [4, 2]
    assert "holds several runs" in refused("diff", str(tmp_path), str(tmp_path))


def test_the_same_command_goes_on(tmp_path: Path) -> None:
    command = ("answers", *SMALL, "--out", str(tmp_path / "run"))
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
        run("answers", *SMALL, "--out", part, "--shard", f"{n}/2")
    run("answers", *SMALL, "--out", str(tmp_path / "whole"))
    out = str(tmp_path / "joined")
    assert run("merge", *parts, "--out", out).stdout == f"5 of 5 answers in {out}\n"
    joined, whole = ((tmp_path / n / "answers.jsonl").read_bytes() for n in ("joined", "whole"))
    assert sorted(joined.splitlines()) == sorted(whole.splitlines())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    home = tmp_path_factory.mktemp("two")
    run("eval", *SMALL, "-s", "block(size=4)", "-s", "standard", "--out", str(home))
    first, second = (home / f"boolean_expressions--{n}" for n in ("block-size=4", "standard"))
    rewrite(first / "grades.jsonl", correct=True)
    order = sorted(line["id"] for line in open_run(second).grades.values())
    rewrite(second / "grades.jsonl", correct=lambda line: order.index(line["id"]) > 2)
    return str(first), str(second)


def test_a_difference_is_told_in_words(two: tuple[str, str]) -> None:
    lines = run("diff", *two).stdout.splitlines()
    assert lines[:2] == [f"A: {two[0]}", f"B: {two[1]}"]
    assert lines[2].startswith("options.strategy: 'block(size=4)' in A, 'standard")
    assert "A has 100.0 % right and B 40.0 %: -60.0 points" in "\n".join(lines)
    assert "p = 0.250" in "\n".join(lines)
    assert sum("right in A, wrong in B" in line for line in lines) == 3
    assert "\n2 more: --most 3 shows them." in run("diff", *two, "--most", "1").stdout
    (told,) = records(run("diff", *two, "--json"))
    assert told["comparison"]["mcnemar"]["first_only"] == 3


def test_an_explanation_is_told_in_words(two: tuple[str, str]) -> None:
    (told,) = records(run("explain", *two, "--json"))
    assert told["divergences"]
    text = run("explain", *two).stdout
    for one in told["divergences"]:
        assert f"disagree on is that of place {one['slot']}:" in text
        assert f"at step {one['first']['step']}, p = {one['first']['probability']:.3f}" in text
    assert "It gave B's token" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("answers", "--task", "gsn", "--out", "x"), "no task 'gsn' (did you mean 'gsm'"),
        (("answers", "--items", "0", "--out", "x"), "items must be at least 1"),
        (("answers", "--shard", "2/2", "--out", "x"), "i/n"),
        (("answers", "--style", "odd", "--out", "x"), "style must be one of bare, paper"),
        (("answers", "--trace", "odd", "--out", "x"), "trace must be one of"),
        (("answers", "-s", "blok", "--out", "x"), "did you mean 'block'"),
        (("answers", "--engine", "slurm", "--out", "x"), "engine must be one of local, ray"),
        (("answers", "--workers", "2", "--out", "x"), "give --engine ray"),
        (("answers", "--engine", "ray", "--workers", "0", "--out", "x"), "workers must be"),
        (("answers", "--threads", "0", "--out", "x"), "threads must be at least 1"),
        (("answers", "-b", "0", "--out", "x"), "batch_size must be at least 1"),
        (("grade", "nowhere"), "nowhere is not a run"),
        (("diff", "nowhere", "x"), "nowhere is not a run"),
        (("explain", "nowhere", "x"), "nowhere is not a run"),
        (("merge", "nowhere", "--out", "x"), "nowhere is not a run"),
        (("merge", "nowhere"), "--out"),
        (("diff", "a", "b", "--most", "-1"), "most must be at least 0"),
    ],
)
def test_bad_input_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(*args)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'wavefront[ray]'" in refused("answers", "--engine", "ray", "--out", "x")


def test_a_run_needs_a_place_and_each_strategy_once() -> None:
    assert "--out DIR" in run("answers", code=2).stderr
    assert "given twice" in run("answers", "--out", "x", "-s", "a", "-s", "a", code=2).stderr


def test_code_is_run_only_where_that_is_accepted(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    run("answers", "--task", "code", "--items", "1", "-n", "4", "--out", out)
    from wavefront import tasks

    if not hasattr(tasks.load("code"), "executes"):  # otherwise there may be a sandbox
        assert "sandbox" in refused("grade", out)
    (told,) = records(run("grade", out, "--i-accept-unsandboxed", "--json"))
    assert told["runs"][0]["results"]["code"]["correct,none"] == 0
    (line,) = (json.loads(one) for one in (tmp_path / "run/grades.jsonl").read_text().splitlines())
    assert told["runs"][0]["results"]["code"]["sandbox"] == [line["layers"]]
    assert "code was run inside" in run("grade", out, "--i-accept-unsandboxed").stdout


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
def test_what_is_given_wins_over_a_preset(given: dict, left: dict) -> None:
    preset = {"max_new_tokens": 64, "steps": 64, "block_length": 8, "logits_eos_inf": True}
    assert over(preset, given) == left | given


def test_a_preset_sets_the_options_and_how_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wavefront import tasks

    def preset(name: str, task: str) -> dict:
        assert (name, task) == ("mine", "boolean_expressions")
        return {"strategy": "block(size=2)", "max_new_tokens": 6, "steps": 6, "style": "bare"}

    monkeypatch.setattr(tasks, "preset", preset)
    given = ("--task", "boolean_expressions", "--items", "2", "--preset", "mine")
    run("answers", *given, "--out", str(tmp_path / "a"))
    run("answers", *given, "--out", str(tmp_path / "b"), "-s", "standard", "-n", "4")
    a, b = (open_run(tmp_path / name).decides for name in "ab")
    assert (a["options"]["strategy"], a["options"]["steps"]) == ("block(size=2)", 6)
    assert b["options"]["strategy"].startswith("standard")
    assert b["options"]["steps"] == 4
    assert a["ask"]["style"] == "bare"
