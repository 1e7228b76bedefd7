"""The state of each request in the HTTP process, and a registry of these states.

A state holds a growing text and a growing list of events. Every reader keeps its own position in
them and waits for more. So a slow reader blocks nobody and loses nothing, and the data is stored
once however many readers there are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from typing import Any

from wavefront.server.worker_messages import (
    Accepted,
    CanvasSnapshot,
    Finished,
    Job,
    Progress,
    RequestFailed,
    Started,
)

EVENT_OVERHEAD = 64  # bytes that an event needs in memory besides its JSON


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
        self.accepted: Accepted | None = None
        self.outcome: Finished | RequestFailed | None = None
        self.text = ""
        self.events: list[bytes] = []
        self.commits: list[tuple[list[list[Any]], list[int]]] = []  # per step, for forks
        self.event_bytes = 0
        self.readers = 0
        self.unwatched_since = self.arrived
        self._change = asyncio.Event()

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def canvas(self) -> CanvasSnapshot | None:
        """The canvas at the start, if it is known."""
        return None if self.accepted is None else self.accepted.canvas

    def update(self, message: Accepted | Started | Progress | Finished | RequestFailed) -> None:
        """Apply a message of the decode process and wake all readers.

        Messages after the end are ignored.
        """
        if self.outcome is not None:
            return
        now = time.monotonic() - self.arrived
        if isinstance(message, Accepted):
            if self.accepted is None:
                self._add_event(message.start_event)
            self.accepted = message
        elif isinstance(message, Started):
            self.started_after = now
        elif isinstance(message, RequestFailed):
            self.outcome, self.ended_after = message, now
            if self.job.events:
                self._add_event({"type": "error", "error": error_body(message)})
        else:
            if message.text and self.first_text_after is None:
                self.first_text_after = now
            self.text += message.text
            self._add_event(message.event)
            if isinstance(message, Finished):
                self.outcome, self.ended_after = message, now
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _add_event(self, event: dict[str, Any] | None) -> None:
        if event is None:
            return
        if event["type"] == "step":
            self.commits.append((event["commits"], event["back"]))
        encoded = json.dumps(event, separators=(",", ":")).encode()
        self.events.append(encoded)
        self.event_bytes += len(encoded) + EVENT_OVERHEAD

    def reset(self) -> bool:
        """Discard all output so that another replica can decode the request again.

        Return False, and change nothing, if a client may have read some of the output.
        """
        if self.job.incremental and (self.text or self.commits):
            return False
        self.started_after, self.text, self.commits = None, "", []
        self.events = self.events[:1]  # the start event does not change
        self.event_bytes = sum(len(event) + EVENT_OVERHEAD for event in self.events)
        return True

    async def wait_for_change(self, timeout: float | None = None) -> bool:
        """Wait for the next message. Return False if none came in time.

        Read the current state first: messages that came before the call are not reported.
        """
        try:
            await asyncio.wait_for(self._change.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def wait_until_checked(self) -> None:
        """Wait until the request is either accepted or failed."""
        while self.accepted is None and self.outcome is None:
            await self.wait_for_change()

    async def wait_until_ended(self) -> Finished | RequestFailed:
        """Wait for the outcome and return it."""
        while self.outcome is None:
            await self.wait_for_change()
        return self.outcome

    def canvas_at(self, step: int) -> CanvasSnapshot:
        """Return the canvas after the first `step` steps."""
        assert self.canvas is not None
        ids, holes = list(self.canvas.ids), list(self.canvas.holes)
        positions = [n for n, in_answer in enumerate(self.canvas.answer) if in_answer]
        for commits, remasked in self.commits[:step]:
            for position, token, *_ in commits:
                ids[positions[position]], holes[positions[position]] = token, False
            for position in remasked:
                holes[positions[position]] = True
        return self.canvas._replace(ids=ids, holes=holes)


class RequestRegistry:
    """Requests that can be read: all active ones, and ended ones until their events expire."""

    def __init__(self, *, event_ttl: float, event_bytes: int) -> None:
        """Keep ended requests for `event_ttl` seconds, within `event_bytes` bytes in total."""
        self.event_ttl, self.event_bytes = event_ttl, event_bytes
        self.active: dict[str, RequestState] = {}
        self._ended: OrderedDict[str, tuple[float, RequestState]] = OrderedDict()

    def find(self, id: str) -> RequestState | None:
        """Return the request with this id, or None if it is unknown or expired."""
        self._evict()
        if id in self.active:
            return self.active[id]
        return self._ended[id][1] if id in self._ended else None

    def close(self, request: RequestState) -> None:
        """Mark a request as ended. It stays readable for a while if it has events."""
        if self.active.pop(request.id, None) is not None and request.job.events:
            self._ended[request.id] = time.monotonic() + self.event_ttl, request
        self._evict()

    def _evict(self) -> None:
        """Drop expired requests, and the oldest ones while the events use too much memory."""
        now = time.monotonic()
        total = sum(request.event_bytes for _, request in self._ended.values())
        while self._ended:
            until, request = next(iter(self._ended.values()))
            if until > now and total <= self.event_bytes:
                return
            self._ended.popitem(last=False)
            total -= request.event_bytes


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
