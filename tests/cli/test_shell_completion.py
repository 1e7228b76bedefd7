"""Shell completion: the suggestions for a half-written word, in typer's protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from wavefront import tasks
from wavefront.cli import eval_options, train
from wavefront.cli.app import PANELS, app
from wavefront.core import reading, spec
from wavefront.evaluation import grades
from wavefront.server import request_models
from wavefront.storage import hub
from wavefront.tasks import base


def ask(shell: str, line: str) -> str:
    """Return what the shell reads after Tab at the end of the line."""
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


def test_each_shell_gets_its_own_format() -> None:
    assert ask("bash", "wavefront generate -s wav") == "wavefront\n"
    assert ask("zsh", "wavefront generate -s wav").startswith('_arguments \'*: :(("wavefront":"')
    (line,) = ask("fish", "wavefront generate -s wav").splitlines()
    assert line.startswith("wavefront\tselect on the front")


def test_no_explanation_takes_two_lines() -> None:
    """fish takes every line for a suggestion."""
    for line, known in (
        ("wavefront generate -s ", {*spec.names("strategies")}),
        ("wavefront ", {name for panel in PANELS.values() for name in panel}),
    ):
        shown = ask("fish", line).splitlines()
        assert {one.partition("\t")[0] for one in shown} == known
        assert len(shown) == len(known)
    assert all(one.startswith("--") for one in ask("fish", "wavefront serve --").splitlines())


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("generate -s ", spec.names("strategies")),
        ("compare hello --strategy ", spec.names("strategies")),
        ("tune gsm --candidate ", spec.names("strategies")),
        ("list ", ("strategies", "selectors", "caches", "models", "tasks", "all")),
        ("generate --cache ", spec.names("caches")),
        ("eval run --task ", (*tasks.names(), *tasks.benchmarks(), *tasks.judged_tasks())),
        ("tune ", (*tasks.names(), *tasks.benchmarks())),
        ("generate --priority ", reading.PRIORITIES),
        ("generate --eos ", reading.EOS_POLICIES),
        ("generate --sampling ", reading.SAMPLING),
        ("generate --alg ", get_args(request_models.Algorithm)),
        ("generate --remasking ", get_args(request_models.Remasking)),
        ("eval run --style ", base.STYLES),
        ("eval run --preset ", tasks.presets()),
        ("eval run --engine ", eval_options.ENGINES),
        ("eval diff a b --verdict ", grades.VERDICTS),
        ("train ", tuple(train.ACTIONS)),
        ("trace ", ("record", "show", "draw", "replay", "export", "fork")),
    ],
)
def test_suggestions_are_all_values_that_exist(line: str, known: Any) -> None:
    assert sorted(suggested(f"wavefront {line}")) == sorted(known)


def test_models_are_built_in_names_and_published_ids() -> None:
    found = suggested("wavefront generate -m ")
    assert {*hub.builtin_checkpoints(), "toy", "GSAI-ML/LLaDA-8B-Instruct"} <= {*found}


def test_models_of_bench_include_its_shapes() -> None:
    from wavefront.bench import model_shapes

    assert {*model_shapes.SHAPES} <= {*suggested("wavefront bench -m ")}


def test_paths_are_completed_by_the_shell() -> None:
    assert suggested("wavefront trace show a") == []
    assert suggested("wavefront generate -m ./") == []
    assert ask("zsh", "wavefront trace show a") == "_files\n"


def test_options_are_completed_but_not_aliases() -> None:
    assert suggested("wavefront generate --max") == ["--max-new-tokens"]
    assert suggested("wavefront generate --gen") == []


def test_bash_completes_after_installation(tmp_path: Path) -> None:
    """Install completion into a home directory and complete a word in a real shell."""
    command = tmp_path / "bin" / "wavefront"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wavefront "$@"\n')
    command.chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}

    def bash(script: str) -> str:
        ran = ["bash", "--norc", "-c", script]
        env = {**os.environ, **home}
        return subprocess.run(ran, capture_output=True, text=True, check=True, env=env).stdout

    # With a single command, bash would exec it and typer would find no shell.
    assert "bash completion installed" in bash("wavefront --install-completion; true")
    asked = bash(
        "source ~/.bashrc; COMP_WORDS=(wavefront generate -s wav); COMP_CWORD=3;"
        '_wavefront_completion wavefront; echo "${COMPREPLY[@]}"; complete -p wavefront'
    )
    assert asked.splitlines()[0] == "wavefront"
    assert "-F _wavefront_completion wavefront" in asked


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_completion_script(shell: str, tmp_path: Path) -> None:
    # typer then takes the shell's name instead of detecting the parent process.
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    ran = [sys.executable, "-m", "wavefront", "--install-completion", shell]
    done = subprocess.run(ran, capture_output=True, text=True, check=True, env=env)
    assert f"{shell} completion installed" in done.stdout
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(f"_WAVEFRONT_COMPLETE=complete_{shell}" in text for text in written)
