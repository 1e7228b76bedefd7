"""Run model-written code against tests in isolation, and report whether it passed.

Each check starts three processes. The supervisor sets up the isolation, the checker runs the tests,
and the runner runs the code. The tests and the verdict never enter the runner. The checker asks it
to make calls, the runner replies with plain data, and the checker compares that data. All three
end with the process that called `check`, even if that is killed.
docs/tasks.md lists what this does not stop. Start reading at `check`.
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

ENTRY_POINT = Path(__file__).parent / "entry_point.py"
MEMORY_LIMIT = 1 << 30  # bytes
MAX_TIMEOUT = 600.0  # seconds
WALL_CLOCK_FACTOR = 3  # wall-clock limit, as a multiple of the CPU-time limit
STARTUP_TIMEOUT = 60.0  # seconds, for a sandbox that has nothing to run
# Compares values by type and repr, so that 2, 2.0 and True stay three different values. The name
# of the function is deleted, because it may be the name of a built-in that the test uses.
_CASES_TEST = """
_solution = {entry}
del {entry}
for _args, _expected in {cases!r}:
    _value = _solution(*_args)
    assert type(_value) is type(_expected)
    assert _value == _expected if isinstance(_value, set) else repr(_value) == repr(_expected)
"""


class Verdict(NamedTuple):
    """Whether the code passed, why it failed, and which isolation layers were active.

    `reason` is "passed" or the first thing that went wrong.
    """

    passed: bool
    reason: str
    layers: tuple[str, ...] = ()


class _Reply(NamedTuple):
    """The message from the sandbox, {} if there was none, and whether the wall clock ran out."""

    message: dict[str, Any]
    timed_out: bool


def check(
    code: str,
    tests: str,
    *,
    names: Sequence[str],
    setup: str = "",
    timeout: float = 10.0,
    memory: int = MEMORY_LIMIT,
    allow_unsandboxed: bool = False,
) -> Verdict:
    """Run `tests` against `code` in the sandbox.

    Args:
        code: The model-written program. It runs in the runner process only.
        tests: The program that tests it. It runs in the checker process only.
        names: The names in `code` that the tests use. The tests see them as proxies.
        setup: Trusted code that runs before the tests, in the checker process.
        timeout: CPU seconds, so that a busy machine does not turn a right answer into a wrong one.
            The wall-clock limit is three times as long.
        memory: The address space of each process, in bytes.
        allow_unsandboxed: Run the code even where no sandbox is available.

    Returns:
        The verdict. The reason for a failed assertion of the tests is "wrong value". Other reasons
        are "timeout", "crash", "garbled answer", or the name of an exception.

    Raises:
        OptionError: No sandbox is available and `allow_unsandboxed` is false.
    """
    check_float("timeout", timeout, 0.1, high=MAX_TIMEOUT)
    request = {"code": code, "tests": tests, "names": list(names), "setup": setup}
    reply = _request_verdict(
        request, timeout=timeout, memory=memory, allow_unsandboxed=allow_unsandboxed
    )
    message = reply.message
    if "passed" not in message:
        # Without a verdict there is no list of layers, but every run has the same ones.
        known = layers(allow_unsandboxed=allow_unsandboxed)
        return Verdict(False, "timeout" if reply.timed_out else "crash", known)
    return Verdict(message["passed"] is True, message["reason"], tuple(message["layers"]))


def _request_verdict(
    request: Mapping[str, Any], *, timeout: float, memory: int, allow_unsandboxed: bool
) -> _Reply:
    """Run one request. Drop the reply unless it carries the secret that only the checker knows."""
    secret = secrets.token_hex(16)
    line = (json.dumps({**request, "secret": secret}) + "\n").encode()
    mode = "allow-unsandboxed" if allow_unsandboxed else "require-sandbox"
    reply = _start(line, [str(timeout), str(memory), mode], seconds=WALL_CLOCK_FACTOR * timeout)
    if "refused" in reply.message:
        raise OptionError(
            "No sandbox is available; refusing to run model-written code"
            f" ({reply.message['refused']}). Use a machine that allows user namespaces, or pass"
            " allow_unsandboxed=True (--allow-unsandboxed) if you trust the code.",
            option="allow_unsandboxed",
            value=False,
        )
    return reply if reply.message.get("secret") == secret else _Reply({}, reply.timed_out)


@cache
def layers(*, allow_unsandboxed: bool = False) -> tuple[str, ...]:
    """List the isolation layers that this machine provides.

    Raises:
        OptionError: The sandbox does not start, or it is not available and not waived.
    """
    empty = {"code": "", "tests": "", "names": [], "setup": ""}
    message = _request_verdict(
        empty, timeout=STARTUP_TIMEOUT, memory=MEMORY_LIMIT, allow_unsandboxed=allow_unsandboxed
    ).message
    if not message.get("passed"):
        raise OptionError(f"The sandbox of {sys.executable} does not start on this machine.")
    return tuple(message["layers"])


def check_cases(
    code: str, entry: str, cases: Sequence[tuple[tuple[Any, ...], Any]], **options: Any
) -> Verdict:
    """Call the function `entry` with each case's arguments and compare with the expected value.

    `options` are passed to `check`.
    """
    tests = _CASES_TEST.format(cases=list(cases), entry=entry)
    return check(code, tests, names=[entry], **options)


def _start(line: bytes, arguments: list[str], *, seconds: float) -> _Reply:
    """Start the entry point, send it one line, and kill its process group when it replied."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(ENTRY_POINT), *arguments, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    ) as process:
        timed_out = False
        try:
            out, _ = process.communicate(line, timeout=seconds)
        except subprocess.TimeoutExpired:
            out, timed_out = b"", True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        message = json.loads(out)
    except ValueError:
        message = {}
    return _Reply(message, timed_out)
