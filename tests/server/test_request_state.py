"""The states of requests and their registry."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
import weakref
from dataclasses import replace
from typing import Any

import pytest
from helpers.workers import make_job, run_job

from wavefront.server.request_state import RequestRegistry, RequestState
from wavefront.server.sse import stream_events
from wavefront.server.worker_messages import (
    Job,
    RequestAccepted,
    RequestFailed,
    RequestProgress,
    RequestStarted,
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
    accepted, started = RequestAccepted("a", 3, None, START), RequestStarted("a")
    unread = make_state(
        Job(id="a", incremental=False), accepted, started, RequestProgress("a", "some text", None)
    )
    assert unread.reset()
    assert (unread.text, unread.started_after, unread.accepted) == ("", None, accepted)
    assert not make_state(Job(id="a"), accepted, RequestProgress("a", "some text", None)).reset()
    assert not make_state(
        Job(id="a", events=True), accepted, RequestProgress("a", "", STEP)
    ).reset()
    watched = make_state(Job(id="a", events=True), accepted, started)
    assert watched.reset()
    for message in (accepted, started, RequestProgress("a", "", STEP)):
        watched.update(message)
    assert len(watched.events) == 2  # the start event is not repeated
    assert watched.event_bytes == sum(len(one) + 64 for one in watched.events)


def finish(registry: RequestRegistry, state: RequestState) -> None:
    registry.active[state.id] = state
    registry.close(state)


@pytest.mark.slow
def test_kept_memory_is_counted(lm: Any) -> None:
    """The count is at least what the kept requests really use, and forks still work."""
    registry = RequestRegistry(event_ttl=1000, event_bytes=1 << 30)
    jobs = [make_job(str(n), events=True, prompt="x" * 90) for n in range(20)]
    finish(registry, run_job(lm, jobs[0]))  # imports and caches
    tracemalloc.start()
    for job in jobs[1:]:
        finish(registry, run_job(lm, replace(job, prompt="x" * 90 + job.id)))
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = [registry.find(job.id) for job in jobs]
    assert all(kept)
    counted = sum(one.event_bytes for one in kept[1:] if one)
    assert 0.5 * counted < used < 1.2 * counted
    (last,) = kept[-1:]
    assert last is not None
    assert last.job.prompt is None
    assert not any(last.canvas_at(last.steps).holes)


def test_ended_request_keeps_no_long_option(lm: Any) -> None:
    options = {"regex": "(" + "a" * 9000 + "|.*)", "logit_bias": {"7": 1.0}, "logprobs": 2}
    state = RequestState(Job(id="a", events=True, options=options, prompt="x"))
    state.update(RequestAccepted("a", 3, None, START))
    assert state.job.options == options
    state.update(RequestFailed("a", 499, "cancelled", "cancelled"))
    assert state.job.options == {"logprobs": 2}  # the format of the answer depends on it


def test_refused_requests_keep_nothing() -> None:
    registry = RequestRegistry(event_ttl=1000, event_bytes=1 << 30)
    for number in range(50):
        state = RequestState(Job(id=str(number), events=True, prompt="x" * 100_000))
        state.update(RequestFailed(state.id, 400, "no", "invalid_value"))
        finish(registry, state)
        assert registry.find(state.id) is None
        assert state.job.prompt is None


def big_state(id: str, size: int) -> RequestState:
    step = STEP | {"commits": [[0, 5, "x" * size, 0.5]]}
    return make_state(
        Job(id=id, events=True),
        RequestAccepted(id, 3, None, START),
        RequestProgress(id, "x", step),
    )


def test_events_of_active_requests_are_counted() -> None:
    registry = RequestRegistry(event_ttl=1000, event_bytes=100_000)
    ended = big_state("a", 60_000)
    ended.update(RequestFailed("a", 499, "no", "cancelled"))
    finish(registry, ended)
    assert registry.find("a") is ended
    registry.active["b"] = big_state("b", 60_000)
    assert registry.find("a") is None
    assert registry.find("b") is not None


def test_streams_of_dropped_requests_end_if_they_hold_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wavefront.server.request_state.READ_BYTES", 0)
    registry = RequestRegistry(event_ttl=1000, event_bytes=150_000)
    states = [big_state(str(n), 60_000) for n in range(10)]
    for state in states:
        state.readers = 1  # it reads slowly
        state.update(RequestFailed(state.id, 499, "no", "cancelled"))
        finish(registry, state)
    assert [state.expired for state in states] == [True] * 6 + [False] * 4
    held = sum(len(event) for state in states for event in state.events)
    assert held < 2 * 150_000
    # A dropped request is forgotten when its last reader has left.
    for state in states:
        state.readers = 0
    registry.evict()
    assert not registry._read

    async def read(state: RequestState) -> bytes:
        return b"".join([piece async for piece in stream_events(state, start=1, keepalive=5)])

    assert b"have expired" in asyncio.run(read(states[0]))
    assert b"have expired" not in asyncio.run(read(states[-1]))


def test_expired_requests_are_dropped_without_another_request(lm: Any) -> None:
    registry = RequestRegistry(event_ttl=0.05, event_bytes=1 << 30)
    state = run_job(lm, make_job("a", events=True))
    finish(registry, state)
    gone = weakref.ref(state)
    del state
    time.sleep(0.06)
    registry.evict()
    gc.collect()
    assert gone() is None
