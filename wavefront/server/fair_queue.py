"""Turns: who waits for a row. Clients take turns; within a client, first come first served."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from wavefront.server.worker_messages import Job


class Waiting(Protocol):
    """Whatever carries a request."""

    @property
    def job(self) -> Job: ...


Who = TypeVar("Who", bound=Waiting)


class Queue(Generic[Who]):
    """Lines of clients, and whose turn it is."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Who]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, who: Who) -> None:
        self._lines.setdefault(who.job.client, deque()).append(who)

    def back(self, who: Who) -> None:
        """Its turn came and went through no fault of its own: it is the next."""
        line = self._lines.setdefault(who.job.client, deque())
        line.appendleft(who)
        self._lines.move_to_end(who.job.client, last=False)

    def next(self) -> Who | None:
        """Whose turn it is; their client goes to the back."""
        if not self._lines:
            return None
        client, line = self._lines.popitem(last=False)
        who = line.popleft()
        if line:
            self._lines[client] = line
        return who

    def remove(self, id: str) -> None:
        for client, line in list(self._lines.items()):
            kept = deque(who for who in line if who.job.id != id)
            if len(kept) == len(line):
                continue
            if kept:
                self._lines[client] = kept
            else:
                del self._lines[client]
