"""A queue in which clients take turns. Within a client, requests are served in order of arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from wavefront.server.worker_messages import Job


class HasJob(Protocol):
    """Anything that carries a job."""

    @property
    def job(self) -> Job: ...


Item = TypeVar("Item", bound=HasJob)


class FairQueue(Generic[Item]):
    """One line per client, served round robin."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def push(self, item: Item) -> None:
        """Add an item to the end of its client's line."""
        self._lines.setdefault(item.job.client, deque()).append(item)

    def push_front(self, item: Item) -> None:
        """Make this item the next one, for example because its replica was lost."""
        line = self._lines.setdefault(item.job.client, deque())
        line.appendleft(item)
        self._lines.move_to_end(item.job.client, last=False)

    def pop(self) -> Item | None:
        """Remove and return the next item, or None if the queue is empty.

        The client of the item moves behind all other clients.
        """
        if not self._lines:
            return None
        client, line = self._lines.popitem(last=False)
        item = line.popleft()
        if line:
            self._lines[client] = line
        return item

    def remove(self, id: str) -> None:
        """Remove the item whose job has this id, if there is one."""
        for client, line in list(self._lines.items()):
            kept = deque(item for item in line if item.job.id != id)
            if len(kept) == len(line):
                continue
            if kept:
                self._lines[client] = kept
            else:
                del self._lines[client]
