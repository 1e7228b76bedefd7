"""Importing the package and printing help are fast, because heavy packages are imported late."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from helpers.commands import all_commands

from wavefront.cli.app import PANELS

HEAVY = ("torch", "transformers", "matplotlib", "numpy", "tokenizers", "safetensors", "jinja2")


def imported(code: str) -> list[str]:
    """Return the heavy packages that a fresh interpreter has imported after running the code."""
    tell = f"import sys; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    ran = [sys.executable, "-c", f"{code}\n{tell}"]
    done = subprocess.run(ran, capture_output=True, text=True, check=True)
    return eval(done.stderr.strip().splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported("import wavefront, wavefront.core.errors") == []


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_import_asks_for_threads_that_do_not_spin(given: str | None, found: str) -> None:
    """torch reads the variable when it is imported, and a choice of the user stays."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= {} if given is None else {"OMP_WAIT_POLICY": given}
    code = "import os, wavefront; print(os.environ['OMP_WAIT_POLICY'])"
    ran = [sys.executable, "-c", code]
    done = subprocess.run(ran, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == found


@pytest.mark.parametrize("arguments", ["--help", "generate --help", "eval run --help", "--version"])
def test_help_imports_nothing_heavy(arguments: str) -> None:
    code = (
        "import sys, contextlib, wavefront.cli as cli\n"
        f"sys.argv = ['wavefront', *{arguments.split()}]\n"
        "with contextlib.suppress(SystemExit):\n    cli.main()\n"
    )
    assert imported(code) == []


@pytest.mark.parametrize("line", ["generate -s w", "eval run --task g", "list s", "generate -m r"])
def test_completion_imports_nothing_heavy(line: str) -> None:
    code = (
        "import os, contextlib, wavefront.cli as cli\n"
        f"os.environ.update(_WAVEFRONT_COMPLETE='complete_bash', COMP_WORDS='wavefront {line}',"
        f" COMP_CWORD='{len(line.split())}')\n"
        "with contextlib.suppress(SystemExit):\n    cli.main()\n"
    )
    assert imported(code) == []


def test_first_help_page_imports_no_command() -> None:
    code = (
        "import sys, contextlib, wavefront.cli as cli\n"
        "sys.argv = ['wavefront', '--help']\n"
        "with contextlib.suppress(SystemExit):\n    cli.main()\n"
        "print(sorted(n for n in sys.modules if n.startswith('wavefront.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = ("app", "command", "output")
    known = {"wavefront.cli", "wavefront.core", "wavefront.core.errors"}
    known |= {f"wavefront.cli.{part}" for part in parts}
    assert set(eval(done.stderr)) == known


def test_help_lines_are_the_docstrings_of_the_commands() -> None:
    lines = {name: line for panel in PANELS.values() for name, (_, line) in panel.items()}
    for name, line in lines.items():
        (_, command), *_ = all_commands(name)
        assert command.name == name
        assert command.help.partition("\n\n")[0] == line


@pytest.mark.slow
def test_using_a_name_imports_only_what_it_needs() -> None:
    found = imported("import wavefront; wavefront.LM")
    assert "torch" in found  # so the check above can fail
    assert "transformers" not in found
    assert "matplotlib" not in found


TAB = {"_WAVEFRONT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line", "limit"),
    [
        (["-c", "import wavefront"], "", 0.3),
        (["-m", "wavefront", "--help"], "", 0.5),
        (["-m", "wavefront", "generate", "--help"], "", 0.5),
        (["-m", "wavefront"], "wavefront generate -s w", 0.5),
        (["-m", "wavefront"], "wavefront eval run --task ", 0.5),
    ],
)
def test_import_help_and_completion_are_fast(arguments: list[str], line: str, limit: float) -> None:
    """Compare CPU seconds, the best of five, so that other load does not matter."""
    env = {**os.environ, **(TAB | {"_TYPER_COMPLETE_ARGS": line} if line else {})}

    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(cpu_seconds() for _ in range(5)) < limit
