"""Shell completion: what a shell is told after a half-written word, by typer's protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from wavefront import paper, tasks
from wavefront.bench import model_shapes
from wavefront.cli import eval_options, shell_completion
from wavefront.cli.app import app
from wavefront.core import reading, spec
from wavefront.evaluation import grades
from wavefront.server import request_models
from wavefront.storage import hub
from wavefront.tasks import base


def ask(shell: str, line: str) -> str:
    """What the shell reads when TAB is hit at the end of the line."""
    variables = {"_WAVEFRONT_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        variables |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    result = CliRunner().invoke(app, [], env=variables, prog_name="wavefront")
    assert result.exit_code == 0, result.output
    return result.stdout


def suggested(line: str) -> list[str]:
    return ask("bash", line).split()


def test_every_shell_is_answered_in_its_own_way() -> None:
    assert ask("bash", "wavefront generate -s wav") == "wavefront\n"
    assert ask("zsh", "wavefront generate -s wav").startswith('_arguments \'*: :(("wavefront":"')
    (line,) = ask("fish", "wavefront generate -s wav").splitlines()
    assert line.startswith("wavefront\tchoose on the front")


def test_no_explanation_is_long_enough_to_be_broken() -> None:
    """fish reads every line as a suggestion."""
    for line, known in (
        ("wavefront generate -s ", {*spec.names("strategies")}),
        ("wavefront ", {*typer.main.get_command(app).commands}),  # pyright: ignore[reportAttributeAccessIssue]
    ):
        told = ask("fish", line).splitlines()
        assert {one.partition("\t")[0] for one in told} == known
        assert len(told) == len(known)
    assert all(one.startswith("--") for one in ask("fish", "wavefront serve --").splitlines())


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("generate -s ", spec.names("strategies")),
        ("compare hello --strategy ", spec.names("strategies")),
        ("tune gsm --candidate ", spec.names("strategies")),
        ("strategies ", (*spec.names("strategies"), *spec.names("selectors"))),
        ("generate --cache ", spec.names("caches")),
        ("eval --task ", (*tasks.names(), *tasks.benchmarks())),
        ("tune ", (*tasks.names(), *tasks.benchmarks())),
        ("paper run ", paper.NAMES),
        ("generate --priority ", reading.PRIORITIES),
        ("generate --eos ", reading.EOS_POLICIES),
        ("generate --sampling ", reading.SAMPLING),
        ("generate --alg ", get_args(request_models.Algorithm)),
        ("generate --remasking ", get_args(request_models.Remasking)),
        ("eval --style ", base.STYLES),
        ("eval --preset ", tasks.presets()),
        ("eval --engine ", eval_options.ENGINES),
        ("diff a b --verdict ", grades.VERDICTS),
        ("train ", ("run", "tokenizer", "loss", "export", "speed")),
        ("trace ", ("record", "show", "draw", "replay", "export", "fork")),
    ],
)
def test_what_is_suggested_is_what_there_is(line: str, known: Any) -> None:
    assert sorted(suggested(f"wavefront {line}")) == sorted(known)


def test_models_are_the_built_in_ones_and_published_ids() -> None:
    found = suggested("wavefront generate -m ")
    assert {*hub.builtin_checkpoints(), "toy", "GSAI-ML/LLaDA-8B-Instruct"} <= {*found}
    assert {*model_shapes.SHAPES} <= {*suggested("wavefront bench -m ")}


def test_a_path_is_left_to_the_shell() -> None:
    assert suggested("wavefront trace show a") == []
    assert suggested("wavefront generate -m ./") == []
    assert ask("zsh", "wavefront trace show a") == "_files\n"


def test_options_complete_and_aliases_stay_hidden() -> None:
    assert suggested("wavefront generate --max") == ["--max-new-tokens"]
    assert suggested("wavefront generate --gen") == []


def test_every_entry_of_the_table_serves_a_command() -> None:
    served: set[str] = set()

    def walk(group: Any) -> None:
        for sketch in group.commands.values():
            if not hasattr(sketch, "whole"):
                served.update({"run_experiment.name", *(one.name for one in sketch.params)})
                continue
            if hasattr(sketch.whole, "commands"):
                walk(sketch.whole)
                continue
            function = sketch.entry.where.partition(".")[2]
            for one in sketch.whole.params:
                own = f"{function}.{one.name}"
                served.add(own if own in shell_completion.BY_NAME else one.name)

    walk(typer.main.get_command(app))
    assert {*shell_completion.BY_NAME} <= served


def test_bash_completes_after_it_was_installed(tmp_path: Path) -> None:
    """The real thing: installed into a home, and asked by a real shell."""
    command = tmp_path / "bin" / "wavefront"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wavefront "$@"\n')
    command.chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}

    def bash(script: str) -> str:
        ran = ["bash", "--norc", "-c", script]
        env = {**os.environ, **home}
        return subprocess.run(ran, capture_output=True, text=True, check=True, env=env).stdout

    # More than one command, or bash becomes the program and there is no shell to be found.
    assert "bash completion installed" in bash("wavefront --install-completion; true")
    asked = bash(
        "source ~/.bashrc; COMP_WORDS=(wavefront paper run ma); COMP_CWORD=3;"
        '_wavefront_completion wavefront; echo "${COMPREPLY[@]}"; complete -p wavefront'
    )
    assert asked.splitlines()[0] == "main"
    assert "-F _wavefront_completion wavefront" in asked


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(shell: str, tmp_path: Path) -> None:
    # So that typer takes the shell's name, and does not look for the one that runs us.
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    ran = [sys.executable, "-m", "wavefront", "--install-completion", shell]
    done = subprocess.run(ran, capture_output=True, text=True, check=True, env=env)
    assert f"{shell} completion installed" in done.stdout
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(f"_WAVEFRONT_COMPLETE=complete_{shell}" in text for text in written)
