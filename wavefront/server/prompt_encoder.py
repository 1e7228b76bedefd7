"""Tokenises prompts in a separate process.

Some prompts take a tokenizer or a chat template a long time, during which it holds Python's global
lock. In the decode process, even in a thread, this would delay every step; in the HTTP process, it
would delay every connection. Here it delays only other prompts. Clients take turns, one prompt is
encoded at a time, and a prompt that takes more than `Limits.encode_timeout` seconds is rejected.

Requests with a constraint, such as a JSON schema, go to a second process, which also compiles it.
They get `Limits.compile_timeout` seconds and delay only each other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from wavefront.server.child_process import ChildProcess, set_process_name
from wavefront.server.fair_queue import FairQueue
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import (
    EncoderReady,
    Job,
    RequestFailed,
    Shutdown,
    has_constraint,
    has_text,
)

RESTART_DELAY = 1.0  # seconds between two starts of the process


class _Encoding(NamedTuple):
    """A job whose texts are to be encoded, and what to do with the result."""

    job: Job
    deliver: Callable[[Job], None]


class PromptEncoder:
    """Replaces the texts of jobs with token ids."""

    def __init__(
        self, settings: Settings, fail: Callable[[RequestFailed], None], *, timeout: float
    ) -> None:
        """Call `fail` for a prompt that cannot be encoded, or not within `timeout` seconds."""
        self.settings, self._fail, self._timeout = settings, fail, timeout
        self._queue = FairQueue[_Encoding]()
        self._current: _Encoding | None = None
        self._process: ChildProcess | None = None
        self._is_ready = False
        self._since = self._started = 0.0  # when the current prompt was sent; the last start

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
        self._process = ChildProcess(run_encoder, self.settings, self._receive)

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            await self._process.stop(1)

    @property
    def is_running(self) -> bool:
        """Whether the process was started."""
        return self._process is not None

    def encode(self, job: Job, deliver: Callable[[Job], None]) -> None:
        """Encode the texts of a job, then pass the job on to `deliver`."""
        if has_text(job):
            self._queue.push(_Encoding(job, deliver))
            self._send_next()
        else:
            deliver(job)

    def cancel(self, id: str) -> None:
        """Forget a job that waits."""
        self._queue.remove(id)

    async def check(self) -> None:
        """Restart the process if it has ended or takes too long. Call this regularly."""
        process, current, now = self._process, self._current, time.monotonic()
        if process is None:
            return
        limit = self._timeout
        is_late = self._is_ready and current is not None and now - self._since > limit
        if process.is_alive and not is_late:
            return
        self._current, self._is_ready = None, False
        if current is not None and is_late:
            message = f"The prompt takes more than {limit:g} seconds to tokenise: shorten it."
            param = "prompt" if current.job.messages is None else "messages"
            if has_constraint(current.job):
                message = f"The constraint takes more than {limit:g} seconds to compile."
                param = current.job.schema_field
            self._fail(RequestFailed(current.job.id, 400, message, "invalid_value", param))
        elif current is not None:
            message = "The process that tokenises prompts ended: send the request again."
            self._fail(RequestFailed(current.job.id, 503, message, "engine_down"))
        await process.kill()
        if now - self._started > RESTART_DELAY:
            self._start()

    def _receive(self, process: ChildProcess, messages: list[Any]) -> None:
        if process is not self._process:
            return
        for message in messages:
            current, self._current = self._current, None
            if isinstance(message, EncoderReady):
                self._is_ready = True
            elif isinstance(message, RequestFailed):
                self._fail(message)
            elif current is not None:
                current.deliver(message)
        self._send_next()

    def _send_next(self) -> None:
        if self._is_ready and self._current is None and (following := self._queue.pop()):
            assert self._process is not None
            self._current, self._since = following, time.monotonic()
            self._process.send(following.job)


def run_encoder(settings: Settings, pipe: Any) -> None:
    """Encode jobs until `Shutdown` arrives or the HTTP process has ended."""
    from wavefront.server.request_builder import encode_texts, load_tokenizer, rejection

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_process_name("wavefront-enc")
    tokenizer = load_tokenizer(settings.source)
    try:
        pipe.send([EncoderReady()])
        while not isinstance(job := pipe.recv(), Shutdown):
            try:
                answer = encode_texts(tokenizer, job, length=settings.limits.length)
            except Exception as error:
                answer = rejection(error, job)
            pipe.send([answer])
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the HTTP process has ended
