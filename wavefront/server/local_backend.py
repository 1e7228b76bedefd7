"""A backend with one decode process, which is restarted when it dies or stalls.

Other processes encode texts and compile constraints before the decode process gets them. When the
decode process dies, all its requests fail with an error that asks the client to send them again.
They are not retried, because one of them may be the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wavefront.server.child_process import ChildProcess
from wavefront.server.frontend import POLL_INTERVAL, Frontend
from wavefront.server.job_processes import ConstraintCompiler, PromptEncoder, constraint_key
from wavefront.server.metrics import Metrics
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import (
    AutomatonMissing,
    CancelJob,
    CheckJob,
    Heartbeat,
    Job,
    LoadFailed,
    ModelInfo,
    RequestFailed,
    RequestFinished,
    constraint_option,
)

# Seconds to wait before a restart, by the number of recent restarts.
RESTART_DELAYS = (0.0, 0.5, 1.0, 2.0)
SLOW_STEPS = 2.0  # a process may be silent for this many times its last step
MAX_SENT = 4096  # automata to remember as sent; then all of them are sent once more
FORGIVEN_AFTER = 2.0  # seconds of service after which one restart is no longer counted


def run_worker(settings: Settings, pipe: Any) -> None:
    """Run the decode process. The HTTP process itself never imports torch."""
    from wavefront.server.decode_worker import run

    run(settings, pipe)


class LocalBackend(Frontend):
    """Starts one decode process and monitors it."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__(settings, metrics)
        self._recent_restarts = 0
        self._ready_since: float | None = None  # when the process had loaded the model
        self._worker_error = ""  # the message of the last process that could not load
        self._last_message = time.monotonic()
        self._last_step: float | None = None  # seconds of the last step; None: there was none
        self._process: ChildProcess | None = None
        self._encoder = PromptEncoder(settings, self._reject)
        self._compiler = ConstraintCompiler(settings, self._reject)
        self._sent_automata = set[int]()  # hashes of those that the decode process was sent
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._launch()
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        self.status = "stopped"
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.abort_all()
        for process in (self._encoder, self._compiler):
            await process.stop()
        if self._process is not None:
            await self._process.stop(2)

    @property
    def is_stalled(self) -> bool:
        silence = time.monotonic() - self._last_message
        # A large model on a CPU may need more time for each step.
        allowed = max(self.settings.limits.health_timeout, SLOW_STEPS * (self._last_step or 0.0))
        return self.status == "ready" and silence > allowed

    @property
    def has_stepped(self) -> bool:
        """Whether the decode process has run a step. The first one can take long."""
        return self._last_step is not None

    def _start_decode(self, request: RequestState) -> None:
        self._encode(request.job, self._send_job)

    def _encode(self, job: Job, deliver: Callable[[Job], None]) -> None:
        """Encode the texts of a job, and compile its constraint, then pass it to `deliver`."""
        constrained = constraint_option(job) is not None
        self._encoder.encode(
            job, (lambda encoded: self._compile(encoded, deliver)) if constrained else deliver
        )

    def _compile(self, job: Job, deliver: Callable[[Job], None]) -> None:
        if job.id not in self.requests.active:
            return  # it was cancelled while it was encoded
        if not self._compiler.is_running:  # it starts with the first constraint
            assert self.model_info is not None
            self._compiler.start(self.model_info.length)
        self._compiler.compile(job, deliver)

    def _cancel_decode(self, request: RequestState) -> None:
        for process in (self._encoder, self._compiler):
            process.cancel(request.id)
        self._send(CancelJob(request.id))

    def _send_job(self, job: Job) -> None:
        if job.id in self.requests.active:
            self._send(self._without_sent_automaton(job))

    def _send_check(self, job: Job) -> None:
        self._send(CheckJob(self._without_sent_automaton(job)))

    def _without_sent_automaton(self, job: Job) -> Job:
        """Remove the automaton of a job if the decode process was sent it before.

        The decode process may have removed it; then it answers `AutomatonMissing`.
        """
        if job.automaton is None:
            return job
        key = hash(constraint_key(job))
        if key in self._sent_automata:
            return replace(job, automaton=None, automaton_was_sent=True)
        if len(self._sent_automata) >= MAX_SENT:
            self._sent_automata.clear()
        self._sent_automata.add(key)
        return job

    def _send_with_automaton(self, message: Job | CheckJob) -> None:
        """Send a message again, now with its automaton."""
        check = isinstance(message, CheckJob)
        job = replace(message.job if check else message, automaton_was_sent=False)
        self._sent_automata.discard(hash(constraint_key(job)))
        self._compile(job, self._send_check if check else self._send_job)

    def _send(self, message: Any) -> None:
        if self._process is not None:
            self._process.send(message)

    def _reject(self, failure: RequestFailed) -> None:
        if request := self.requests.active.get(failure.id):
            self._end(request, failure)

    def _launch(self) -> None:
        self._ready_since = None
        self._sent_automata.clear()
        self._last_message, self._last_step = time.monotonic(), None
        self._process = ChildProcess(run_worker, self.settings, self._receive)

    def _receive(self, process: ChildProcess, messages: list[Any]) -> None:
        if process is not self._process:
            return  # from a process that was already replaced
        self._last_message = time.monotonic()
        for message in messages:
            if isinstance(message, Heartbeat):
                self.metrics.record_step(message)
                if message.forwards:
                    self._last_step = message.seconds
            elif isinstance(message, ModelInfo):
                if self.model_info is None:
                    self._encoder.start(message.length)
                self.model_info, self.status = message, "ready"
                self._ready_since = time.monotonic()
                self.metrics.set_replicas(1)
            elif isinstance(message, LoadFailed):
                self._worker_error = message.message
            elif isinstance(message, AutomatonMissing):
                self._send_with_automaton(message.message)
            elif request := self.requests.active.get(message.id):
                if isinstance(message, RequestFinished | RequestFailed):
                    self._end(request, message)
                else:
                    request.update(message)
        self._update_gauges()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            self._cancel_expired()
            for process in (self._encoder, self._compiler):
                await process.check()
            dead = self._process is None or not self._process.is_alive
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
        if self._process is not None:
            await self._process.kill()
        if never_loaded:
            self.load_error = (
                self._worker_error or "The decode process ended while it loaded the model."
            )
            return
        self.metrics.record_restart()
        await asyncio.sleep(self._next_delay())
        self._launch()

    def _next_delay(self) -> float:
        """Count a restart, and return how long to wait. Time in service reduces the count."""
        if self._ready_since is not None:
            forgiven = int((time.monotonic() - self._ready_since) / FORGIVEN_AFTER)
            self._recent_restarts = max(0, self._recent_restarts - forgiven)
        self._recent_restarts += 1
        return RESTART_DELAYS[min(self._recent_restarts, len(RESTART_DELAYS)) - 1]
