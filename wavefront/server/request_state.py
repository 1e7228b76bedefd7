"""Tickets: a request as the HTTP process sees it, and the shelf of those that have ended.

A ticket is a growing text and a growing list of events. Every reader has its own place in them and
waits for more; so nobody's reading can hold up another's, and nothing is ever lost to one that is
slow. What a reader has not taken yet is kept once, here, however many there are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from typing import Any

from wavefront.server.worker_messages import Board, Ended, Job, Refused, Seated, Taken, Told


class Ticket:
    """A request, from its arrival to some minutes after its end."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.created = time.time()
        self.arrived = time.monotonic()
        self.first_text: float | None = None  # seconds from the arrival, as the next
        self.seated: float | None = None
        self.over: float | None = None
        self.taken: Taken | None = None
        self.outcome: Ended | Refused | None = None
        self.text = ""
        self.events: list[bytes] = []
        self.commits: list[tuple[list[list[Any]], list[int]]] = []  # per step, for forks
        self.size = 0  # bytes of events
        self.readers = 0
        self.unwatched_since = self.arrived
        self._change = asyncio.Event()

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def board(self) -> Board | None:
        return None if self.taken is None else self.taken.board

    def hear(self, message: Taken | Seated | Told | Ended | Refused) -> None:
        """Something became of it; whoever waits is woken."""
        if self.outcome is not None:
            return
        now = time.monotonic() - self.arrived
        if isinstance(message, Taken):
            if self.taken is None:
                self._note(message.first)
            self.taken = message
        elif isinstance(message, Seated):
            self.seated = now
        elif isinstance(message, Refused):
            self._end(message, now)
            if self.job.events:
                self._note({"type": "error", "error": error_body(message)})
        else:
            if message.text and self.first_text is None:
                self.first_text = now
            self.text += message.text
            self._note(message.event)
            if isinstance(message, Ended):
                self._end(message, now)
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _end(self, outcome: Ended | Refused, now: float) -> None:
        self.outcome, self.over = outcome, now

    def _note(self, event: dict[str, Any] | None) -> None:
        if event is None:
            return
        if event["type"] == "step":
            self.commits.append((event["commits"], event["back"]))
        told = json.dumps(event, separators=(",", ":")).encode()
        self.events.append(told)
        self.size += len(told) + 64

    def forget(self) -> bool:
        """Begin anew, as if nothing had happened; False when somebody has seen that it has."""
        if self.job.told and (self.text or self.commits):
            return False
        self.seated, self.text, self.commits = None, "", []
        self.events = self.events[:1]  # how it begins, which is the same again
        self.size = sum(len(one) + 64 for one in self.events)
        return True

    async def more(self, seconds: float | None = None) -> bool:
        """Wait for a change; False when none came in time. Look before you wait."""
        try:
            await asyncio.wait_for(self._change.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def until_taken(self) -> None:
        """Wait until it is known whether it can be decoded at all."""
        while self.taken is None and self.outcome is None:
            await self.more()

    async def until_over(self) -> Ended | Refused:
        while self.outcome is None:
            await self.more()
        return self.outcome

    def board_at(self, step: int) -> Board:
        """The canvas after so many of its steps."""
        assert self.board is not None
        ids, holes = list(self.board.ids), list(self.board.holes)
        places = [n for n, mine in enumerate(self.board.answer) if mine]
        for commits, back in self.commits[:step]:
            for place, token, *_ in commits:
                ids[places[place]], holes[places[place]] = token, False
            for place in back:
                holes[places[place]] = True
        return self.board._replace(ids=ids, holes=holes)


class Shelf:
    """Tickets that can be read: those under way, and those that ended, for a while."""

    def __init__(self, *, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.open: dict[str, Ticket] = {}
        self._ended: OrderedDict[str, tuple[float, Ticket]] = OrderedDict()

    def find(self, id: str) -> Ticket | None:
        self.tidy()
        if id in self.open:
            return self.open[id]
        return self._ended[id][1] if id in self._ended else None

    def close(self, ticket: Ticket) -> None:
        """It has ended; what it tells can be read for a while, if it tells anything."""
        if self.open.pop(ticket.id, None) is not None and ticket.job.events:
            self._ended[ticket.id] = time.monotonic() + self.seconds, ticket
        self.tidy()

    def tidy(self) -> None:
        """Forget what is old, and the oldest of what is too much."""
        now, total = time.monotonic(), sum(one.size for _, one in self._ended.values())
        while self._ended:
            until, ticket = next(iter(self._ended.values()))
            if until > now and total <= self.most:
                return
            self._ended.popitem(last=False)
            total -= ticket.size


def error_body(refused: Refused) -> dict[str, Any]:
    """OpenAI's error object."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    kinds |= {429: "rate_limit_error", 504: "timeout_error"}
    kind = kinds.get(refused.status)
    if kind is None:
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {
        "message": refused.message,
        "type": kind,
        "param": refused.param,
        "code": refused.code,
    }
