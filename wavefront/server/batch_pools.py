"""The batchers of a decode process, of one fixed shape or sized to the requests.

The cost of a forward pass grows with the shape of its batch, empty rows included. A GPU hides this
cost and prefers one shape (`fixed`). On a CPU it dominates, so batchers are opened as needed
(`fit`). The length of a new batcher is the request's length, rounded up. Its number of rows is that
of all open batchers of this length, so at most half of the computed positions are idle.

Requests share forward passes if they agree in cache, speculation, guidance and horizon. Requests
that differ from the usual ones get separate batchers, which close when they are done.

A large constraint takes up to a second of host time in every step. Requests with one get separate
slow batchers, and all of them together do no more work in a step than one such request may do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wavefront.core.cache_policy import Cache
from wavefront.core.constraint import MAX_STEP_WORK
from wavefront.engine.batcher import (
    ActiveRequest,
    Batcher,
    Kind,
    Request,
    columns_of,
    has_horizon,
    power_of_two,
)
from wavefront.engine.cuda_graphs import Call, run_eagerly
from wavefront.engine.prefixes import PrefixStore
from wavefront.models.protocol import Model
from wavefront.strategies.caches.blocks import Blocks

LENGTH_MULTIPLE = 32  # positions
SLOW_WORK = MAX_STEP_WORK >> 5  # positions times transitions: about as long as a forward pass


class Key(NamedTuple):
    """What the requests of one batcher have in common."""

    kind: Kind
    horizon: bool = False  # their strategies hide positions, which then need no computation
    slow: bool = False  # their constraints take longer than a forward pass


def constraint_work(request: Request) -> int:
    """Return the positions times the transitions of a request's constraint; 0 without one."""
    automaton = request.plan.config.constraint
    if automaton is None:
        return 0
    answer = request.holes if request.answer is None else request.answer
    return sum(answer) * len(automaton.edges)


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
        prefix_bytes: int = 0,
    ) -> None:
        """Open no batcher yet.

        Args:
            model: The model.
            rows: The number of requests to decode at the same time.
            length: The longest canvas, prompt included.
            steps: The largest number of steps of a request.
            fit: Size batchers to the requests, instead of one batcher for all.
            cache: The cache policy of most requests.
            make_call: Makes what runs the steps of a batcher. CUDA graphs belong to one batcher.
            prefix_bytes: Memory for keys and values of prompts, which requests of all batchers
                share.
        """
        self.model, self.rows, self.length, self.steps = model, rows, length, steps
        self.fit, self.cache, self._make_call = fit, cache, make_call
        self.batchers: list[Batcher] = []
        self.prefixes = PrefixStore(model, prefix_bytes)
        self._keys: dict[int, Key] = {}  # by the id of a batcher
        # Decodes of a block-causal model use its exact cache, and hide the blocks to come.
        by_block = model.block_size is not None
        self._usual = Key(Kind(Blocks()), horizon=True) if by_block else Key(Kind(cache))
        self._checker = Batcher(model, rows=1, length=length, steps=steps)

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

    def is_slow(self, batcher: Batcher) -> bool:
        """Return whether the constraints of a batcher take longer than its forward pass."""
        return self._keys[id(batcher)].slow

    def may_start(self, request: Request) -> bool:
        """Return whether a request may start now, or its constraint must wait for others."""
        work = constraint_work(request)
        if work <= SLOW_WORK:
            return True
        active = sum(
            constraint_work(other.request)
            for batcher in self.batchers
            if self.is_slow(batcher)
            for other in batcher.active.values()
            if other.request is not None
        )
        return not active or active + work <= MAX_STEP_WORK

    def admit(self, request: Request) -> tuple[Batcher, ActiveRequest]:
        """Give a request a row, in an open batcher or in a new one."""
        key = Key(
            Kind.of(request.plan),
            has_horizon(request.plan.config.strategy),
            slow=constraint_work(request) > SLOW_WORK,
        )
        fit = self.fit or key != self._usual
        length = self.length
        if fit:
            rounded = -(-columns_of(self.model, request) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
            length = min(length, max(2, rounded))
        alike = [b for b in self.batchers if b.length == length and self._keys[id(b)] == key]
        batcher = next((batcher for batcher in alike if batcher.free), None)
        if batcher is None:
            rows = max(1, sum(batcher.rows for batcher in alike)) if fit else self.rows
            batcher = self._open(rows, length, key)
        return batcher, batcher.admit(request)

    def _open(self, rows: int, length: int, key: Key) -> Batcher:
        batcher = Batcher(
            self.model,
            rows=rows,
            length=length,
            steps=self.steps,
            call=self._make_call(),
            bucket=power_of_two,
            prefixes=self.prefixes,
        )
        self.batchers.append(batcher)
        self._keys[id(batcher)] = key
        return batcher

    def close_idle(self) -> None:
        """Close batchers without requests. With one fixed shape, the usual batcher stays open."""
        self.batchers = [
            batcher
            for batcher in self.batchers
            if batcher.busy or (not self.fit and self._keys[id(batcher)] == self._usual)
        ]
        self._keys = {id(batcher): self._keys[id(batcher)] for batcher in self.batchers}

    def discard(self, batcher: Batcher, *, reduce_rows: bool) -> None:
        """Close a batcher whose step failed.

        With `reduce_rows`, admit fewer requests from now on, to use less memory.
        """
        self.batchers = [other for other in self.batchers if other is not batcher]
        if reduce_rows:
            self.rows = max(1, min(self.rows, self.busy + len(batcher.active) // 2))
