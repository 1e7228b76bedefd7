"""The engine: the decode process as the server holds it, started, watched and started again."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
import time
from typing import Any

from wavefront.server.frontend import WATCH, Desk
from wavefront.server.metrics import Metrics
from wavefront.server.request_state import Ticket
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import About, Beat, Drop, Ended, Failed, Refused, Stop

PATIENCE = (0.0, 1.0, 5.0, 15.0)  # seconds before a start that follows a failure


def decode(settings: Settings, pipe: Any) -> None:
    """What the decode process runs; the server itself never loads torch."""
    from wavefront.server.decode_worker import run

    run(settings, pipe)


class Engine(Desk):
    """A desk with one decode process behind it."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__(settings, metrics)
        self.failed = ""  # what the last that could not load said
        self.restarts = 0
        self._beat = time.monotonic()
        self._process: Any = None
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._launch()
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """End the process; whatever is still open is answered."""
        self.state = "stopped"
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.abandon()
        self._outbox.put(Stop())
        await asyncio.to_thread(self._process.join, 2)
        self._process.kill()

    def _send(self, ticket: Ticket) -> None:
        self._outbox.put(ticket.job)

    def _recall(self, ticket: Ticket) -> None:
        self._outbox.put(Drop(ticket.id))

    def _launch(self) -> None:
        # spawn: a process forked from one with threads, or with CUDA, may hang.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=decode, args=(self.settings, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._outbox = queue.SimpleQueue()
        self._beat = time.monotonic()
        given = (ours, self._process, self._outbox)
        for target in (self._read, self._write):
            threading.Thread(target=target, args=given, daemon=True).start()

    def _read(self, pipe: Any, process: Any, outbox: Any) -> None:
        try:
            while True:
                said = pipe.recv()
                self._loop.call_soon_threadsafe(self._hear, process, said)
        except (EOFError, OSError, RuntimeError):
            outbox.put(None)  # it is gone, or the loop is

    @staticmethod
    def _write(pipe: Any, process: Any, outbox: Any) -> None:
        with contextlib.suppress(OSError):
            while (message := outbox.get()) is not None:
                pipe.send(message)
                if isinstance(message, Stop):
                    return

    def _hear(self, process: Any, said: list[Any]) -> None:
        if process is not self._process:
            return  # the last words of one that was given up
        self._beat = time.monotonic()
        for message in said:
            if isinstance(message, Beat):
                self.metrics.step(message)
            elif isinstance(message, About):
                self.about, self.state = message, "ready"
                self.metrics.there(1)
            elif isinstance(message, Failed):
                self.failed = message.message
            elif ticket := self.shelf.open.get(message.id):
                if isinstance(message, Ended | Refused):
                    self._finish(ticket, message)
                else:
                    ticket.hear(message)
        self._gauge()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH)
            self._give_up_the_late()
            dead = not self._process.is_alive()
            silent = time.monotonic() - self._beat > self.settings.limits.stuck
            if dead or (silent and self.state == "ready"):
                await self._restart()

    async def _restart(self) -> None:
        first = self.about is None
        self.state = "loading" if first else "down"
        self.metrics.there(0)
        self._fail_all(
            "The decode process ended and is started again: send the request again.", "engine_down"
        )
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        if first:
            self.failure = self.failed or "The decode process ended while it loaded the model."
            return
        self.restarts += 1
        self.metrics.restarted()
        await asyncio.sleep(PATIENCE[min(self.restarts - 1, len(PATIENCE) - 1)])
        with contextlib.suppress(OSError):  # not even a process is to be had: the next look retries
            self._launch()
