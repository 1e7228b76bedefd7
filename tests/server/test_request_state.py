"""The states of requests and their registry."""

from __future__ import annotations

from typing import Any

from helpers.workers import make_job, run_job

from wavefront.server.request_state import RequestRegistry, RequestState
from wavefront.server.worker_messages import (
    Accepted,
    Job,
    Progress,
    Started,
)

START = {"type": "start"}
STEP = {"type": "step", "commits": [[0, 5, "x", 0.5]], "back": []}


def test_ended_requests_expire_by_age_and_size(lm: Any) -> None:
    states = [run_job(lm, make_job(id, events=True)) for id in "abc"]
    registry = RequestRegistry(event_ttl=1000, event_bytes=2 * states[0].event_bytes + 10)
    for state in states:
        registry.active[state.id] = state
        registry.close(state)
    assert [registry.find(id) is not None for id in "abc"] == [False, True, True]
    brief = RequestRegistry(event_ttl=0, event_bytes=1 << 30)
    brief.active["a"] = states[0]
    brief.close(states[0])
    assert brief.find("a") is None


def make_state(job: Job, *messages: Any) -> RequestState:
    state = RequestState(job)
    for message in messages:
        state.update(message)
    return state


def test_reset_only_before_output_was_read() -> None:
    accepted, started = Accepted("a", 3, None, START), Started("a")
    unread = make_state(
        Job(id="a", incremental=False), accepted, started, Progress("a", "some text", None)
    )
    assert unread.reset()
    assert (unread.text, unread.started_after, unread.accepted) == ("", None, accepted)
    assert not make_state(Job(id="a"), accepted, Progress("a", "some text", None)).reset()
    assert not make_state(Job(id="a", events=True), accepted, Progress("a", "", STEP)).reset()
    watched = make_state(Job(id="a", events=True), accepted, started)
    assert watched.reset()
    for message in (accepted, started, Progress("a", "", STEP)):
        watched.update(message)
    assert len(watched.events) == 2  # the start event is not repeated
    assert watched.event_bytes == sum(len(one) + 64 for one in watched.events)
