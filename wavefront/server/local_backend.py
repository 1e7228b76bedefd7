"""A backend with one decode process, which is restarted when it dies or stalls."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
import time
from typing import Any

from wavefront.server.frontend import POLL_INTERVAL, Frontend
from wavefront.server.metrics import Metrics
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import (
    CancelJob,
    Finished,
    Heartbeat,
    LoadFailed,
    ModelInfo,
    RequestFailed,
    Shutdown,
)

RESTART_DELAYS = (0.0, 1.0, 5.0, 15.0)  # seconds before the first, second, ... restart


def run_worker(settings: Settings, pipe: Any) -> None:
    """Run the decode process. The HTTP process itself never imports torch."""
    from wavefront.server.decode_worker import run

    run(settings, pipe)


class LocalBackend(Frontend):
    """Starts one decode process and watches over it."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__(settings, metrics)
        self.restarts = 0
        self._worker_error = ""  # the message of the last process that could not load
        self._last_message = time.monotonic()
        self._process: Any = None
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._launch()
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        self.status = "stopped"
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.abort_all()
        self._outbox.put(Shutdown())
        await asyncio.to_thread(self._process.join, 2)
        self._process.kill()

    def _start_decode(self, request: RequestState) -> None:
        self._outbox.put(request.job)

    def _cancel_decode(self, request: RequestState) -> None:
        self._outbox.put(CancelJob(request.id))

    def _launch(self) -> None:
        # Use spawn: a process forked from one with threads or CUDA may hang.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=run_worker, args=(self.settings, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._outbox = queue.SimpleQueue()
        self._last_message = time.monotonic()
        for target in (self._read_pipe, self._write_pipe):
            arguments = (ours, self._process, self._outbox)
            threading.Thread(target=target, args=arguments, daemon=True).start()

    def _read_pipe(self, pipe: Any, process: Any, outbox: Any) -> None:
        try:
            while True:
                messages = pipe.recv()
                self._loop.call_soon_threadsafe(self._receive, process, messages)
        except (EOFError, OSError, RuntimeError):
            outbox.put(None)  # the process or the event loop has ended: end the writer too

    @staticmethod
    def _write_pipe(pipe: Any, process: Any, outbox: Any) -> None:
        with contextlib.suppress(OSError):
            while (message := outbox.get()) is not None:
                pipe.send(message)
                if isinstance(message, Shutdown):
                    return

    def _receive(self, process: Any, messages: list[Any]) -> None:
        if process is not self._process:
            return  # from a process that was already replaced
        self._last_message = time.monotonic()
        for message in messages:
            if isinstance(message, Heartbeat):
                self.metrics.record_step(message)
            elif isinstance(message, ModelInfo):
                self.model_info, self.status = message, "ready"
                self.metrics.set_replicas(1)
            elif isinstance(message, LoadFailed):
                self._worker_error = message.message
            elif request := self.requests.active.get(message.id):
                if isinstance(message, Finished | RequestFailed):
                    self._end(request, message)
                else:
                    request.update(message)
        self._update_gauges()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            self._cancel_expired()
            dead = not self._process.is_alive()
            silence = time.monotonic() - self._last_message
            stalled = silence > self.settings.limits.stall_timeout and self.status == "ready"
            if dead or stalled:
                await self._restart()

    async def _restart(self) -> None:
        never_loaded = self.model_info is None
        self.status = "loading" if never_loaded else "down"
        self.metrics.set_replicas(0)
        self._fail_all(
            "The decode process ended and is restarting: send the request again.", "engine_down"
        )
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        if never_loaded:
            self.load_error = (
                self._worker_error or "The decode process ended while it loaded the model."
            )
            return
        self.restarts += 1
        self.metrics.record_restart()
        await asyncio.sleep(RESTART_DELAYS[min(self.restarts, len(RESTART_DELAYS)) - 1])
        with contextlib.suppress(OSError):  # no process can be started now: the next poll retries
            self._launch()
