"""The processes that a process started, read from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import wavefront

ROOT = Path(wavefront.__file__).parents[1]


class Started(NamedTuple):
    """A process and its start time, which tells it from a later one with the same pid."""

    pid: int
    time: int


def descendants(pid: int) -> set[Started]:
    """Return the children of a process, their children, and so on."""
    found: set[Started] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in file.read_text().split()]
        except OSError:  # the process ended
            continue
        for child in children:
            if (stat := _stat(child)) is not None:
                found |= {Started(child, int(stat[19])), *descendants(child)}
    return found


def alive(processes: set[Started]) -> set[Started]:
    """Return those of the processes that still run."""
    stats = {one: _stat(one.pid) for one in processes}
    return {
        one
        for one, stat in stats.items()
        if stat is not None and stat[0] != "Z" and int(stat[19]) == one.time
    }


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def kill_and_count_survivors(
    command: list[str], *, children: int, wait: float = 0.5, seconds: float = 2.0
) -> int:
    """Start a command of this package and kill it by SIGKILL.

    Args:
        command: The arguments after the name of the interpreter.
        children: How many descendants it must have first.
        wait: The seconds that the descendants then get to start up.
        seconds: The seconds that the descendants get to end.

    Returns:
        The number of descendants that still run after that.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found: set[Started] = set()
    try:
        until = time.monotonic() + 120
        while len(descendants(process.pid)) < children:
            assert process.poll() is None, command
            assert time.monotonic() < until, command
            time.sleep(0.02)
        time.sleep(wait)
        found = descendants(process.pid)
    finally:
        process.kill()
        process.wait()
    until = time.monotonic() + seconds
    while alive(found) and time.monotonic() < until:
        time.sleep(0.02)
    left = alive(found)
    for one in left:
        os.kill(one.pid, signal.SIGKILL)
    return len(left)
