"""Importing the package is quick, and so is asking for help: heavy packages come when needed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest
import typer

from wavefront.cli.app import app

HEAVY = ("torch", "transformers", "matplotlib", "numpy", "tokenizers", "safetensors", "jinja2")


def imported(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has after running the code."""
    tell = f"import sys; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    ran = [sys.executable, "-c", f"{code}\n{tell}"]
    done = subprocess.run(ran, capture_output=True, text=True, check=True)
    return eval(done.stderr.strip().splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported("import wavefront, wavefront.core.errors") == []


@pytest.mark.parametrize("arguments", ["--help", "generate --help", "--version"])
def test_help_imports_nothing_heavy(arguments: str) -> None:
    code = (
        "import sys, contextlib, wavefront.cli as cli\n"
        f"sys.argv = ['wavefront', *{arguments.split()}]\n"
        "with contextlib.suppress(SystemExit):\n    cli.main()\n"
    )
    assert imported(code) == []


@pytest.mark.parametrize("line", ["generate -s w", "eval --task g", "paper run m", "generate -m r"])
def test_completing_a_word_imports_nothing_heavy(line: str) -> None:
    code = (
        "import os, contextlib, wavefront.cli as cli\n"
        f"os.environ.update(_WAVEFRONT_COMPLETE='complete_bash', COMP_WORDS='wavefront {line}',"
        f" COMP_CWORD='{len(line.split())}')\n"
        "with contextlib.suppress(SystemExit):\n    cli.main()\n"
    )
    assert imported(code) == []


def test_the_first_help_page_imports_no_command() -> None:
    code = (
        "import sys, contextlib, wavefront.cli as cli\n"
        "sys.argv = ['wavefront', '--help']\n"
        "with contextlib.suppress(SystemExit):\n    cli.main()\n"
        "print(sorted(n for n in sys.modules if n.startswith('wavefront.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = ("app", "commands", "shell_completion", "output", "lazy_group", "usage")
    known = {
        "wavefront.cli",
        "wavefront.core",
        "wavefront.core.errors",
        *(f"wavefront.cli.{part}" for part in parts),
    }
    assert set(eval(done.stderr)) == known


def sketches(group: Any) -> list[Any]:
    """Every command that is listed before it is loaded, those of inner groups too."""
    found = []
    for sketch in group.commands.values():
        found.append(sketch)
        inner = getattr(sketch, "whole", None)
        found += sketches(inner) if hasattr(inner, "commands") else []
    return found


def test_the_line_of_a_command_is_how_its_own_page_begins() -> None:
    every = sketches(typer.main.get_command(app))
    assert len(every) >= 31
    for sketch in every:
        if not hasattr(sketch, "whole"):
            continue
        assert sketch.whole.name == sketch.name
        assert sketch.help == sketch.whole.help.partition("\n\n")[0]


def test_a_name_brings_what_it_needs_and_no_more() -> None:
    found = imported("import wavefront; wavefront.LM")
    assert "torch" in found  # so that the list above is seen to work
    assert "transformers" not in found
    assert "matplotlib" not in found


TAB = {"_WAVEFRONT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line", "most"),
    [
        (["-c", "import wavefront"], "", 0.3),
        (["-m", "wavefront", "--help"], "", 0.5),
        (["-m", "wavefront"], "wavefront generate -s w", 0.5),
        (["-m", "wavefront"], "wavefront eval --task ", 0.5),
    ],
)
def test_it_is_quick(arguments: list[str], line: str, most: float) -> None:
    """Seconds of the processor, the best of five: a busy machine says nothing of us."""
    env = {**os.environ, **(TAB | {"_TYPER_COMPLETE_ARGS": line} if line else {})}

    def spent() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(spent() for _ in range(5)) < most
