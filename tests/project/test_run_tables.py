"""`runs/experiments.py --tables`: tables that stop, resume, travel and make their pages."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import load_script

import wavefront
from wavefront import paper
from wavefront.cli.app import app

experiments: Any = load_script("experiments")
LIST = """
[[small]]
name = "some-steps"
run = "steps -m toy --task boolean_expressions -b 2"
minutes = 1

[[small]]
name = "some-priority"
run = "priority -m toy --task boolean_expressions -b 2"
minutes = 0.5

[[small]]
name = "some-constraint"
run = "constraint -m toy --task boolean_expressions -b 2 -s standard"
minutes = 0.5
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tables.toml").write_text(LIST)
    monkeypatch.setattr(experiments, "LISTS", tmp_path / "tables.toml")
    monkeypatch.setattr(experiments, "TABLES", tmp_path / "tables")
    monkeypatch.setattr(experiments, "RESULTS", tmp_path / "pages")
    return tmp_path


def test_every_list_names_experiments_and_valid_strategies() -> None:
    lists = experiments.tomllib.loads(experiments.LISTS.read_text("utf-8"))
    assert {*lists} == {"tale", "cost", "qwen"}
    from typer.testing import CliRunner

    for name in lists:
        found = experiments.read_list(name)
        assert len({one.name for one in found}) == len(found)
        for one in found:
            experiment, *options = experiments.shlex.split(one.run)
            assert experiment in paper.names()
            specs = [options[n + 1] for n, word in enumerate(options) if word == "-s"]
            scale = paper.find(experiment).scale(strategies=tuple(specs) or None)
            assert scale.strategies or not specs
            asked = CliRunner().invoke(app, ["paper", "run", experiment, *options, "--help"])
            assert asked.exit_code == 0, asked.output
            assert one.minutes > 0


@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_every_strategy_of_a_list_accepts_its_fewest_steps() -> None:
    """A refusal would come only after the strategies before it were decoded."""
    lm = wavefront.load("toy")
    for name in ("tale", "cost", "qwen"):
        for one in experiments.read_list(name):
            experiment, *options = experiments.shlex.split(one.run)
            found = dict(pairwise(options))  # the values of options that are given once
            specs = tuple(b for a, b in pairwise(options) if a == "-s") or None
            module = import_module(f"wavefront.paper.{experiment.replace('-', '_')}")
            scale = paper.find(experiment).scale(strategies=specs)
            length = int(found.get("-n", 160))
            fewest = int(found.get("--steps", length)) // max(getattr(module, "RATIOS", (1,)))
            for spec in scale.strategies:
                if "{" not in spec:
                    lm.plan({"strategy": spec, "max_new_tokens": length, "steps": fewest})


def test_unknown_lists_and_tables_are_named(home: Path) -> None:
    with pytest.raises(SystemExit, match="has no list 'big'; there are: small"):
        experiments.read_list("big")
    with pytest.raises(SystemExit, match="The list small has no table other"):
        experiments.read_list("small", ["other"])


def test_no_table_begins_when_the_time_is_up(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments.main(["--tables", "small", "--minutes", "0"])
    said = capsys.readouterr().out
    assert "some-steps: not begun, estimated at 1 minutes" in said
    assert "Run the same command again to continue." in said


@pytest.mark.slow
def test_tables_stop_resume_travel_and_make_pages(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--", "--items", "4", "-n", "12"]
    real = experiments.run_command
    monkeypatch.setattr(experiments, "run_command", lambda args, seconds: real(args, seconds=0.2))
    experiments.main(["--tables", "small", "--minutes", "5", *few])
    assert "some-steps: stopped after" in capsys.readouterr().out
    monkeypatch.setattr(experiments, "run_command", real)
    experiments.main(["--tables", "small", "--pack", str(home / "out"), *few])
    said = capsys.readouterr().out
    assert "some-priority: done" in said
    assert "All tables are done." in said
    experiments.main(["--tables", "small", *few])
    assert capsys.readouterr().out.count(": done, ") == 3

    # On another machine there are only the packed results.
    shutil.rmtree(home / "tables")
    parts = sorted((home / "out").glob("small.tar.gz.*"))
    assert all(file.stat().st_size <= experiments.PART for file in parts)
    joined = b"".join(file.read_bytes() for file in parts)
    subprocess.run(["tar", "xz", "-C", "/"], input=joined, check=True)
    assert {file.name for file in (home / "tables" / "some-steps").iterdir()} == {
        "results.jsonl", "done", "runs",
    }  # fmt: skip
    monkeypatch.setattr(
        experiments, "read_list", lambda name, chosen=(): [
            one._replace(run=f"{one.run} --items 4 -n 12") for one in real_list(home)
        ],
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        experiments.main(["--tables", "small", "--pages"])
    assert ended.value.code == 0
    page = (home / "pages" / "some-steps" / "summary.md").read_text("utf-8")
    assert "# Correct answers by number of steps" in page
    for name in ("command", "commit", "models", "items of each task", "device"):
        assert f"\n* {name}: `" in page
    # Whether an answer was valid travels with the results; the answers themselves do not.
    page = (home / "pages" / "some-constraint" / "summary.md").read_text("utf-8")
    assert "| final |" in page
    assert (home / "pages" / "some-priority" / "priority.svg").is_file()


@pytest.mark.slow
def test_packed_answers_are_graded_elsewhere(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--", "--items", "4", "-n", "12"]
    experiments.main(["--tables", "small", "some-steps", *few])
    table = home / "tables" / "some-steps"
    for file in (*table.rglob("grades.jsonl"), table / "done", table / "results.jsonl"):
        file.unlink()  # as on a machine that cannot grade
    experiments.main(["--tables", "small", "some-steps", "--minutes", "0", "--pack", str(home)])
    shutil.rmtree(home / "tables")
    joined = b"".join(file.read_bytes() for file in sorted(home.glob("small.tar.gz.*")))
    subprocess.run(["tar", "xz", "-C", "/"], input=joined, check=True)
    answers = {file: file.read_bytes() for file in table.rglob("answers.jsonl")}
    assert answers
    experiments.main(["--tables", "small", "some-steps", *few])
    assert "some-steps: done" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in table.rglob("answers.jsonl")} == answers


def real_list(home: Path) -> list[Any]:
    lists = experiments.tomllib.loads((home / "tables.toml").read_text("utf-8"))
    return [experiments.PlannedTable(**one) for one in lists["small"]]


def test_large_results_are_cut_into_parts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "PART", 100)
    table = experiments.read_list("small")[0]
    table.home.mkdir(parents=True)
    (table.home / "results.jsonl").write_text("".join(f"{n * n}\n" for n in range(200)))
    parts = experiments.pack_results("small", [table], home / "out")
    assert len(parts) > 2
    assert [file.name for file in parts[:2]] == ["small.tar.gz.00", "small.tar.gz.01"]
    assert len(experiments.pack_results("small", [], home / "out")) < len(parts)  # no old parts
