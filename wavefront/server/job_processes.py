"""Tokenises prompts and compiles constraints, each in a process of its own.

Some prompts take a tokenizer or a chat template a long time, during which it holds Python's global
lock. In the decode process, even in a thread, this would delay every step; in the HTTP process, it
would delay every connection. Here it delays only other prompts. Clients take turns, one prompt is
encoded at a time, and a prompt that takes more than `Limits.encode_timeout` seconds is rejected.

A constraint, such as a JSON schema, is compiled in the same way, within `Limits.compile_timeout`
seconds. Compiled constraints are kept here, so a request with one of them waits for no other.
"""

from __future__ import annotations

import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from wavefront.server.child_process import ChildProcess, set_process_name
from wavefront.server.fair_queue import FairQueue
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import (
    Job,
    JobProcessReady,
    RequestFailed,
    Shutdown,
    constraint_option,
    has_text,
    is_whole_text,
)

RESTART_DELAY = 1.0  # seconds between two starts of a process
KEPT_BYTES = 64 << 20  # of all compiled constraints that are kept
Result = TypeVar("Result")


class _Waiting(NamedTuple):
    """A job that waits for a process, and what to do with the job when it is done."""

    job: Job
    deliver: Callable[[Job], None]


class JobProcess(Generic[Result]):
    """A child process that handles one job at a time. It restarts if a job takes too long."""

    def __init__(
        self,
        main: Callable[[Settings, Any], None],
        settings: Settings,
        fail: Callable[[RequestFailed], None],
        *,
        timeout: float,
    ) -> None:
        """Call `fail` for a job that `main` cannot handle, or not within `timeout` seconds."""
        self.settings, self._main, self._fail, self._timeout = settings, main, fail, timeout
        self._queue = FairQueue[_Waiting]()
        self._current: _Waiting | None = None
        self._process: ChildProcess | None = None
        self._is_ready = False
        self._since = self._started = 0.0  # when the current job was sent; the last start

    def start(self, length: int) -> None:
        """Start the process. The files of the model must be on this machine.

        `length` is the longest canvas, prompt included.
        """
        limits = replace(self.settings.limits, length=length)
        self.settings = replace(self.settings, limits=limits)
        self._start()

    def _start(self) -> None:
        self._is_ready, self._current = False, None
        self._started = time.monotonic()
        self._process = ChildProcess(self._main, self.settings, self._receive)

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            await self._process.stop(1)

    @property
    def is_running(self) -> bool:
        """Whether the process was started."""
        return self._process is not None

    def _add(self, waiting: _Waiting) -> None:
        self._queue.push(waiting)
        self._send_next()

    def cancel(self, id: str) -> None:
        """Forget a job that waits."""
        self._queue.remove(id)

    def _finish(self, waiting: _Waiting, result: Result) -> None:
        """Deliver a job with the result of the process."""
        raise NotImplementedError

    def _too_slow(self, job: Job) -> tuple[str, str]:
        """Return the error of a job that took too long: its message, and the field it is about."""
        raise NotImplementedError

    async def check(self) -> None:
        """Restart the process if it has ended or takes too long. Call this regularly."""
        process, current, now = self._process, self._current, time.monotonic()
        if process is None:
            return
        is_late = self._is_ready and current is not None and now - self._since > self._timeout
        if process.is_alive and not is_late:
            return
        self._current, self._is_ready = None, False
        if current is not None and is_late:
            message, param = self._too_slow(current.job)
            self._fail(RequestFailed(current.job.id, 400, message, "invalid_value", param))
        elif current is not None:
            message = "The process that prepares requests ended: send the request again."
            self._fail(RequestFailed(current.job.id, 503, message, "engine_down"))
        await process.kill()
        if now - self._started > RESTART_DELAY:
            self._start()

    def _receive(self, process: ChildProcess, messages: list[Any]) -> None:
        if process is not self._process:
            return
        for message in messages:
            current, self._current = self._current, None
            if isinstance(message, JobProcessReady):
                self._is_ready = True
            elif isinstance(message, RequestFailed):
                self._fail(message)
            elif current is not None:
                self._finish(current, message)
        self._send_next()

    def _send_next(self) -> None:
        if self._is_ready and self._current is None and (following := self._queue.pop()):
            assert self._process is not None
            self._current, self._since = following, time.monotonic()
            self._process.send(following.job)


class PromptEncoder(JobProcess[Job]):
    """Replaces the texts of jobs with token ids."""

    def __init__(self, settings: Settings, fail: Callable[[RequestFailed], None]) -> None:
        super().__init__(run_encoder, settings, fail, timeout=settings.limits.encode_timeout)

    def encode(self, job: Job, deliver: Callable[[Job], None]) -> None:
        """Encode the texts of a job, then pass the job on to `deliver`."""
        if has_text(job):
            self._add(_Waiting(job, deliver))
        else:
            deliver(job)

    def _finish(self, waiting: _Waiting, result: Job) -> None:
        waiting.deliver(result)

    def _too_slow(self, job: Job) -> tuple[str, str]:
        message = f"The prompt takes more than {self._timeout:g} seconds to tokenise: shorten it."
        return message, "prompt" if job.messages is None else "messages"


class ConstraintCompiler(JobProcess[bytes]):
    """Adds compiled constraints to jobs. Jobs with a constraint that is known do not wait."""

    def __init__(self, settings: Settings, fail: Callable[[RequestFailed], None]) -> None:
        super().__init__(run_compiler, settings, fail, timeout=settings.limits.compile_timeout)
        self._kept: OrderedDict[Any, bytes] = OrderedDict()  # the last used one is last

    def compile(self, job: Job, deliver: Callable[[Job], None]) -> None:
        """Compile the constraint of a job, then pass the job on to `deliver`."""
        key = constraint_key(job)
        if key in self._kept:
            self._kept.move_to_end(key)
            deliver(replace(job, automaton=self._kept[key]))
        else:
            self._add(_Waiting(job, deliver))

    def _finish(self, waiting: _Waiting, result: bytes) -> None:
        key = constraint_key(waiting.job)
        self._kept[key] = result
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)
        alike = [waiting]
        while same := self._queue.pop(fits=lambda other: constraint_key(other.job) == key):
            alike.append(same)
        for one in alike:
            one.deliver(replace(one.job, automaton=result))

    def _too_slow(self, job: Job) -> tuple[str, str]:
        option = constraint_option(job)
        assert option is not None
        message = f"The constraint takes more than {self._timeout:g} seconds to compile."
        return message, job.fields.get(option, option)


def constraint_key(job: Job) -> Any:
    """Return what the automaton of a job depends on. Jobs of one server share the tokenizer."""
    option = constraint_option(job)
    assert option is not None
    value = job.options[option]
    return option, tuple(value) if isinstance(value, list) else value, is_whole_text(job)


def run_encoder(settings: Settings, pipe: Any) -> None:
    """Encode the texts of jobs until `Shutdown` arrives or the HTTP process has ended."""
    from wavefront.server.request_builder import encode_texts

    length = settings.limits.length
    _run(settings, pipe, lambda tokenizer, job: encode_texts(tokenizer, job, length=length))


def run_compiler(settings: Settings, pipe: Any) -> None:
    """Compile the constraints of jobs until `Shutdown` arrives or the HTTP process has ended."""
    from wavefront.server.request_builder import compile_automaton

    _run(settings, pipe, compile_automaton)


def _run(settings: Settings, pipe: Any, handle: Callable[[Any, Job], Any]) -> None:
    from wavefront.server.request_builder import load_tokenizer, rejection

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_process_name("wavefront-enc")
    tokenizer = load_tokenizer(settings.source)
    try:
        pipe.send([JobProcessReady()])
        while not isinstance(job := pipe.recv(), Shutdown):
            try:
                answer = handle(tokenizer, job)
            except Exception as error:
                answer = rejection(error, job)
            pipe.send([answer])
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the HTTP process has ended
