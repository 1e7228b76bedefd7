"""Metrics: what Prometheus is told, under the stems that other engines use."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wavefront.server.request_state import Ticket
from wavefront.server.worker_messages import Beat, Ended

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts of one server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"wavefront:{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"wavefront:{name}", text, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"wavefront:{name}", text, buckets=SECONDS, registry=registry)

        self.requests = counter("requests", "Answers, by route and status.", ("route", "status"))
        why = "Requests refused for load, by reason."
        self.rejections = counter("admission_rejections", why, ("reason",))
        self.outcomes = counter("request_success", "Finished decodes, by reason.", ("reason",))
        self.running = gauge("num_requests_running", "Requests that have a row.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait for a row.")
        self.rows = gauge("slots_busy", "Rows in use at the last step.")
        self.steps = counter("steps", "Steps of the decode process.")
        self.forwards = counter("forwards", "Passes through the model.")
        self.commits = counter("committed_tokens", "Places decided, those after the end included.")
        self.tokens = counter("generation_tokens", "Visible tokens of finished answers.")
        self.prompts = counter("prompt_tokens", "Tokens of prompts of finished answers.")
        self.restarts = counter("engine_restarts", "Decode processes started again.")
        self.replicas = gauge("replicas", "Decode processes that take requests.")
        self.step_seconds = histogram("step_seconds", "Seconds of a step.")
        self.first = histogram("time_to_first_token_seconds", "Seconds to the first settled text.")
        self.queued = histogram("request_queue_time_seconds", "Seconds of waiting for a row.")
        self.whole = histogram("e2e_request_latency_seconds", "Seconds of a request.")

    def step(self, beat: Beat) -> None:
        self.rows.set(beat.busy)
        if beat.forwards:
            self.steps.inc()
            self.forwards.inc(beat.forwards)
            self.commits.inc(beat.commits)
            self.step_seconds.observe(beat.seconds)

    def load(self, *, waiting: int, open: int) -> None:
        self.waiting.set(waiting)
        self.running.set(open - waiting)

    def there(self, replicas: int) -> None:
        self.replicas.set(replicas)

    def restarted(self) -> None:
        self.restarts.inc()

    def ended(self, ticket: Ticket) -> None:
        outcome = ticket.outcome
        if ticket.seated is not None:
            self.queued.observe(ticket.seated)
        if not isinstance(outcome, Ended):
            self.outcomes.labels(getattr(outcome, "code", "error")).inc()
            return
        self.outcomes.labels(outcome.finish_reason).inc()
        self.tokens.inc(outcome.completion_tokens)
        if ticket.taken is not None:
            self.prompts.inc(ticket.taken.prompt_tokens)
        if ticket.first_text is not None:
            self.first.observe(ticket.first_text)
        self.whole.observe(ticket.over or 0.0)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
