"""Run code that a model wrote against tests, behind walls, and tell whether it passed.

Three processes beside ours: one that keeps the walls, a judge that runs the tests, and a prisoner
that runs the code. Tests and verdict never enter the prisoner: it is asked for calls and answers
with plain data, which the judge compares. See docs/tasks.md for what this does not stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError, check_float

SCRIPT = Path(__file__).parent / "entry_point.py"
MEMORY = 1 << 30
LONGEST = 600.0  # seconds
WALL = 3  # times the time on the processor
PATIENCE = 60.0  # for a sandbox that has nothing to run
# Cases are compared by how they are written, so that 2, 2.0 and True stay three values.
_CASES = """
for _args, _expected in {cases!r}:
    _value = {entry}(*_args)
    assert type(_value) is type(_expected)
    assert _value == _expected if isinstance(_value, set) else repr(_value) == repr(_expected)
"""


class Verdict(NamedTuple):
    """Whether the code passed; "passed", or what went wrong first; and the layers around it."""

    passed: bool
    reason: str
    layers: tuple[str, ...] = ()


def check(
    code: str,
    tests: str,
    *,
    names: Sequence[str],
    before: str = "",
    timeout: float = 10.0,
    memory: int = MEMORY,
    allow_unsandboxed: bool = False,
) -> Verdict:
    """Run `tests`, which know the `names` of `code` by stand-ins, after `before`, which is ours.

    `timeout` is in seconds on the processor, so that a busy machine makes no answer wrong; the
    wall clock gives it three times as long. A failed assertion of the tests is a "wrong value";
    other reasons are "timeout", "crash", "garbled answer", or the name of an exception.
    """
    check_float("timeout", timeout, 0.1, LONGEST)
    given = {"code": code, "tests": tests, "names": list(names), "before": before}
    need = not allow_unsandboxed
    said = _ask(given, timeout=timeout, memory=memory, need=need)
    if "passed" not in said:
        # It could not tell its layers: those are the same in every run.
        known = layers(allow_unsandboxed=allow_unsandboxed)
        return Verdict(False, "timeout" if said["timed_out"] else "crash", known)
    return Verdict(said["passed"] is True, said["reason"], tuple(said["layers"]))


def _ask(given: Mapping[str, Any], *, timeout: float, memory: int, need: bool) -> dict[str, Any]:
    """What the judge said, where it is the judge who said it; and whether the time ran out."""
    seal = secrets.token_hex(16)
    message = (json.dumps({**given, "seal": seal}) + "\n").encode()
    said, timed_out = _run(message, timeout, memory, need=need)
    if "refused" in said:
        raise OptionError(
            f"This machine gives no sandbox ({said['refused']}), and what a model wrote is not run "
            "without: use one that allows user namespaces, or pass allow_unsandboxed=True "
            "(--allow-unsandboxed) if you trust what wrote the code."
        )
    return said if said.get("seal") == seal else {"timed_out": timed_out}


@cache
def layers(*, allow_unsandboxed: bool = False) -> tuple[str, ...]:
    """The layers that a run has on this machine; OptionError where it would be refused."""
    nothing = {"code": "", "tests": "", "names": [], "before": ""}
    said = _ask(nothing, timeout=PATIENCE, memory=MEMORY, need=not allow_unsandboxed)
    if not said.get("passed"):
        raise OptionError(f"The sandbox of {sys.executable} does not start on this machine.")
    return tuple(said["layers"])


def check_cases(
    code: str, entry: str, cases: Sequence[tuple[tuple[Any, ...], Any]], **options: Any
) -> Verdict:
    """Call the function `entry` on each case's arguments and compare with what is expected."""
    tests = _CASES.format(cases=list(cases), entry=entry)
    return check(code, tests, names=[entry], **options)


def _run(message: bytes, timeout: float, memory: int, *, need: bool) -> tuple[dict[str, Any], bool]:
    """What the judge said, {} if nothing; and whether the time ran out."""
    command = [sys.executable, "-I", "-S", str(SCRIPT)]
    arguments = [str(timeout), str(memory), "need" if need else "accept"]
    with subprocess.Popen(
        command + arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    ) as process:
        timed_out = False
        try:
            out, _ = process.communicate(message, timeout=WALL * timeout)
        except subprocess.TimeoutExpired:
            out, timed_out = b"", True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        said = json.loads(out)
    except ValueError:
        said = {}
    return said, timed_out
