"""The commands of README run as printed, with the built-in models, within a minute on two cores."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pages import ROOT, blocks, commands

# A minute on two cores. CPU time does not depend on what else the machine does.
LIMIT = 120.0
HANGS = 900.0  # seconds of the wall clock
COMMANDS = [
    one
    for block in blocks(ROOT / "README.md", "bash")
    for one in commands(block.text, {})
    if one.words[0] == "wavefront"
]
GPU = [one for one in COMMANDS if "GSAI-ML/" in one.text]


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_command_that_needs_a_gpu_says_so() -> None:
    (block,) = (one for one in blocks(ROOT / "README.md", "bash") if "GSAI-ML/" in one.text)
    lines = [line for line in block.text.splitlines() if "GSAI-ML/" in line]
    assert len(lines) == len(GPU) == 1
    assert all("# needs a GPU" in line for line in lines)


@pytest.mark.slow
def test_commands_run_as_printed_within_a_minute(tmp_path: Path) -> None:
    """Run the commands in order in one folder: later ones read the files of earlier ones."""
    ran = 0
    for one in COMMANDS:
        if one in GPU or one.words[1] == "serve":
            continue
        before = cpu_seconds()
        process = start(one.words, tmp_path)
        printed, _ = process.communicate(timeout=HANGS)
        assert process.returncode == 0, (one.text, printed)
        assert printed.strip(), one.text
        assert cpu_seconds() - before < LIMIT, one.text
        ran += 1
    assert ran >= 10


@pytest.mark.slow
def test_server_of_readme_starts(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    (serve,) = (one for one in COMMANDS if one.words[1] == "serve")
    process = start([*serve.words, "--port", "0"], tmp_path)  # another server may use the port
    try:
        assert process.stdout is not None
        assert any("http://" in line for line in process.stdout)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANGS)
