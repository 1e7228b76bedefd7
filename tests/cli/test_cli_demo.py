"""`wavefront demo`: a story, the same story under three strategies, and small problems."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cli.test_cli_process import ESCAPE, on_terminal, program
from helpers.commands import run
from rich.console import Console

import wavefront
from wavefront.analysis.quality import QualityJudge
from wavefront.cli import demo, demo_problems, demo_stories
from wavefront.cli.demo_stories import Story
from wavefront.completion import Completion
from wavefront.models import builtin
from wavefront.tasks.base import Ask
from wavefront.tasks.stories import Stories

SMALL = ("demo", "--items", "1", "-n", "16")
OPENING = "Once upon a time there was a little fox who"


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


@pytest.fixture(scope="module")
def tale() -> wavefront.LM:
    return wavefront.load("tale")


def drawn(width: int, encoding: str = "utf-8") -> tuple[Console, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    return Console(file=file, width=width, highlight=False), file


def text_of(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.read()


# The command.


@pytest.mark.slow
def test_demo_tells_a_story_and_solves_problems() -> None:
    """The toy solves the problems, which keeps the test fast."""
    lines = run(*SMALL).stdout.splitlines()
    assert lines[0].startswith("tale: a model with 7.3 M parameters that writes children's stories")
    assert "does not chat" in " ".join(lines[:2])
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines[:-6])
    assert len([line for line in lines if re.match(r"step \d+/16 ", line)]) >= 3
    titles = [line for line in lines if line.split() == list(demo_stories.PAPER)]
    assert len(titles) == 2
    rows = [line.split() for line in lines if re.match(r"(standard|block|wavefront) +[14] ", line)]
    assert [(row[0], row[1]) for row in rows] == [
        (name, rate) for rate in "14" for name in demo_stories.PAPER
    ]
    assert all(int(row[2]) <= 16 // int(row[1]) for row in rows)
    (original,) = [line for line in lines if line.startswith("original ")]
    assert len(original.split()) == 5
    for name in demo_stories.PAPER:
        assert any(re.match(rf"{name} +0/1 .*[✓✗]$", line) for line in lines)
    whole = "\n".join(lines)
    assert "One story is an anecdote" in whole
    assert whole.count("docs/results.md") == 2


@pytest.mark.slow
def test_demo_needs_no_terminal() -> None:
    done = program(*SMALL)
    assert done.stderr == ""
    assert ESCAPE not in done.stdout
    assert "ripple: a model with 19 M parameters" in done.stdout


@pytest.mark.slow
def test_demo_is_animated_in_a_terminal_unless_no_color() -> None:
    seen = on_terminal(*SMALL)
    assert seen.count("step ") > 5
    assert "decoding" in seen
    assert seen.rindex(f"{ESCAPE}[?25h") > seen.rindex(f"{ESCAPE}[?25l")  # the cursor is back
    assert ESCAPE not in on_terminal(*SMALL, NO_COLOR="1")


@pytest.mark.slow
def test_whole_demo_takes_less_than_90_seconds_of_two_cores() -> None:
    """Count processor time, because the machine may be busy with other work."""
    code = (
        "import resource, sys; from wavefront.cli import main\n"
        "sys.argv = ['wavefront', 'demo']\n"
        "try:\n    main()\n"
        "finally:\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    print(used.ru_utime + used.ru_stime, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stderr.splitlines()[-1]) / 2 < 90
    (row,) = [line for line in done.stdout.splitlines() if re.match(r"wavefront +\d+/12 ", line)]
    assert int(row.split()[1].partition("/")[0]) >= 9


@pytest.mark.slow
def test_demo_can_be_interrupted() -> None:
    command = [sys.executable, "-m", "wavefront", "demo"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().startswith("tale: ")
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("option", ["--items", "--max-new-tokens", "--items-seed"])
def test_numbers_are_checked_before_a_model_is_loaded(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    assert f"{option} must be" in run("demo", option, "-1", code=1).stderr


# The stories.


def story(tale: wavefront.LM, name: str, text: str, reason: str = "length") -> Story:
    tokens = tale.tokenizer.encode(text, inside=True)
    return Story(name, 1, Completion(text, tokens, reason, 9, 90, 10, 9))


def test_opening_is_the_first_held_out_one_unless_a_seed_is_given() -> None:
    first, *_, last = Stories().items(Ask())
    assert demo_stories.draw_opening(0) == first
    assert demo_stories.draw_opening(3) == demo_stories.draw_opening(3)
    assert len({demo_stories.draw_opening(seed).id for seed in range(5)} - {last.id}) >= 4


@pytest.mark.slow
def test_batched_stories_equal_lone_decodes(tale: wavefront.LM) -> None:
    for rate in (1, 4):
        stories = demo_stories.continue_story(
            tale, OPENING, demo_stories.PAPER, length=12, tokens_per_step=rate
        )
        for name, found in zip(demo_stories.PAPER, stories, strict=True):
            alone = tale.generate(OPENING, strategy=name, max_new_tokens=12, steps=12 // rate)
            assert (found.name, found.tokens_per_step) == (name, rate)
            assert (found.made.tokens, found.made.text) == (alone.tokens, alone.text)
            assert (found.made.forwards, found.made.finish_reason) == (
                alone.forwards,
                alone.finish_reason,
            )


def test_table_has_the_quality_of_every_story_and_of_the_original(tale: wavefront.LM) -> None:
    opening = demo_stories.draw_opening(0)
    stories = [
        story(tale, "standard", " lot.", "stop"),
        story(tale, "block", " big big big big big big"),
    ]
    console, file = drawn(80)
    demo_stories.print_qualities(tale, console, opening, stories=stories, length=8)
    lines = text_of(file).splitlines()
    assert len(lines) == 5
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[-2] for line in (lines[0], lines[1])] == ["nats,", "64"]
    assert "  first 64" in lines[1]
    judge = QualityJudge.load("tale")
    short, long = judge.measure([opening.prompt] * 2, [one.made for one in stories])
    text, finished = opening.extra["text"], opening.extra["finished"]
    scored = judge.original(opening.prompt, text, length=8, finished=finished)
    (own,) = judge.measure_texts([scored])
    assert own.length == 8
    for line, quality in zip(lines[2:], (short, long, own), strict=True):
        cells = [str(quality.length), f"{quality.nats:.2f}", f"{quality.first_nats:.2f}"]
        cells += [] if quality.distinct is None else [f"{quality.distinct:.2f}"]
        assert line.split()[-len(cells) :] == cells
    assert lines[2].split()[:3] == ["standard", "1", "9"]
    assert short.distinct is None
    assert lines[4].startswith("original ")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_stories_fit_the_width(tale: wavefront.LM, width: int, encoding: str) -> None:
    console, file = drawn(width, encoding)
    names = demo_stories.PAPER
    texts = ("word " * 40, "one\ntwo\x1b[31m", "supercalifragilistic" * 6)
    reasons = ("length", "stop", "length")
    stories = [story(tale, *parts) for parts in zip(names, texts, reasons, strict=True)]
    demo_stories.print_stories(console, stories)
    lines = text_of(file).splitlines()
    assert all(len(line) <= min(width, demo_stories.WIDEST) for line in lines)
    assert all(line == line.rstrip() for line in lines)
    shown = "\n".join(lines)
    assert ESCAPE not in shown
    assert ("∎" if encoding == "utf-8" else "[end]") in shown
    assert shown.count("word") == 40
    assert (lines[0].split() == [*names]) == (width > 40)


# The problems.


def test_problems_are_held_out_seeded_and_short_enough(lm: wavefront.LM) -> None:
    def draw(count: int, **options: int) -> list[demo_problems.Problem]:
        return demo_problems.draw_problems(lm, count, **{"length": 400, "seed": 0} | options)

    def questions(seed: int) -> list[str]:
        return [one.sample.prompt for one in draw(14, seed=seed)]

    assert questions(3) == questions(3) != questions(4)
    problems = draw(len(demo_problems.KINDS))
    assert all("/held-out/" in one.sample.id for one in problems)
    assert all(len(lm.tokenizer.encode(one.sample.answer)) < 400 for one in problems)
    # If no answer fits, the shortest is taken.
    assert draw(1, length=2)[0].sample.answer


def test_score_sums_the_decodes(lm: wavefront.LM) -> None:
    console, file = drawn(80)
    problems = demo_problems.draw_problems(lm, 3, length=400, seed=0)
    demo_problems.compare_problems(lm, console, problems, length=16)
    lines = text_of(file).splitlines()
    assert lines[1] == "3 small problems, which toy has never seen"
    (row,) = [line for line in lines if line.startswith("block ")]
    options = {"strategy": "block", "max_new_tokens": 16, "steps": 4, "eos": "stop"}
    made = [lm.generate(one.sample.prompt, **options) for one in problems]
    forwards = sum(one.forwards for one in made)
    rate = sum(len(one.tokens) for one in made) / forwards
    assert row.split()[1:3] == ["0/3", str(forwards)]
    assert row.split()[4:] == [f"{rate:.2f}", "✗✗✗"]


def test_marks_differ_in_every_encoding() -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        console, _ = drawn(80, encoding)
        marks = [demo_problems.mark(console, correct).plain for correct in (True, False)]
        assert len({mark.encode(encoding) for mark in marks}) == 2


# The closing lines.


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


def test_notes_fit_80_columns() -> None:
    notes = (demo.ABOUT_QUALITY, demo.ABOUT_PROBLEMS, demo.YOUR_TURN)
    assert all(len(line) <= 80 for note in notes for line in note.splitlines())


def test_every_built_in_model_says_what_it_is() -> None:
    assert set(builtin.SUMMARIES) == set(builtin.names())
    for name, summary in builtin.SUMMARIES.items():
        assert summary in run("list", "models").stdout
        if name == "toy":
            continue
        model = wavefront.load(name, device="cpu").model
        assert isinstance(model, torch.nn.Module)
        millions = sum(part.numel() for part in model.parameters()) / 1e6
        stated = re.search(r"with ([\d.]+) M parameters", summary)
        assert stated is not None
        assert float(stated[1]) == pytest.approx(millions, rel=0.03)
