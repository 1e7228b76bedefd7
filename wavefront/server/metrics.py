"""Prometheus metrics, named as in other inference engines where they have the same metric."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wavefront.server.request_state import RequestState
from wavefront.server.worker_messages import Heartbeat, RequestFinished

BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
)  # seconds


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"wavefront:{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"wavefront:{name}", text, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"wavefront:{name}", text, buckets=BUCKETS, registry=registry)

        self.responses = counter("requests", "Responses by route and status.", ("route", "status"))
        self.rejections = counter(
            "admission_rejections", "Requests rejected because of load, by reason.", ("reason",)
        )
        self.connections = gauge("connections", "Open connections.")
        self.connections_closed = counter(
            "connections_closed", "Connections closed because of a limit, by reason.", ("reason",)
        )
        self.outcomes = counter("request_success", "Ended requests by reason.", ("reason",))
        self.running = gauge("num_requests_running", "Requests that have a row.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait for a row.")
        self.busy_rows = gauge("slots_busy", "Rows in use at the last step.")
        self.steps = counter("steps", "Steps of the decode process.")
        self.forwards = counter("forwards", "Forward passes of the model.")
        self.commits = counter(
            "committed_tokens", "Committed tokens, including those after the stop token."
        )
        self.tokens = counter("generation_tokens", "Visible tokens of finished answers.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished answers.")
        self.cached_tokens = counter(
            "prefix_cache_hits", "Prompt tokens of finished answers that another request computed."
        )
        self.restarts = counter("engine_restarts", "Restarts of decode processes.")
        self.replicas = gauge("replicas", "Decode processes that are ready.")
        self.step_seconds = histogram("step_seconds", "Duration of a step.")
        self.first_text = histogram("time_to_first_token_seconds", "Time to the first text.")
        self.queue_time = histogram("request_queue_time_seconds", "Time spent waiting for a row.")
        self.latency = histogram("e2e_request_latency_seconds", "Duration of a request.")

    def record_step(self, beat: Heartbeat) -> None:
        """Count the step that a heartbeat reports, if it reports one."""
        self.busy_rows.set(beat.busy)
        if beat.forwards:
            self.steps.inc()
            self.forwards.inc(beat.forwards)
            self.commits.inc(beat.commits)
            self.step_seconds.observe(beat.seconds)

    def set_load(self, *, waiting: int, active: int) -> None:
        """Set the numbers of waiting requests and of all active requests."""
        self.waiting.set(waiting)
        self.running.set(active - waiting)

    def set_replicas(self, count: int) -> None:
        """Set the number of decode processes that are ready."""
        self.replicas.set(count)

    def record_restart(self) -> None:
        """Count a restart of a decode process."""
        self.restarts.inc()

    def record_end(self, request: RequestState) -> None:
        """Count a request that has ended, with its times and tokens."""
        outcome = request.outcome
        if request.started_after is not None:
            self.queue_time.observe(request.started_after)
        if not isinstance(outcome, RequestFinished):
            self.outcomes.labels(getattr(outcome, "code", "error")).inc()
            return
        self.outcomes.labels(outcome.finish_reason).inc()
        self.tokens.inc(outcome.completion_tokens)
        self.cached_tokens.inc(outcome.cached_tokens)
        if request.accepted is not None:
            self.prompt_tokens.inc(request.accepted.prompt_tokens)
        if request.first_text_after is not None:
            self.first_text.observe(request.first_text_after)
        self.latency.observe(request.ended_after or 0.0)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
