"""`wavefront demo`, on the built-in model and on an untrained one."""

from __future__ import annotations

import io
import re
from pathlib import Path
from random import Random

import pytest
from cli.test_cli_process import ESCAPE, on_terminal, program
from helpers.commands import run
from rich.console import Console

import wavefront
from wavefront import tasks
from wavefront.cli import demo, demo_compare
from wavefront.core import spec
from wavefront.models import builtin
from wavefront.strategies.tide import Tide

SMALL = ("demo", "--items", "2", "-n", "16")
trained = pytest.mark.skipif(builtin.DEFAULT == "toy", reason="no trained model is built in")


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def drawn(width: int, encoding: str = "utf-8") -> tuple[Console, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, highlight=False), file


def text_of(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.read()


@pytest.mark.slow
def test_demo_needs_no_terminal() -> None:
    done = program(*SMALL)
    assert done.stderr == ""
    assert ESCAPE not in done.stdout
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert len([line for line in lines if re.match(r"step \d+/21 ", line)]) >= 3
    for name in demo_compare.STRATEGIES:
        (row,) = [line for line in lines if re.match(rf"{name} +[0-2]/2 ", line)]
        assert re.search(r" \d+ +\d+\.\d +\d+\.\d\d  [✓✗]{2}$", row)
    assert len([line for line in lines if re.match(r" [12]  [a-z]+ ", line)]) == 2
    assert "docs/results.md" in done.stdout
    asked = tasks.load("gsm").sample(Random(demo.LIVE_SEED), split="held-out").prompt
    assert done.stdout.count(asked[:16]) == 1  # once, above the animation


@pytest.mark.slow
def test_demo_is_animated_in_a_terminal_unless_no_color() -> None:
    seen = on_terminal(*SMALL)
    assert seen.count("step ") > 5
    assert "decoding" in seen
    assert seen.rindex(f"{ESCAPE}[?25h") > seen.rindex(f"{ESCAPE}[?25l")  # the cursor is back
    assert ESCAPE not in on_terminal(*SMALL, NO_COLOR="1")


@pytest.mark.slow
@trained
def test_live_problem_is_solved() -> None:
    assert "which is right ✓" in program("demo", "--items", "1").stdout


def test_untrained_model_is_not_graded() -> None:
    shown = run("demo", "-n", "16").stdout
    assert "never trained" in shown
    assert len(re.findall(r"^step \d+/16 ", shown, re.MULTILINE)) >= 2
    for name in demo_compare.STRATEGIES:
        assert re.search(rf"^{name} +\d+ +\d+\.\d\d ", shown, re.MULTILINE)
    assert "right" not in shown


@pytest.mark.parametrize("option", ["--items", "--max-new-tokens", "--items-seed"])
def test_numbers_are_checked_before_a_model_is_loaded(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    assert f"{option[2:].replace('-', '_')} must be" in run("demo", option, "-1", code=1).stderr


def test_problems_are_held_out_seeded_and_short_enough(lm: wavefront.LM) -> None:
    def questions(seed: int) -> list[str]:
        return [one.sample.prompt for one in demo_compare.draw(lm, 14, length=400, seed=seed)]

    assert questions(3) == questions(3) != questions(4)
    problems = demo_compare.draw(lm, len(demo_compare.KINDS), length=400, seed=0)
    assert all("/held-out/" in one.sample.id for one in problems)
    assert all(len(lm.tokenizer.encode(one.sample.answer)) < 400 for one in problems)
    # If no answer fits, the shortest is taken.
    assert demo_compare.draw(lm, 1, length=2, seed=0)[0].sample.answer


def test_score_sums_the_decodes(lm: wavefront.LM) -> None:
    console, file = drawn(80)
    problems = demo_compare.draw(lm, 3, length=400, seed=0)
    demo_compare.compare(lm, console, problems, length=16)
    (row,) = [line for line in text_of(file).splitlines() if line.startswith("block ")]
    options = {"strategy": "block", "max_new_tokens": 16, "steps": 4, "eos": "stop"}
    made = [lm.generate(one.sample.prompt, **options) for one in problems]
    forwards = sum(one.forwards for one in made)
    rate = sum(len(one.tokens) for one in made) / forwards
    assert row.split()[1:3] == ["0/3", str(forwards)]
    assert row.split()[4:] == [f"{rate:.2f}", "✗✗✗"]


@pytest.mark.parametrize("width", [20, 60, 72, 80, 120, 200])
def test_rows_are_aligned_and_fit_the_width(lm: wavefront.LM, width: int) -> None:
    console, file = drawn(width)
    for number, problem in enumerate(demo_compare.draw(lm, 12, length=400, seed=0), 1):
        grade = problem.task.grade(problem.sample, "#### 1\x1b[31m 漢字漢字漢字")
        row = demo_compare._row(console, number, problem, [grade] * len(demo_compare.STRATEGIES))
        assert row.cell_len == (68 if width < 80 else min(width, demo_compare.WIDEST))
        assert ESCAPE not in row.plain
        console.print(row, soft_wrap=True)
    assert len(text_of(file).splitlines()) == 12


def test_marks_differ_in_every_encoding() -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        console, _ = drawn(80, encoding)
        marks = [demo_compare.mark(console, correct).plain for correct in (True, False)]
        assert len({mark.encode(encoding) for mark in marks}) == 2


def test_activation_is_shown_if_the_shell_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ".venv" / "bin"
    home.mkdir(parents=True)
    for name in ("activate", "wavefront"):
        (home / name).touch(mode=0o755)
    monkeypatch.setattr("sys.prefix", str(home.parent))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert demo._activation() == ["  source .venv/bin/activate"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert demo._activation() == [f"  source {home / 'activate'}"]
    monkeypatch.setenv("PATH", str(home))
    assert demo._activation() == []


def test_closing_notes_fit_80_columns() -> None:
    assert all(len(line) <= 80 for line in [*demo.NOTE.splitlines(), *demo.YOUR_TURN.splitlines()])


def test_demo_uses_the_example_of_tide() -> None:
    assert demo_compare.STRATEGIES["tide"] == Tide.example
    assert Tide.example in run("list", "strategies", "tide").stdout
    assert repr(spec.resolve(Tide.example, "strategies")).startswith("tide(")
