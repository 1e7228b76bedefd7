"""Run a function on test cases in another Python process: the one place where code is executed.

The process is isolated from our modules and bounded in time and memory, which stops accidents, not
malice: it can still read files and open sockets. So it asks to be allowed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from wavefront.errors import OptionError

MEMORY = 512 * 2**20
# The process bounds itself before it sees the code: a hook between fork and exec would be unsafe
# beside threads. The cases come as Python literals, because JSON has no tuples.
DRIVER = """
import ast, json, resource, sys
request = json.loads(sys.stdin.read())
for name, most in request["limits"].items():
    resource.setrlimit(getattr(resource, name), (most, most))
scope = {"__name__": "checked"}
try:
    exec(request["code"], scope)
    function = scope[request["entry"]]
    cases = ast.literal_eval(request["tests"])
    good = [repr(function(*args)) == repr(expected) for args, expected in cases]
    verdict = "passed" if all(good) else "wrong value"
except BaseException as error:
    verdict = type(error).__name__
sys.__stdout__.write("\\n" + json.dumps(verdict))
"""


def run_checked(
    code: str,
    entry: str,
    tests: Sequence[tuple[tuple[Any, ...], Any]],
    *,
    timeout: float = 5.0,
    allow_unsandboxed: bool = False,
) -> str:
    """`"passed"`, or what went wrong: "wrong value", "timeout", or the name of an exception."""
    if not allow_unsandboxed:
        raise OptionError(
            "refusing to run generated code outside a sandbox:"
            " pass allow_unsandboxed=True if you trust what wrote it"
        )
    limits = {"RLIMIT_CPU": int(timeout) + 1, "RLIMIT_AS": MEMORY, "RLIMIT_FSIZE": 0}
    request = {"code": code, "entry": entry, "tests": repr(list(tests)), "limits": limits}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", DRIVER],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout,
            env={},
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    try:
        return json.loads(done.stdout.rpartition("\n")[2])
    except json.JSONDecodeError:
        return "crash"
