"""The batchers of a decode process, of one fixed shape or sized to the requests.

The cost of a forward pass grows with the shape of its batch, empty rows included. A GPU hides this
cost and prefers one shape (`fixed`). On a CPU it dominates, so batchers are opened as needed
(`fit`). The length of a new batcher is the request's length, rounded up. Its number of rows is that
of all open batchers of this length, so at most half of the computed positions are idle.

Requests share forward passes if they agree in cache, speculation, guidance and horizon. Requests
that differ from the usual ones get batchers of their own, which close when they are done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wavefront.core.cache_policy import Cache
from wavefront.engine.batcher import (
    ActiveRequest,
    Batcher,
    Kind,
    Request,
    has_horizon,
    power_of_two,
)
from wavefront.engine.cuda_graphs import Call, run_eagerly
from wavefront.models.protocol import Model

LENGTH_MULTIPLE = 32  # positions


class Key(NamedTuple):
    """What the requests of one batcher have in common."""

    kind: Kind
    horizon: bool = False  # their strategies hide positions, which then need no computation


class BatchPools:
    """Batchers that together decode at most `rows` requests of at most `length` positions."""

    def __init__(
        self,
        model: Model,
        *,
        rows: int,
        length: int,
        steps: int,
        fit: bool,
        cache: Cache | None = None,
        make_call: Callable[[], Call] = lambda: run_eagerly,
    ) -> None:
        """Open no batcher yet.

        Args:
            model: The model.
            rows: The number of requests to decode at the same time.
            length: The longest canvas, prompt included.
            steps: The largest number of steps of a request.
            fit: Size batchers to the requests, instead of one batcher for all.
            cache: The cache policy of requests that name none.
            make_call: Makes what runs the steps of a batcher. CUDA graphs belong to one batcher.
        """
        self.model, self.rows, self.length, self.steps = model, rows, length, steps
        self.fit, self.cache, self._make_call = fit, cache, make_call
        self.batchers: list[Batcher] = []
        self._keys: dict[int, Key] = {}  # by the id of a batcher
        self._checker = Batcher(model, rows=1, length=length, steps=steps, cache=cache)

    @property
    def busy(self) -> int:
        """The number of rows in use."""
        return sum(len(batcher.active) for batcher in self.batchers)

    @property
    def free(self) -> int:
        """The number of requests that can be admitted now."""
        return max(0, self.rows - self.busy)

    def check(self, request: Request) -> None:
        """Raise a `WavefrontError` if the request can never be admitted."""
        self._checker.check(request)

    def admit(self, request: Request) -> tuple[Batcher, ActiveRequest]:
        """Give a request a row, in an open batcher or in a new one."""
        key = Key(Kind.of(request.plan, self.cache), has_horizon(self.model, request))
        fit = self.fit or key != Key(Kind(self.cache))
        length = self.length
        if fit:
            rounded = -(-len(request.ids) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
            length = min(length, max(2, rounded))
        alike = [b for b in self.batchers if b.length == length and self._keys[id(b)] == key]
        batcher = next((batcher for batcher in alike if batcher.free), None)
        if batcher is None:
            rows = max(1, sum(one.rows for one in alike)) if fit else self.rows
            batcher = self._open(rows, length, key)
        return batcher, batcher.admit(request)

    def _open(self, rows: int, length: int, key: Key) -> Batcher:
        batcher = Batcher(
            self.model,
            rows=rows,
            length=length,
            steps=self.steps,
            cache=self.cache,
            call=self._make_call(),
            bucket=power_of_two,
        )
        self.batchers.append(batcher)
        self._keys[id(batcher)] = key
        return batcher

    def close_idle(self) -> None:
        """Close batchers without requests. With one fixed shape, the usual batcher stays open."""
        usual = Key(Kind(self.cache))
        self.batchers = [
            batcher
            for batcher in self.batchers
            if batcher.busy or (not self.fit and self._keys[id(batcher)] == usual)
        ]
        self._keys = {id(batcher): self._keys[id(batcher)] for batcher in self.batchers}

    def discard(self, batcher: Batcher, *, reduce_rows: bool) -> None:
        """Close a batcher whose step failed.

        With `reduce_rows`, admit fewer requests from now on, to use less memory.
        """
        self.batchers = [one for one in self.batchers if one is not batcher]
        if reduce_rows:
            self.rows = max(1, min(self.rows, self.busy + len(batcher.active) // 2))
