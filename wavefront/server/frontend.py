"""The desk: where requests are taken in and told what became of them, whoever decodes them.

An engine is a desk with something behind it: one process (`engine`), or replicas (`fleet`).
"""

from __future__ import annotations

import time

from wavefront.server.metrics import Metrics
from wavefront.server.request_state import Shelf, Ticket
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import About, Ended, Job, Refused

WATCH = 0.2  # seconds between two looks at what is behind the desk


class Desk:
    """Requests go in by `submit`; what becomes of them is told to their tickets."""

    ticket: type[Ticket] = Ticket

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.state = "loading"  # then "ready"; "down" until another has loaded; "stopped"
        self.about: About | None = None
        self.failure: str | None = None  # why the first could not load; there is no second
        self.shelf = Shelf(seconds=settings.limits.keep, most=settings.limits.kept)

    @property
    def room(self) -> int:
        """Requests that may be open at a time."""
        return self.settings.limits.rows + self.settings.limits.queue

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return sum(ticket.seated is None for ticket in self.shelf.open.values())

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def _send(self, ticket: Ticket) -> None:
        """Have it decoded."""
        raise NotImplementedError

    def _recall(self, ticket: Ticket) -> None:
        """Nobody wants it any more."""
        raise NotImplementedError

    def submit(self, job: Job) -> Ticket:
        """Send a request on its way."""
        ticket = self.ticket(job)
        self.shelf.open[ticket.id] = ticket
        self._send(ticket)
        self._gauge()
        return ticket

    def drop(self, ticket: Ticket, refused: Refused) -> None:
        """Give a request up; its row is free before the next step."""
        if ticket.outcome is None:
            self._recall(ticket)
            self._finish(ticket, refused)

    def abandon(self) -> None:
        """Tell all that wait that there is no time left."""
        self._fail_all("The server is shutting down: send the request again.", "shutting_down")

    def _finish(self, ticket: Ticket, outcome: Ended | Refused) -> None:
        ticket.hear(outcome)
        self.shelf.close(ticket)
        self.metrics.ended(ticket)
        self._gauge()

    def _gauge(self) -> None:
        self.metrics.load(waiting=self.waiting, open=len(self.shelf.open))

    def _fail_all(self, message: str, code: str) -> None:
        for ticket in list(self.shelf.open.values()):
            self._finish(ticket, Refused(ticket.id, 503, message, code))

    def _give_up_the_late(self) -> None:
        limits, now = self.settings.limits, time.monotonic()
        for ticket in list(self.shelf.open.values()):
            allowed = ticket.job.seconds or limits.seconds
            if now - ticket.arrived > allowed:
                message = f"The answer took more than {allowed:g} seconds: ask for less."
                self.drop(ticket, Refused(ticket.id, 504, message, "timeout"))
            elif self._forgotten(ticket):
                message = "Nobody has been watching this decode: start it again."
                self.drop(ticket, Refused(ticket.id, 499, message, "cancelled"))

    def _forgotten(self, ticket: Ticket) -> bool:
        if not ticket.job.detached or ticket.readers:
            return False
        return time.monotonic() - ticket.unwatched_since > self.settings.limits.alone
