"""A queue in which addresses take turns, and the clients of an address take turns within it.

Clients choose their own names. An address that uses many names gets no more turns than another.
Within a client, requests are served in order of arrival.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
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
        self._lines: OrderedDict[str, OrderedDict[str, deque[Item]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(line) for lines in self._lines.values() for line in lines.values())

    def push(self, item: Item) -> None:
        """Add an item to the end of its client's line."""
        self._line(item).append(item)

    def push_front(self, item: Item) -> None:
        """Put an item at the front of the queue, for example because its replica was lost."""
        self._line(item).appendleft(item)
        self._lines[item.job.address].move_to_end(item.job.client, last=False)
        self._lines.move_to_end(item.job.address, last=False)

    def _line(self, item: Item) -> deque[Item]:
        lines = self._lines.setdefault(item.job.address, OrderedDict())
        return lines.setdefault(item.job.client, deque())

    def pop(
        self,
        may_start: Callable[[str], bool] = lambda address: True,
        fits: Callable[[Item], bool] = lambda item: True,
    ) -> Item | None:
        """Remove and return the next item that fits, of an address that may start one, or None.

        The address moves behind all other addresses, and the client behind its other clients.
        Items that do not fit keep their places.
        """
        for address, lines in self._lines.items():
            if not may_start(address):
                continue
            for client, line in lines.items():
                item = next((item for item in line if fits(item)), None)
                if item is not None:
                    line.remove(item)
                    self._move_back(address, client)
                    return item
        return None

    def _move_back(self, address: str, client: str) -> None:
        """Let all others go first. Forget a client or an address without items."""
        lines = self._lines.pop(address)
        if line := lines.pop(client):
            lines[client] = line
        if lines:
            self._lines[address] = lines

    def remove(self, id: str) -> None:
        """Remove the item whose job has this id, if there is one."""
        for address, lines in list(self._lines.items()):
            for client, line in list(lines.items()):
                kept = deque(item for item in line if item.job.id != id)
                if kept:
                    lines[client] = kept
                else:
                    del lines[client]
            if not lines:
                del self._lines[address]


class ClientShare:
    """Counts and limits the rows of each address. Requests without an address have no limit."""

    def __init__(self, addresses: Iterable[str], *, limit: int) -> None:
        """Count `addresses`, one for each row in use, and allow each at most `limit` rows."""
        self._used, self._limit = Counter(addresses), limit

    def may_start(self, address: str) -> bool:
        """Return whether an address may use another row."""
        return not address or self._used[address] < self._limit

    def add(self, address: str) -> None:
        """Count a row that an address uses from now on."""
        self._used[address] += 1
