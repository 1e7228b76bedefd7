"""Call functions in a child process with limits on time and memory.

A chat template or a tokenizer from a checkpoint is a program: it can loop forever or fill the
memory. This process could stop neither, so such code runs in a child. The child starts
at the first call and stays alive, so a later call takes well under a millisecond. A child that
reaches a limit ends. The call then raises an error, and the next call starts a new child.

This limits resources only. It is not a sandbox for arbitrary Python code.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

from wavefront.core.errors import WavefrontError

MEMORY = 2 << 30  # bytes of address space
REPLY_LIMIT = 64 << 20  # bytes of one result, as JSON
WALL_FACTOR = 10  # wall-clock seconds for each second of computing, because machines are busy
SIZE_BYTES = 8
_START = "import sys; sys.path[:] = {path!r}; from wavefront.text.limited import serve; serve()"
_ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "1",
}


def call(
    function: str,
    arguments: Mapping[str, Any],
    *,
    seconds: float,
    what: str,
    error: type[WavefrontError],
) -> Any:
    """Call a function in the child process and return its result.

    Args:
        function: `module:name`. Its arguments and its result must be JSON.
        arguments: The keyword arguments.
        seconds: The computing time that the call may take.
        what: What runs, as the subject of the error's sentence: "The chat template".
        error: The type of error to raise.

    Raises:
        WavefrontError: The function raised, or it reached a limit. The type is `error`.
    """
    request = {"function": function, "arguments": dict(arguments), "seconds": seconds}
    with _lock:
        reply = _child().ask(json.dumps(request).encode(), seconds * WALL_FACTOR)
    if reply is None:
        reason = f"takes longer than {seconds:g} seconds, needs more than {MEMORY >> 20} MiB of "
        raise error(f"{what} {reason}memory, or crashed.")
    answer = json.loads(reply)
    if "sentence" in answer:
        raise error(answer["sentence"])
    if "failure" in answer:
        reason = " ".join(str(answer["failure"]).split())[:300].rstrip(".")
        raise error(f"{what} failed: {reason}.")
    return answer["value"]


class _Child:
    """A running child process, and the process that started it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        code = _START.format(path=[os.path.abspath(entry) for entry in sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is for the parent
        )

    def usable(self) -> bool:
        """Return whether this process started the child, and the child still runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, request: bytes, seconds: float) -> bytes | None:
        """Send a request and return the reply, or None if the child ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            _write(self.process.stdin, request)
            reply = _read(self.process.stdout)
        except OSError:
            reply = None
        except BaseException:  # an interrupted call leaves its reply behind
            self.close()
            raise
        finally:
            timer.cancel()
        if reply is None:
            self.close()
        return reply

    def close(self) -> None:
        """End the child process."""
        if self.owner == os.getpid():
            self.process.kill()
            with contextlib.suppress(OSError):
                self.process.communicate()


_lock = threading.Lock()
_current: _Child | None = None


def _child() -> _Child:
    """Return the child process; start it if there is none."""
    global _current
    if _current is None or not _current.usable():
        if _current is not None:
            _current.close()
        _current = _Child()
        atexit.register(_current.close)
    return _current


if hasattr(os, "register_at_fork"):

    def _forget() -> None:
        """Give a forked process its own lock, because another thread may have held the old one."""
        global _lock
        _lock = threading.Lock()

    os.register_at_fork(after_in_child=_forget)


def serve() -> None:
    """Answer requests on standard input until it ends. This is the child's main function."""
    _limit_memory()
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the code prints must not reach the parent
    while (request := _read(source)) is not None:
        asked = json.loads(request)
        _limit(asked["seconds"])
        reply = _reply(asked["function"], asked["arguments"])
        _limit(0)
        _write(target, reply)


def _limit_memory() -> None:
    """Limit the address space of this process, and write no core dumps."""
    try:
        import resource
    except ImportError:  # a system without these limits
        return
    for kind, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS has no limit of address space
            resource.setrlimit(kind, (limit, limit))


def _limit(seconds: float) -> None:
    """End this process after this many seconds of computing; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(function: str, arguments: dict[str, Any]) -> bytes:
    """Call a function, and return its value or its exception as JSON."""
    try:
        module, _, name = function.partition(":")
        value = getattr(importlib.import_module(module), name)(**arguments)
        reply = json.dumps({"value": value}).encode()
        if len(reply) <= REPLY_LIMIT:
            return reply
        failure = f"its output is larger than {REPLY_LIMIT >> 20} MiB"
    except WavefrontError as error:
        return json.dumps({"sentence": str(error)}).encode()
    except MemoryError:
        failure = f"it needs more than {MEMORY >> 20} MiB of memory"
    except RecursionError:
        failure = "it is nested too deeply"
    # A panic in Rust code is not an Exception.
    except BaseException as error:
        failure = str(error) or type(error).__name__
    return json.dumps({"failure": failure[:2000]}).encode()


def _write(target: Any, message: bytes) -> None:
    target.write(len(message).to_bytes(SIZE_BYTES, "little") + message)
    target.flush()


def _read(source: BinaryIO | Any) -> bytes | None:
    """Return the next message, or None at the end."""
    size = source.read(SIZE_BYTES)
    if len(size) < SIZE_BYTES:
        return None
    length = int.from_bytes(size, "little")
    message = source.read(length)
    return message if len(message) == length else None
