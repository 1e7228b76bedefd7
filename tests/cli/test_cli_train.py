"""`wavefront train`: its help page, and how it calls the trainer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import run

from wavefront.cli import train

HEAVY = """
import sys
from wavefront.cli.app import app
try:
    app(sys.argv[1:], prog_name="wavefront")
finally:
    print("torch" in sys.modules)
"""


def test_help_lists_the_actions_and_fits_80_columns() -> None:
    page = run("train", "--help").stdout
    assert all(len(line) <= 80 for line in page.splitlines())
    assert all(f"   {action} " in page for action in train.ACTIONS)
    assert run("train", code=2).stdout.strip() == page.strip()


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"]])
def test_help_needs_no_torch(args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAVY, "train", *args], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("False\n")


def test_help_lists_every_action_of_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    from wavefront.train.__main__ import main

    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"\{(.*?)\}", capsys.readouterr().out)[0]
    assert set(listed.split(",")) == set(train.ACTIONS)


@pytest.mark.parametrize("action", train.ACTIONS)
def test_help_of_an_action_is_written_in_sentences(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page looks like those of the other commands, which typer writes."""
    from wavefront.train.command import main

    with pytest.raises(SystemExit):
        main([action, "--help"])
    page = capsys.readouterr().out
    assert page.startswith(f"Usage: wavefront train {action} [OPTIONS]\n")
    assert all(len(line) <= 80 for line in page.splitlines())
    assert not re.search(r"[(\[]default|\[\]", page)
    options = re.split(r"\n  (?=--)", page.partition("Options:\n")[2].rstrip())
    for option in options:
        text = re.match(r"\s*--.*?(?:  |\n)\s*([A-Z].*\.)$", option, re.DOTALL)
        assert text is not None, option


def test_help_of_an_action_states_defaults_and_long_comments() -> None:
    shown = run("train", "adapt", "--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "╭─ Options ─" in shown, "a panel, as on the pages of the other commands"
    page = " ".join(re.sub(r"│|--no-[\w-]+", " ", shown).split())
    assert "--held-out N Number of held-out prompts. Default: 1024." in page
    assert "next to the model, to score texts. Default: on." in page
    assert "so that training takes this many minutes, estimated from the first steps." in page
    assert "file. Required." in page


def test_options_on_the_help_page_exist() -> None:
    page = run("train", "run", "--help").stdout + run("train", "adapt", "--help").stdout
    for option in re.findall(r"--[a-z][a-z-]*", train.EXAMPLES.partition("Main options")[2]):
        assert option in page or option in ("--size",), option


def test_tokenizer_is_trained(tmp_path: Path) -> None:
    args = ["--size", "300", "--samples", "200", "--mixture", "boolean_expressions"]
    result = run("train", "tokenizer", "--out", str(tmp_path), *args)
    assert "300 tokens" in result.stdout
    assert (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["rum"], 2, "did you mean 'run'"),
        (["--out", "x"], 2, "no option --out"),
        (["run", "--out", "x", "--tokenizer", "y", "--steps", "0"], 1, "steps must be"),
        (["run", "--out", "x", "--tokenizer", "y", "--steps", "two"], 2, "--steps"),
        (["run", "--out", "x", "--tokenizer", "y"], 1, "Give the length of training: steps,"),
        (
            ["run", "--out", "x", "--tokenizer", "y", "--steps", "1", "--minutes", "1"],
            1,
            "either steps or minutes, not both",
        ),
        (["adapt", "--original", "x", "--out", "y"], 1, "needs --steps or --train-minutes"),
        (
            ["adapt", "--original", "x", "--out", "y", "--minutes", "5"],
            1,
            "--minutes only limits how long this command runs",
        ),
    ],
)
def test_wrong_input_gets_one_sentence(args: list[str], code: int, words: str) -> None:
    assert words in run("train", *args, code=code).stderr
