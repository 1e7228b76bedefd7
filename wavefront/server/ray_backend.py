"""The fleet: replicas on Ray Serve behind the one desk of this server.

Ray Serve places replicas, routes to them, watches them and replaces them. HTTP stays here: its own
proxy would send a reader of events to a replica that knows nothing of them, count per replica, and
answer for a dead one in words that no client of OpenAI's knows. So turns, limits, keys, streams and
metrics are those of one server, whatever the number of replicas.

A request whose replica is lost goes to another, unless its client has seen a part of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
import warnings
from dataclasses import replace
from typing import Any

from wavefront.core.errors import WavefrontWarning
from wavefront.server.fair_queue import Queue
from wavefront.server.frontend import WATCH, Desk
from wavefront.server.metrics import Metrics
from wavefront.server.ray_replica import Keeper, Replica, Said
from wavefront.server.ray_serve import aside, begin, load_serve, remote, still
from wavefront.server.request_state import Ticket
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import About, Ended, Refused
from wavefront.storage.ray_start import is_own, load_ray

LOOK = 1.0  # seconds between two questions to Ray Serve
PATIENCE = 60.0  # seconds until it is said what is waited for
TRIES = 3  # replicas that a request may see die: it may be what kills them
DEPLOYMENT = "decode"
LOST = "The replica that decoded this was lost: send the request again."


class Fleet(Desk):
    """A desk with replicas behind it."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__(settings, metrics)
        assert settings.scale is not None
        scale = self.scale = settings.scale
        self.ray, self.serve = load_ray(scale.address), load_serve(scale.address)
        self.name = f"wavefront-{uuid.uuid4().hex[:8]}"
        self.running = 0  # replicas
        self._queue = Queue[Ticket]()
        self._checked: dict[str, asyncio.Task[None]] = {}
        self._carried: dict[str, asyncio.Task[None]] = {}
        self._tries: dict[str, int] = {}
        self._busy: dict[str, int] = {}  # rows of each replica
        self._dead: set[str] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._warned: set[str] = set()
        self._handle: Any = None

    @property
    def room(self) -> int:
        limits = self.settings.limits
        return limits.rows * self.scale.replicas + limits.queue

    async def start(self) -> None:
        self._whole = time.monotonic()  # when all of them were there
        # It restarts, but not when this process is gone.
        self._keeper = self.ray.remote(Keeper).options(num_cpus=0, max_restarts=-1).remote()
        self._tasks = [asyncio.create_task(one) for one in (self._deploy(), self._watch())]

    async def stop(self) -> None:
        """Give the replicas back; whatever is still open is answered."""
        self.state = "stopped"
        for task in (*self._tasks, *self._checked.values(), *self._carried.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.abandon()
        if is_own(self.scale.address):
            return  # all of it ends
        await asyncio.to_thread(still)  # a deployment that is under way would come after its end
        with contextlib.suppress(Exception):  # the cluster may be gone before us
            await asyncio.wait_for(aside(lambda: self.serve.delete(self.name)), 10)

    async def _deploy(self) -> None:
        scale, limits = self.scale, self.settings.limits
        made = self.serve.deployment(
            name=DEPLOYMENT,
            num_replicas=scale.replicas,
            # How many there are is decided here; Ray Serve only has to choose between replicas.
            max_ongoing_requests=2 * limits.rows + limits.queue,
            ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
            health_check_period_s=2.0,
            graceful_shutdown_timeout_s=2.0,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )(Replica).bind(remote(self.settings), self._keeper)

        def deploy() -> None:
            self.serve.start(proxy_location="Disabled")
            begin(self.serve, made, self.name)

        try:
            await aside(deploy)
        except Exception as error:
            await self._undeployed(str(error))

    async def _undeployed(self, reason: str) -> None:
        # That no replica could load is told better by the keeper.
        if self.about is None and not await self._failures():
            reason = " ".join(reason.split())[:200].rstrip(".")
            self.failure = f"Ray Serve cannot deploy the model: {reason}."

    async def _watch(self) -> None:
        looked = 0.0
        while True:
            await asyncio.sleep(WATCH)
            self._give_up_the_late()
            if time.monotonic() - looked > LOOK:
                # Whatever the cluster answers, the next look may find it better.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._look(), PATIENCE)
                looked = time.monotonic()

    async def _look(self) -> None:
        found = (await aside(self.serve.status)).applications.get(self.name)
        deployed = None if found is None else found.deployments.get(DEPLOYMENT)
        states = {} if deployed is None else deployed.replica_states
        self.running = states.get("RUNNING", 0)
        self.metrics.there(self.running)
        if found is not None and found.status == "DEPLOY_FAILED":
            await self._undeployed(found.message)
        if self.running and self.about is None:
            await self._meet()
        for failure in await self._failures():
            if self.about is None:
                self.failure = failure
            self._warn(f"A replica could not load: {failure}")
        if self.about is not None:
            self.state = "ready" if self.running else "down"
        self._count()
        self._dispatch()

    def _count(self) -> None:
        """Say so when replicas are missing for long."""
        asked = self.scale
        if self.running >= asked.replicas:
            self._whole = time.monotonic()
        elif time.monotonic() - self._whole > PATIENCE:
            self._warn(
                f"{self.running} of {asked.replicas} replicas run: the others still load, or the "
                f"cluster has no room for {asked.cpus:g} CPUs and {asked.gpus:g} GPUs each."
            )

    async def _meet(self) -> None:
        handle = await aside(lambda: self.serve.get_app_handle(self.name))
        about = await handle.about.remote()
        assert isinstance(about, About)
        self._handle, self.about = handle, about

    async def _failures(self) -> list[str]:
        return await self._keeper.failed.remote()

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, WavefrontWarning, stacklevel=2)

    @property
    def _rows(self) -> int:
        """Rows that are free."""
        ready = self.state == "ready"
        return self.settings.limits.rows * self.running - len(self._carried) if ready else 0

    def _send(self, ticket: Ticket) -> None:
        if self._rows > len(self._queue):
            self._queue.add(ticket)
            self._dispatch()
        else:
            task = self._checked[ticket.id] = asyncio.create_task(self._check(ticket))
            task.add_done_callback(lambda _: self._checked.pop(ticket.id))

    def _recall(self, ticket: Ticket) -> None:
        self._queue.remove(ticket.id)
        for tasks in (self._checked, self._carried):
            if ticket.id in tasks:
                tasks[ticket.id].cancel()

    async def _check(self, ticket: Ticket) -> None:
        """Whoever has to wait learns at once whether it is worth it."""
        with contextlib.suppress(Exception):  # a replica was lost: it is checked in its turn
            for message in await self._handle.check.remote(ticket.job):
                self._told(ticket, message)
        if ticket.outcome is None:
            self._queue.add(ticket)
            self._dispatch()

    def _dispatch(self) -> None:
        """Hand out as many as there are rows; the others wait here, where turns are kept."""
        while self._rows > 0 and (ticket := self._queue.next()):
            task = self._carried[ticket.id] = asyncio.create_task(self._carry(ticket))
            task.add_done_callback(lambda _, ticket=ticket: self._carry_ends(ticket))

    async def _carry(self, ticket: Ticket) -> None:
        # Whether anybody watches is known here alone.
        job = replace(ticket.job, detached=False)
        response = self._handle.options(stream=True).decode.remote(job)
        where = ""
        try:
            async for said in response:
                where = said.replica
                self._hear(ticket, said)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except self.ray.exceptions.RayTaskError:
            message = "The decode failed; the server goes on."
            self._told(ticket, Refused(ticket.id, 500, message, "decode_failed"))
        except Exception:  # in whatever words it is told that a replica is not there any more
            self._note_death(where)

    def _carry_ends(self, ticket: Ticket) -> None:
        del self._carried[ticket.id]
        if ticket.outcome is None and self.state != "stopped":
            self._again(ticket)
        else:
            self._tries.pop(ticket.id, None)
        self._dispatch()

    def _hear(self, ticket: Ticket, said: Said) -> None:
        for beat in said.beats:
            self._busy[said.replica] = beat.busy
            self.metrics.step(beat._replace(busy=sum(self._busy.values())))
        for message in said.messages:
            self._told(ticket, message)
        self._gauge()

    def _told(self, ticket: Ticket, message: Any) -> None:
        if not isinstance(message, Ended | Refused):
            ticket.hear(message)
        elif ticket.outcome is None:
            self._finish(ticket, message)

    def _again(self, ticket: Ticket) -> None:
        """Its replica is gone: another decodes it, if what it says next cannot contradict it."""
        tries = self._tries[ticket.id] = self._tries.get(ticket.id, 0) + 1
        if tries < TRIES and ticket.forget():
            self._queue.back(ticket)
        else:
            self._tries.pop(ticket.id)
            self._finish(ticket, Refused(ticket.id, 503, LOST, "engine_down"))

    def _note_death(self, replica: str) -> None:
        if replica and replica not in self._dead:
            self._dead.add(replica)
            self._busy.pop(replica, None)
            self.metrics.restarted()
            self._warn(f"A replica was lost ({len(self._dead)} so far): Ray starts another.")
