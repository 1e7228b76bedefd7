"""The state of each request in the HTTP process, and a registry of these states.

A state holds a growing text and a growing list of events. Every reader keeps its own position in
them and waits for more. A slow reader therefore blocks no one and loses nothing, and all readers
share one copy of the data.
"""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import FIRST_COMPLETED
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from wavefront.server.worker_messages import (
    CanvasSnapshot,
    Job,
    Logprob,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    RequestProgress,
    RequestStarted,
)

EVENT_OVERHEAD = 64  # bytes that an event needs in memory besides its JSON
REQUEST_OVERHEAD = 4096  # bytes that an ended request needs besides its events and its canvas
POSITION_BYTES = 56  # of a canvas
LOGPROB_BYTES = 512  # of a token and its log-probability
READ_BYTES = 16 << 20  # of dropped requests that clients are still reading
KEPT_OPTIONS = ("logprobs",)  # options that the format of the answer depends on


class RequestState:
    """A request, from its arrival until its events expire."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.created = time.time()
        self.arrived = time.monotonic()
        # Seconds since the arrival.
        self.first_text_after: float | None = None
        self.started_after: float | None = None
        self.ended_after: float | None = None
        self.accepted: RequestAccepted | None = None
        self.outcome: RequestFinished | RequestFailed | None = None
        self.text = ""
        self.logprobs: list[Logprob] = []
        self.events: list[bytes] = []
        self.steps = 0  # step events
        self.event_bytes = 0  # memory for everything that is kept after the end
        self.readers = 0
        self.expired = False  # the events were dropped, although a client was reading them
        self.unwatched_since = self.arrived
        self._change = asyncio.Event()

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def canvas(self) -> CanvasSnapshot | None:
        """The canvas at the start, if it is known."""
        return None if self.accepted is None else self.accepted.canvas

    def update(
        self,
        message: RequestAccepted
        | RequestStarted
        | RequestProgress
        | RequestFinished
        | RequestFailed,
    ) -> None:
        """Apply a message from the decode process and wake all readers.

        Messages after the end are ignored.
        """
        if self.outcome is not None:
            return
        now = time.monotonic() - self.arrived
        if isinstance(message, RequestAccepted):
            if self.accepted is None:
                self._add_event(message.start_event)
            self.accepted = message
        elif isinstance(message, RequestStarted):
            self.started_after = now
        elif isinstance(message, RequestFailed):
            self.outcome, self.ended_after = message, now
            if self.job.events:
                self._add_event({"type": "error", "error": error_body(message)})
        else:
            if message.text and self.first_text_after is None:
                self.first_text_after = now
            self.text += message.text
            self.logprobs += message.logprobs
            self._add_event(message.event)
            if isinstance(message, RequestFinished):
                self.outcome, self.ended_after = message, now
        if self.outcome is not None:
            self._drop_inputs()
        self._wake()

    def _wake(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _drop_inputs(self) -> None:
        """Discard what is not needed after the end, and count the bytes that are kept."""
        messages = None if self.job.messages is None else []
        # A schema or a list of choices is long. A fork takes its options from the start event.
        options = {
            name: self.job.options[name] for name in KEPT_OPTIONS if name in self.job.options
        }
        self.job = replace(self.job, prompt=None, messages=messages, fork=None, options=options)
        if self.accepted is not None:
            self.accepted = self.accepted._replace(start_event=None)  # it is also in `events`
        positions = 0 if self.canvas is None else len(self.canvas.ids)
        self.event_bytes += REQUEST_OVERHEAD + positions * POSITION_BYTES + len(self.text.encode())
        entries = sum(1 + len(logprob["top_logprobs"]) for logprob in self.logprobs)
        self.event_bytes += entries * LOGPROB_BYTES

    def _add_event(self, event: dict[str, Any] | None) -> None:
        if event is None:
            return
        self.steps += event["type"] == "step"
        encoded = json.dumps(event, separators=(",", ":")).encode()
        self.events.append(encoded)
        self.event_bytes += len(encoded) + EVENT_OVERHEAD

    def expire(self) -> None:
        """Drop the events, and end the streams of their readers."""
        self.expired, self.events = True, []
        self._wake()

    def reset(self) -> bool:
        """Discard all output so that another replica can decode the request again.

        Return False, and change nothing, if a client may have read some of the output.
        """
        if self.job.incremental and (self.text or self.steps):
            return False
        self.started_after, self.text, self.logprobs, self.steps = None, "", [], 0
        self.events = self.events[:1]  # the start event does not change
        self.event_bytes = sum(len(event) + EVENT_OVERHEAD for event in self.events)
        return True

    def next_change(self) -> Coroutine[Any, Any, Any]:
        """Return what to await for the first message after this call."""
        return self._change.wait()

    async def wait_for_change(self, timeout: float | None = None) -> bool:
        """Wait for the next message. Return False if none came in time.

        Read the current state first: messages that came before the call are not reported.
        """
        try:
            await asyncio.wait_for(self.next_change(), timeout)
        except TimeoutError:
            return False
        return True

    async def wait_until_checked(self) -> None:
        """Wait until the request is either accepted or failed."""
        while self.accepted is None and self.outcome is None:
            await self.wait_for_change()

    async def wait_until_ended(self) -> RequestFinished | RequestFailed:
        """Wait for the outcome and return it."""
        while self.outcome is None:
            await self.wait_for_change()
        return self.outcome

    @property
    def start_event(self) -> dict[str, Any]:
        """The first event, once the request is accepted."""
        return json.loads(self.events[0])

    def canvas_at(self, step: int) -> CanvasSnapshot:
        """Return the canvas after the first `step` steps."""
        assert self.canvas is not None
        ids, holes = list(self.canvas.ids), list(self.canvas.holes)
        positions = [n for n, in_answer in enumerate(self.canvas.answer) if in_answer]
        for event in map(json.loads, self.events[1 : step + 1]):  # the first is the start event
            for position, token, *_ in event["commits"]:
                ids[positions[position]], holes[positions[position]] = token, False
            for position in event["back"]:
                holes[positions[position]] = True
        return self.canvas._replace(ids=ids, holes=holes)


async def wait_for_any(requests: Sequence[RequestState], timeout: float | None = None) -> bool:
    """Wait for the next message of any request. Return False if none came in time.

    Read the current states first: messages that came before the call are not reported.
    """
    waits = [asyncio.ensure_future(request.next_change()) for request in requests]
    try:
        return bool((await asyncio.wait(waits, timeout=timeout, return_when=FIRST_COMPLETED))[0])
    finally:
        for wait in waits:
            wait.cancel()


async def wait_until_all_ended(requests: Sequence[RequestState]) -> None:
    """Wait until every request has ended, or one of them has failed."""
    while growing := [request for request in requests if request.outcome is None]:
        if any(isinstance(request.outcome, RequestFailed) for request in requests):
            return
        await wait_for_any(growing)


class RequestRegistry:
    """Requests that can be read: all active ones, and ended ones until their events expire."""

    def __init__(self, *, event_ttl: float, event_bytes: int) -> None:
        """Keep ended requests for `event_ttl` seconds, within `event_bytes` bytes in total.

        The events of active requests are included. Clients may read on in dropped requests,
        within other `event_bytes` bytes.
        """
        self.event_ttl, self.event_bytes = event_ttl, event_bytes
        self.active: dict[str, RequestState] = {}
        self._ended: OrderedDict[str, tuple[float, RequestState]] = OrderedDict()
        self._ended_bytes = 0
        self._read: OrderedDict[str, RequestState] = OrderedDict()  # dropped, with readers

    def find(self, id: str) -> RequestState | None:
        """Return the request with this id, or None if it is unknown or expired."""
        self.evict()
        if id in self.active:
            return self.active[id]
        return self._ended[id][1] if id in self._ended else None

    def close(self, request: RequestState) -> None:
        """Mark a request as ended. It stays readable for a while if it was accepted with events."""
        was_active = self.active.pop(request.id, None) is not None
        if was_active and request.job.events and request.accepted is not None:
            self._ended[request.id] = time.monotonic() + self.event_ttl, request
            self._ended_bytes += request.event_bytes
        self.evict()

    def evict(self) -> None:
        """Drop expired requests, and the oldest ones while the events use too much memory.

        Call this regularly, so that memory is freed even if no request arrives.
        """
        now = time.monotonic()
        allowed = self.event_bytes - sum(one.event_bytes for one in self.active.values())
        while self._ended:
            until, request = next(iter(self._ended.values()))
            if until > now and self._ended_bytes <= allowed:
                break
            self._ended.popitem(last=False)
            self._ended_bytes -= request.event_bytes
            self._read[request.id] = request
        self._end_streams()

    def _end_streams(self) -> None:
        """Forget dropped requests that no one reads, and end the oldest streams of too many."""
        read = {id: request for id, request in self._read.items() if request.readers}
        self._read = OrderedDict(read)
        size = sum(request.event_bytes for request in read.values())
        while size > max(self.event_bytes, READ_BYTES):
            _, request = self._read.popitem(last=False)
            size -= request.event_bytes
            request.expire()


def error_body(failure: RequestFailed) -> dict[str, Any]:
    """Return OpenAI's error object."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    kinds |= {429: "rate_limit_error", 504: "timeout_error"}
    kind = kinds.get(failure.status)
    if kind is None:
        kind = "invalid_request_error" if failure.status < 500 else "server_error"
    return {
        "message": failure.message,
        "type": kind,
        "param": failure.param,
        "code": failure.code,
    }
