"""A replica: a decode process on a node of a Ray cluster.

The server (`RayBackend`) keeps request states, the queue and metrics, so a replica stores nothing
that outlives a request. If its decode process dies or stalls, the replica ends too, and Ray Serve
starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from wavefront.server.local_backend import LocalBackend
from wavefront.server.metrics import Metrics
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import (
    CLIENT_GONE,
    Heartbeat,
    Job,
    ModelInfo,
    RequestFailed,
    RequestFinished,
    RequestProgress,
)

UPDATE_INTERVAL = 0.05  # seconds between two updates: each costs the server about a millisecond
STALL_TTL = 10.0  # seconds after which the word of a replica that it is stalled expires
MAX_HEARTBEATS = 1000  # kept until the next update


class ReplicaUpdate(NamedTuple):
    """New messages of one request, and the replica's heartbeats since its last update."""

    replica: str
    messages: list[Any]
    heartbeats: list[Heartbeat]


class LoadError(Exception):
    """The model cannot be loaded, or differs from the model of the other replicas."""


class StalledError(Exception):
    """The decode process is silent."""


class Coordinator:
    """A Ray actor that replicas share. When it is gone, replicas know that the server is gone."""

    def __init__(self) -> None:
        self.fingerprint: str | None = None
        self.errors: list[str] = []
        self._stalled: dict[str, float] = {}  # replicas, and when they said so

    def matches(self, fingerprint: str) -> bool:
        """Return whether this model equals the first replica's model.

        Replicas with different models would give different answers to the same request.
        """
        self.fingerprint = self.fingerprint or fingerprint
        return self.fingerprint == fingerprint

    def add_load_error(self, message: str) -> None:
        """Store why a replica could not load."""
        self.errors.append(message)

    def load_errors(self) -> list[str]:
        """Return why replicas could not load."""
        return self.errors

    def set_stalled(self, replica: str, stalled: bool) -> None:
        """Store whether the decode process of a replica is silent."""
        self._stalled.pop(replica, None)
        if stalled:
            self._stalled[replica] = time.monotonic()

    def stalled(self) -> int:
        """Return how many replicas are stalled. A replica that is gone is soon forgotten."""
        now = time.monotonic()
        return sum(now - since < STALL_TTL for since in self._stalled.values())


class HeartbeatBuffer(Metrics):
    """Collects heartbeats for the server, which keeps the metrics."""

    def __init__(self) -> None:
        self._heartbeats = deque[Heartbeat](maxlen=MAX_HEARTBEATS)

    def record_step(self, beat: Heartbeat) -> None:
        if beat.forwards:
            self._heartbeats.append(beat)

    def pop_all(self) -> list[Heartbeat]:
        """Remove and return the heartbeats."""
        heartbeats = list(self._heartbeats)
        self._heartbeats.clear()
        return heartbeats

    def set_replicas(self, count: int) -> None:
        pass

    def set_load(self, *, waiting: int, active: int) -> None:
        pass

    def record_end(self, request: RequestState) -> None:
        pass


class ReplicaRequest(RequestState):
    """A request state that only buffers the messages not sent yet."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._unsent: list[Any] = []
        self._has_unsent, self._ended = asyncio.Event(), asyncio.Event()

    def update(self, message: Any) -> None:
        if self.outcome is not None:
            return
        if isinstance(message, RequestFinished | RequestFailed):
            self.outcome = message
            self._ended.set()
        # If only the result counts, later text is sent together with the end.
        can_wait = (
            not self.job.incremental and isinstance(message, RequestProgress) and bool(self.text)
        )
        if isinstance(message, RequestProgress):
            self.text = self.text or message.text
        self._unsent.append(message)
        if not can_wait:
            self._has_unsent.set()

    async def next_messages(self) -> list[Any]:
        """Wait for messages to send; remove and return them."""
        await self._has_unsent.wait()
        self._has_unsent.clear()
        messages, self._unsent = self._unsent, []
        return messages

    async def wait_before_update(self) -> None:
        """Wait for more messages to collect, unless the request has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), UPDATE_INTERVAL)


class ReplicaBackend(LocalBackend):
    """The decode process of a replica. If it fails, the replica exits too."""

    state_class = ReplicaRequest

    def check(self, job: Job) -> ReplicaRequest:
        """Ask the decode process whether it can decode a job."""
        request = ReplicaRequest(job)
        self.requests.active[request.id] = request
        self._encode(job, self._send_check)
        return request

    async def _restart(self) -> None:
        if self.model_info is None:
            await super()._restart()  # only sets `load_error`
            return
        if self._process is not None:
            self._process.kill_at_once()
        os._exit(1)


class Replica:
    """The class that Ray Serve deploys."""

    async def __init__(self, settings: Settings, coordinator: Any) -> None:
        from ray import serve

        context = serve.get_replica_context()
        self.name, self.app = str(context.replica_tag), context.app_name
        self.coordinator = coordinator
        self.heartbeats = HeartbeatBuffer()
        self.backend = ReplicaBackend(settings, self.heartbeats)
        await self.backend.start()
        while self.backend.model_info is None:
            if self.backend.load_error is not None:
                await self._fail(self.backend.load_error)
            await asyncio.sleep(0.05)
        if not await coordinator.matches.remote(self.backend.model_info.fingerprint):
            await self._fail("Two replicas have different models: use the same on every node.")

    async def _fail(self, message: str) -> None:
        await self.coordinator.add_load_error.remote(message)
        raise LoadError(message)

    async def model_info(self) -> ModelInfo | None:
        """Return the description of the loaded model."""
        return self.backend.model_info

    async def check(self, job: Job) -> list[Any]:
        """Return the messages that accept or reject a job, without decoding it."""
        try:
            return await self.backend.check(job).next_messages()
        finally:
            self.backend.requests.active.pop(job.id, None)

    async def decode(self, job: Job) -> AsyncGenerator[ReplicaUpdate, None]:
        """Decode a job and yield its updates. Closing the generator cancels the job."""
        request = self.backend.submit(job)
        assert isinstance(request, ReplicaRequest)
        try:
            while True:
                messages = await request.next_messages()
                yield ReplicaUpdate(self.name, messages, self.heartbeats.pop_all())
                if any(
                    isinstance(message, RequestFinished | RequestFailed) for message in messages
                ):
                    return
                await request.wait_before_update()
        finally:
            failure = RequestFailed(job.id, 499, *CLIENT_GONE)
            self.backend.cancel(request, failure)

    async def check_health(self) -> None:
        """Delete the deployment if the server is gone. Ray Serve calls this regularly.

        Raises:
            StalledError: The decode process is silent. Ray Serve replaces the replica if this is
                repeated, and its requests move to another one.
        """
        from ray import exceptions, serve

        stalled = self.backend.is_stalled
        try:
            await self.coordinator.set_stalled.remote(self.name, stalled)
        except exceptions.ActorDiedError:
            await asyncio.to_thread(serve.delete, self.app, _blocking=False)
        if stalled and self.backend.has_stepped:
            raise StalledError("The decode process is silent.")
