"""A replica: a decode process on a node of a cluster, as Ray Serve starts it and asks it.

Its front (`fleet`) is the server itself, which keeps tickets, turns and metrics. So a replica holds
nothing that anybody would come back for; one whose decode process dies or is stuck leaves with it,
because to start another replica is Ray Serve's trade.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from wavefront.server.local_backend import Engine
from wavefront.server.metrics import Metrics
from wavefront.server.request_state import Ticket
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import About, Beat, Check, Ended, Job, Refused, Told

PACE = 0.05  # seconds between two messages of a request: each costs the front near a millisecond
MOST = 1000  # beats that are kept until somebody takes them along


class Said(NamedTuple):
    """What a replica sends: what became of a request, and of all since somebody asked."""

    replica: str
    messages: list[Any]
    beats: list[Beat]


class LoadError(Exception):
    """The model cannot be loaded, or is not that of the others."""


class Keeper:
    """What replicas have in common. It goes when their front does, and by that they know."""

    def __init__(self) -> None:
        self.fingerprint: str | None = None
        self.failures: list[str] = []

    def agree(self, fingerprint: str) -> bool:
        """All replicas hold the same model, or the answers would depend on who gave them."""
        self.fingerprint = self.fingerprint or fingerprint
        return self.fingerprint == fingerprint

    def note(self, failure: str) -> None:
        self.failures.append(failure)

    def failed(self) -> list[str]:
        return self.failures


class Tally(Metrics):
    """Beats, kept for the front, which does the counting."""

    def __init__(self) -> None:
        self.beats = deque[Beat](maxlen=MOST)

    def step(self, beat: Beat) -> None:
        if beat.forwards:
            self.beats.append(beat)

    def selector(self) -> list[Beat]:
        beats = list(self.beats)
        self.beats.clear()
        return beats

    def there(self, replicas: int) -> None:
        pass

    def load(self, *, waiting: int, open: int) -> None:
        pass

    def ended(self, ticket: Ticket) -> None:
        pass


class Relay(Ticket):
    """A ticket that keeps nothing but what is still to be sent."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._box: list[Any] = []
        self._some, self._over = asyncio.Event(), asyncio.Event()

    def hear(self, message: Any) -> None:
        if self.outcome is not None:
            return
        if isinstance(message, Ended | Refused):
            self.outcome = message
            self._over.set()
        # Where only the whole answer is wanted, its parts travel with the end.
        quiet = not self.job.told and isinstance(message, Told) and bool(self.text)
        if isinstance(message, Told):
            self.text = self.text or message.text
        self._box.append(message)
        if not quiet:
            self._some.set()

    async def said(self) -> list[Any]:
        await self._some.wait()
        self._some.clear()
        box, self._box = self._box, []
        return box

    async def pause(self) -> None:
        """Let more come together, unless it is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), PACE)


class ReplicaBackend(Engine):
    """The decode process of a replica."""

    ticket = Relay

    def check(self, job: Job) -> Relay:
        """Ask whether it can be decoded."""
        ticket = Relay(job)
        self.shelf.open[ticket.id] = ticket
        self._outbox.put(Check(job))
        return ticket

    async def _restart(self) -> None:
        if self.about is None:
            await super()._restart()  # which only says why
            return
        self._process.kill()
        os._exit(1)


class Replica:
    """What Ray Serve deploys."""

    async def __init__(self, settings: Settings, keeper: Any) -> None:
        from ray import serve

        context = serve.get_replica_context()
        self.name, self.app, self.keeper = str(context.replica_tag), context.app_name, keeper
        self.tally = Tally()
        self.engine = ReplicaBackend(settings, self.tally)
        await self.engine.start()
        while self.engine.about is None:
            if self.engine.failure is not None:
                await self._fail(self.engine.failure)
            await asyncio.sleep(0.05)
        if not await keeper.agree.remote(self.engine.about.fingerprint):
            await self._fail("Two replicas hold different models: give every node the same.")

    async def _fail(self, failure: str) -> None:
        await self.keeper.note.remote(failure)
        raise LoadError(failure)

    async def about(self) -> About | None:
        return self.engine.about

    async def check(self, job: Job) -> list[Any]:
        """Whether it can be decoded: for those that wait for a row."""
        try:
            return await self.engine.check(job).said()
        finally:
            self.engine.shelf.open.pop(job.id, None)

    async def decode(self, job: Job) -> AsyncGenerator[Said, None]:
        """All that becomes of a request. Whoever stops listening gives it up."""
        ticket = self.engine.submit(job)
        assert isinstance(ticket, Relay)
        try:
            while True:
                messages = await ticket.said()
                yield Said(self.name, messages, self.tally.selector())
                if any(isinstance(one, Ended | Refused) for one in messages):
                    return
                await ticket.pause()
        finally:
            self.engine.drop(ticket, Refused(job.id, 499, "Nobody listens.", "client_gone"))

    async def check_health(self) -> None:
        """Asked by Ray Serve now and then; the time to see whether there still is a front."""
        from ray import exceptions, serve

        try:
            await self.keeper.failed.remote()
        except exceptions.ActorDiedError:
            await asyncio.to_thread(serve.delete, self.app, _blocking=False)
