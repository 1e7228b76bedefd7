"""A backend with replicas on Ray Serve.

Ray Serve places the replicas, routes requests to them, watches them and replaces them. Its HTTP
proxy is not used: it would route readers of events to the wrong replica, count per replica, and
report a lost replica in a form that OpenAI's clients do not know. So limits, keys, streams and
metrics work as with one local process, however many replicas there are.

If a replica is lost, its requests move to another one, unless a client has read partial output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from wavefront.core.errors import MissingExtraError, WavefrontWarning, install_command
from wavefront.server.fair_queue import ClientShare, FairQueue
from wavefront.server.frontend import POLL_INTERVAL, Frontend
from wavefront.server.metrics import Metrics
from wavefront.server.ray_replica import Coordinator, Replica, ReplicaUpdate
from wavefront.server.request_state import RequestState
from wavefront.server.settings import ReplicaScale, Settings
from wavefront.server.worker_messages import ModelInfo, RequestFailed, RequestFinished
from wavefront.storage.hub import builtin_checkpoints
from wavefront.storage.ray_start import is_own, load_ray, start_ray

STATUS_INTERVAL = 1.0  # seconds between two status requests to Ray Serve
SLOW_START = 60.0  # seconds without all replicas after which a warning is shown
MAX_TRIES = 3  # a request that has lost this many replicas may be the cause
DEPLOYMENT = "decode"
THREAD_NAME = "wavefront-ray-call"


class RayBackend(Frontend):
    """Deploys replicas and distributes requests over them."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__(settings, metrics)
        assert settings.scale is not None
        scale = self.scale = settings.scale
        self.ray, self.serve = load_ray(scale.address), load_serve(scale.address)
        self.name = f"wavefront-{uuid.uuid4().hex[:8]}"
        self.running = 0  # replicas
        self._stalled = 0  # of them
        self._queue = FairQueue[RequestState]()
        self._checking: dict[str, asyncio.Task[None]] = {}
        self._decoding: dict[str, asyncio.Task[None]] = {}
        self._tries: dict[str, int] = {}
        self._busy_rows: dict[str, int] = {}  # by replica
        self._lost: set[str] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._warned: set[str] = set()
        self._handle: Any = None

    @property
    def capacity(self) -> int:
        limits = self.settings.limits
        return limits.rows * self.scale.replicas + limits.queue

    @property
    def is_stalled(self) -> bool:
        return self.status == "ready" and 0 < self.running <= self._stalled

    async def start(self) -> None:
        self._complete_at = time.monotonic()  # the last time at which all replicas were running
        # Ray restarts this actor, but ends it with this process.
        self._coordinator = (
            self.ray.remote(Coordinator).options(num_cpus=0, max_restarts=-1).remote()
        )
        self._tasks = [asyncio.create_task(one) for one in (self._deploy(), self._watch())]

    async def stop(self) -> None:
        self.status = "stopped"
        for task in (*self._tasks, *self._checking.values(), *self._decoding.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.abort_all()
        if is_own(self.scale.address):
            return  # Ray itself ends with this process
        # A deployment still in progress would complete after the deletion.
        await asyncio.to_thread(join_threads)
        with contextlib.suppress(Exception):  # the cluster may already be gone
            await asyncio.wait_for(run_in_thread(lambda: self.serve.delete(self.name)), 10)

    async def _deploy(self) -> None:
        scale, limits = self.scale, self.settings.limits
        application = self.serve.deployment(
            name=DEPLOYMENT,
            num_replicas=scale.replicas,
            # This backend limits the number of requests; Ray Serve only chooses a replica.
            max_ongoing_requests=2 * limits.rows + limits.queue,
            ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
            health_check_period_s=2.0,
            graceful_shutdown_timeout_s=2.0,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )(Replica).bind(replica_settings(self.settings), self._coordinator)

        def start() -> None:
            self.serve.start(proxy_location="Disabled")
            deploy(self.serve, application, self.name)

        try:
            await run_in_thread(start)
        except Exception as error:
            await self._deploy_failed(str(error))

    async def _deploy_failed(self, reason: str) -> None:
        # If a replica could not load, the coordinator has a better message.
        if self.model_info is None and not await self._replica_errors():
            reason = " ".join(reason.split())[:200].rstrip(".")
            self.load_error = f"Ray Serve cannot deploy the model: {reason}."

    async def _watch(self) -> None:
        checked = 0.0
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            self._cancel_expired()
            if time.monotonic() - checked > STATUS_INTERVAL:
                with contextlib.suppress(Exception):  # the next status request may succeed
                    await asyncio.wait_for(self._update_status(), SLOW_START)
                checked = time.monotonic()

    async def _update_status(self) -> None:
        found = (await run_in_thread(self.serve.status)).applications.get(self.name)
        deployment = None if found is None else found.deployments.get(DEPLOYMENT)
        states = {} if deployment is None else deployment.replica_states
        self.running = states.get("RUNNING", 0)
        self.metrics.set_replicas(self.running)
        if found is not None and found.status == "DEPLOY_FAILED":
            await self._deploy_failed(found.message)
        if self.running and self.model_info is None:
            await self._connect()
        self._stalled = await self._coordinator.stalled.remote()
        for message in await self._replica_errors():
            if self.model_info is None:
                self.load_error = message
            self._warn(f"A replica could not load: {message}")
        if self.model_info is not None:
            self.status = "ready" if self.running else "down"
        self._warn_if_incomplete()
        self._dispatch()

    def _warn_if_incomplete(self) -> None:
        """Warn if replicas have been missing for a long time."""
        scale = self.scale
        if self.running >= scale.replicas:
            self._complete_at = time.monotonic()
        elif time.monotonic() - self._complete_at > SLOW_START:
            self._warn(
                f"{self.running} of {scale.replicas} replicas are running: the others are still "
                f"loading, or the cluster lacks {scale.cpus:g} CPUs and {scale.gpus:g} GPUs each."
            )

    async def _connect(self) -> None:
        handle = await run_in_thread(lambda: self.serve.get_app_handle(self.name))
        info = await handle.model_info.remote()
        assert isinstance(info, ModelInfo)
        self._handle, self.model_info = handle, info

    async def _replica_errors(self) -> list[str]:
        return await self._coordinator.load_errors.remote()

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, WavefrontWarning, stacklevel=2)

    @property
    def _free_rows(self) -> int:
        if self.status != "ready":
            return 0
        return self.settings.limits.rows * self.running - len(self._decoding)

    def _start_decode(self, request: RequestState) -> None:
        has_row = self._free_rows > len(self._queue)
        if has_row and self._client_share().may_start(request.job.address):
            self._queue.push(request)
            self._dispatch()
        else:
            task = self._checking[request.id] = asyncio.create_task(self._check(request))
            task.add_done_callback(lambda _: self._checking.pop(request.id))

    def _cancel_decode(self, request: RequestState) -> None:
        self._queue.remove(request.id)
        for tasks in (self._checking, self._decoding):
            if request.id in tasks:
                tasks[request.id].cancel()

    async def _check(self, request: RequestState) -> None:
        """Validate a request before it waits, so that an invalid one fails at once."""
        with contextlib.suppress(Exception):  # the replica was lost: decoding checks it again
            for message in await self._handle.check.remote(request.job):
                self._apply(request, message)
        if request.outcome is None:
            self._queue.push(request)
            self._dispatch()

    def _dispatch(self) -> None:
        """Send as many requests as there are free rows. The others wait in the fair queue."""
        share = self._client_share()
        while self._free_rows > 0 and (request := self._queue.pop(share.may_start)):
            share.add(request.job.address)
            task = self._decoding[request.id] = asyncio.create_task(self._decode(request))
            task.add_done_callback(lambda _, request=request: self._decode_ended(request))

    def _client_share(self) -> ClientShare:
        limits, active = self.settings.limits, self.requests.active
        return ClientShare(
            (active[id].job.address for id in self._decoding if id in active),
            limit=limits.rows_per_client(limits.rows * max(1, self.running)),
        )

    async def _decode(self, request: RequestState) -> None:
        # Only this process knows whether a client reads the events.
        job = replace(request.job, detached=False)
        response = self._handle.options(stream=True).decode.remote(job)
        replica = ""
        try:
            async for update in response:
                replica = update.replica
                self._receive(request, update)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except self.ray.exceptions.RayTaskError:
            message = "The decode failed; the server is still up."
            self._apply(request, RequestFailed(request.id, 500, message, "decode_failed"))
        except Exception:  # Ray reports a lost replica with several types of errors
            self._note_lost(replica)

    def _decode_ended(self, request: RequestState) -> None:
        del self._decoding[request.id]
        if request.outcome is None and self.status != "stopped":
            self._retry(request)
        else:
            self._tries.pop(request.id, None)
        self._dispatch()

    def _receive(self, request: RequestState, update: ReplicaUpdate) -> None:
        for beat in update.heartbeats:
            self._busy_rows[update.replica] = beat.busy
            self.metrics.record_step(beat._replace(busy=sum(self._busy_rows.values())))
        for message in update.messages:
            self._apply(request, message)
        self._update_gauges()

    def _apply(self, request: RequestState, message: Any) -> None:
        if not isinstance(message, RequestFinished | RequestFailed):
            request.update(message)
        elif request.outcome is None:
            self._end(request, message)

    def _retry(self, request: RequestState) -> None:
        """Decode a request again whose replica was lost, unless its output was already read."""
        tries = self._tries[request.id] = self._tries.get(request.id, 0) + 1
        if tries < MAX_TRIES and request.reset():
            self._queue.push_front(request)
        else:
            self._tries.pop(request.id)
            message = "The replica that decoded this request was lost: send the request again."
            self._end(request, RequestFailed(request.id, 503, message, "engine_down"))

    def _note_lost(self, replica: str) -> None:
        if replica and replica not in self._lost:
            self._lost.add(replica)
            self._busy_rows.pop(replica, None)
            self.metrics.record_restart()
            self._warn(f"A replica was lost ({len(self._lost)} so far): Ray starts another.")


def load_serve(address: str | None) -> Any:
    """Import Ray Serve.

    Raises:
        MissingExtraError: Ray Serve is not installed.
    """
    try:
        load_ray(address)
        from ray import serve
    except (ImportError, MissingExtraError):
        raise MissingExtraError(
            f"--engine ray needs Ray Serve: {install_command('ray-serve')}."
        ) from None
    return serve


@contextlib.contextmanager
def ray_cluster(scale: ReplicaScale) -> Iterator[None]:
    """Connect to Ray or start it, and shut down what this process started on exit."""
    serve = load_serve(scale.address)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    started = start_ray(scale.address, cores=math.ceil(scale.replicas * scale.cpus))
    ray = load_ray(scale.address)
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        if gpus and not scale.gpus:
            message = f"No replica uses any of the {gpus:g} GPUs: set --gpus-per-replica."
            warnings.warn(message, WavefrontWarning, stacklevel=2)
        yield
        if not is_own(scale.address):
            with contextlib.suppress(Exception):  # the cluster may already be gone
                remaining = serve.status()
                if not (remaining.applications or remaining.proxies):
                    serve.shutdown()  # no other server uses it
    finally:
        join_threads()
        if started:
            ray.shutdown()


def deploy(serve: Any, application: Any, name: str) -> None:
    """Start a deployment without waiting for it.

    `serve.run` polls Ray every second until the replicas run, even while the server shuts down.
    """
    if not hasattr(serve, "run_many"):  # older versions of Ray always wait
        serve.run(application, name=name, route_prefix=None)
        return
    serve.run_many(
        [serve.RunTarget(application, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def join_threads(timeout: float = 10.0) -> None:
    """Wait for the threads of `run_in_thread`, at most `timeout` seconds in total.

    A call to Ray during its shutdown ends this process with status 1. A deployment after the
    shutdown would never be deleted.
    """
    end = time.monotonic() + timeout
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(max(0.0, end - time.monotonic()))


async def run_in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call in a daemon thread, which does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def deliver(setter: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            setter(value)

    def run() -> None:
        try:
            delivery = (result.set_result, call())
        except Exception as error:
            delivery = (result.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(deliver, *delivery)

    threading.Thread(target=run, daemon=True, name=THREAD_NAME).start()
    return await result


def replica_settings(settings: Settings) -> Settings:
    """Return the settings of a replica: absolute model path, no API key, no stored events."""
    assert settings.scale is not None
    source, local = settings.source, Path(settings.source.model).expanduser()
    if source.model not in (*builtin_checkpoints(), "toy") and local.is_dir():
        source = replace(source, model=str(local.resolve()))
    threads = settings.threads or max(1, int(settings.scale.cpus))
    # The server limits each client's share of all replicas.
    limits = replace(settings.limits, event_ttl=0.0, client_rows=settings.limits.rows)
    # A replica does not listen, so it needs neither the address nor the key.
    kept = replace(settings, source=source, host="127.0.0.1", api_key=None)
    return replace(kept, threads=threads, limits=limits)
