"""Lanes: the slots of a server. On the CPU there are several, as small as the requests.

A forward costs as much as its board is large, empty rows included. A GPU hides that, and wants one
shape for all (`one`). On a CPU it is the whole price, so lanes are opened as they are needed
(`fit`): their length is the request's, rounded up, and each has as many rows as all that are open
for that length, so that at most half of the places computed are idle.
"""

from __future__ import annotations

from collections.abc import Callable

from wavefront.core.cache_policy import Cache
from wavefront.engine.batcher import ActiveRequest, Batcher, Request, power_of_two
from wavefront.engine.cuda_graphs import Call, eagerly
from wavefront.models.protocol import Model

GRAIN = 32  # places


class Lanes:
    """Rows for requests, `rows` at most, whose boards have at most `length` places."""

    def __init__(
        self,
        model: Model,
        *,
        rows: int,
        length: int,
        steps: int,
        fit: bool,
        cache: Cache | None = None,
        calls: Callable[[], Call] = lambda: eagerly,
    ) -> None:
        """`calls` makes what runs the steps of a lane; a captured step is of one lane only."""
        self.model, self.rows, self.length, self.steps = model, rows, length, steps
        self.fit, self.cache, self._calls = fit, cache, calls
        self.lanes: list[Batcher] = []
        self._probe = Batcher(model, rows=1, length=length, steps=steps, cache=cache)

    @property
    def busy(self) -> int:
        """Rows that somebody holds."""
        return sum(len(lane.seats) for lane in self.lanes)

    @property
    def free(self) -> int:
        return max(0, self.rows - self.busy)

    def check(self, request: Request) -> None:
        """Refuse what could never have a row here."""
        self._probe.check(request)

    def admit(self, request: Request) -> tuple[Batcher, ActiveRequest]:
        """Give a request a row, in a lane that is open or in a new one."""
        size = self.length
        if self.fit:
            size = min(size, max(2, -(-len(request.ids) // GRAIN) * GRAIN))
        fitting = [lane for lane in self.lanes if lane.length == size]
        lane = next((one for one in fitting if one.free), None)
        if lane is None:
            rows = max(1, sum(one.rows for one in fitting)) if self.fit else self.rows
            lane = self._open(rows, size)
        return lane, lane.admit(request)

    def _open(self, rows: int, size: int) -> Batcher:
        lane = Batcher(
            self.model,
            rows=rows,
            length=size,
            steps=self.steps,
            cache=self.cache,
            call=self._calls(),
            bucket=power_of_two,
        )
        self.lanes.append(lane)
        return lane

    def settle(self) -> None:
        """Close the lanes that nobody is in; the only one there is stays."""
        if self.fit:
            self.lanes = [lane for lane in self.lanes if lane.busy]

    def lose(self, lane: Batcher, *, fewer: bool) -> None:
        """Close a lane that cannot go on; for want of memory, decode `fewer` at once from now."""
        self.lanes = [one for one in self.lanes if one is not lane]
        if fewer:
            self.rows = max(1, min(self.rows, self.busy + len(lane.seats) // 2))
