"""Child processes of the HTTP process, and the pipe to each of them.

Imports take most of the time that a decode process needs to start. So children are forked from a
fork server, a process that only imports modules. It has no threads, no model and no GPU. A restart
then takes only as long as loading the model. On systems other than Linux, some libraries of torch
do not work after a fork, so every child is a new process that imports its modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from wavefront.server.settings import Settings
from wavefront.server.worker_messages import Shutdown
from wavefront.storage.parent_process import end_with_parent

JOIN_TIMEOUT = 5.0  # seconds to wait for the start or the end of a process
PRELOADED = ["wavefront.server.worker_imports"]


class ChildProcess:
    """A running child. Messages go both ways; the child's messages arrive in lists."""

    def __init__(
        self,
        main: Callable[[Settings, Any], None],
        settings: Settings,
        receive: Callable[[ChildProcess, list[Any]], None],
    ) -> None:
        """Start `main(settings, pipe)` in a child. The event loop calls `receive`.

        The child gets neither the API key nor the command line, which may contain it.
        """
        self._receive, self._loop = receive, asyncio.get_running_loop()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._process: Any = None
        self._started, self._has_ended = threading.Event(), False
        arguments = (main, replace(settings, api_key=None))
        # The first start waits for the imports of the fork server, so it has its own thread.
        threading.Thread(target=self._run, args=arguments, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether the process is starting or running."""
        if not self._started.is_set():
            return True
        # The pipe closes at once when the process ends; the fork server may report it later.
        return not self._has_ended and self._process is not None and self._process.is_alive()

    def send(self, message: Any) -> None:
        """Send a message. It is lost if the process has ended."""
        self._outbox.put(message)

    async def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        await asyncio.to_thread(self._end, 0.0)

    async def stop(self, timeout: float) -> None:
        """Ask the process to end, and kill it after `timeout` seconds."""
        self.send(Shutdown())
        await asyncio.to_thread(self._end, timeout)

    def kill_at_once(self) -> None:
        """Kill the process without waiting."""
        if self._process is not None:
            self._process.kill()

    def _end(self, timeout: float) -> None:
        self._started.wait(JOIN_TIMEOUT)
        if self._process is None:
            return
        if timeout:
            self._process.join(timeout)
        self._process.kill()
        self._process.join(JOIN_TIMEOUT)

    def _run(self, main: Callable[[Settings, Any], None], settings: Settings) -> None:
        """Start the process, and pass its messages on until it ends."""
        try:
            context: Any = _context()
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_child, args=(main, settings, theirs), daemon=True)
            with _without_command_line():
                process.start()
            self._process = process
            theirs.close()
        except (OSError, EOFError):  # no process can be started now
            return
        finally:
            self._started.set()
        threading.Thread(target=self._write, args=(ours,), daemon=True).start()
        try:
            while True:
                messages = ours.recv()
                self._loop.call_soon_threadsafe(self._receive, self, messages)
        except (EOFError, OSError, RuntimeError):
            self._has_ended = True
            self._outbox.put(None)  # the child or the event loop has ended: end the writer too

    def _write(self, pipe: Any) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                pipe.send(message)
                if isinstance(message, Shutdown):
                    return


def _run_child(main: Callable[[Settings, Any], None], settings: Settings, pipe: Any) -> None:
    end_with_parent()
    main(settings, pipe)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this process, at most 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _context() -> Any:
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextlib.contextmanager
def _without_command_line() -> Iterator[None]:
    """Hide the arguments of this process, which multiprocessing copies into its children."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        yield
    finally:
        sys.argv = arguments
