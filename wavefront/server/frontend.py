"""The base of both backends: it takes requests in and keeps their states.

`LocalBackend` decodes in one process on this machine. `RayBackend` decodes in replicas.
"""

from __future__ import annotations

import time

from wavefront.server.metrics import Metrics
from wavefront.server.request_state import RequestRegistry, RequestState
from wavefront.server.settings import Settings
from wavefront.server.worker_messages import Job, ModelInfo, RequestFailed, RequestFinished

POLL_INTERVAL = 0.2  # seconds between two checks of timeouts and of the decode processes


class Frontend:
    """Accepts jobs and tracks them to their end; subclasses decode them."""

    state_class: type[RequestState] = RequestState

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.status = "loading"  # then "ready"; "down" during a restart; "stopped" at the end
        self.model_info: ModelInfo | None = None
        self.load_error: str | None = None  # why the first load failed; the server then exits
        self.requests = RequestRegistry(
            event_ttl=settings.limits.event_ttl, event_bytes=settings.limits.event_bytes
        )

    @property
    def capacity(self) -> int:
        """The number of requests that may be active, waiting ones included."""
        return self.settings.limits.rows + self.settings.limits.queue

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a row."""
        return sum(request.started_after is None for request in self.requests.active.values())

    @property
    def client_capacity(self) -> int:
        """The number of requests from one address that may be active, waiting ones included."""
        limits = self.settings.limits
        rows = self.capacity - limits.queue
        return limits.rows_per_client(rows) + limits.queue_per_client

    @property
    def is_stalled(self) -> bool:
        """Whether the decode process has been silent for a suspiciously long time."""
        return False

    def count_of(self, address: str) -> int:
        """Return how many requests from an address are active."""
        return sum(state.job.address == address for state in self.requests.active.values())

    async def start(self) -> None:
        """Start to load the model and to monitor the decode processes."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Fail all active requests and end the decode processes."""
        raise NotImplementedError

    def _start_decode(self, request: RequestState) -> None:
        """Send the request to a decode process."""
        raise NotImplementedError

    def _cancel_decode(self, request: RequestState) -> None:
        """Tell the decode process to stop decoding the request."""
        raise NotImplementedError

    def submit(self, job: Job) -> RequestState:
        """Start a job and return its state."""
        request = self.state_class(job)
        self.requests.active[request.id] = request
        self._start_decode(request)
        self._update_gauges()
        return request

    def cancel(self, request: RequestState, failure: RequestFailed) -> None:
        """End a request with an error. Its row is free before the next step."""
        if request.outcome is None:
            self._cancel_decode(request)
            self._end(request, failure)

    def abort_all(self) -> None:
        """Fail every active request because the server is shutting down."""
        self._fail_all("The server is shutting down: send the request again.", "shutting_down")

    def _end(self, request: RequestState, outcome: RequestFinished | RequestFailed) -> None:
        request.update(outcome)
        self.requests.close(request)
        self.metrics.record_end(request)
        self._update_gauges()

    def _update_gauges(self) -> None:
        self.metrics.set_load(waiting=self.waiting, active=len(self.requests.active))

    def _fail_all(self, message: str, code: str) -> None:
        for request in list(self.requests.active.values()):
            self._end(request, RequestFailed(request.id, 503, message, code))

    def _cancel_expired(self) -> None:
        limits, now = self.settings.limits, time.monotonic()
        self.requests.evict()
        for request in list(self.requests.active.values()):
            allowed = request.job.timeout or limits.request_timeout
            if now - request.arrived > allowed:
                message = (
                    f"The answer took more than {allowed:g} seconds: request fewer tokens or steps."
                )
                self.cancel(request, RequestFailed(request.id, 504, message, "timeout"))
            elif self._is_orphaned(request):
                message = "No client was reading this decode: start it again."
                self.cancel(request, RequestFailed(request.id, 499, message, "cancelled"))

    def _is_orphaned(self, request: RequestState) -> bool:
        if not request.job.detached or request.readers:
            return False
        return time.monotonic() - request.unwatched_since > self.settings.limits.orphan_timeout
