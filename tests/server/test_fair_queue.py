"""The fair queue: clients take turns."""

from __future__ import annotations

from typing import Any

from helpers.workers import make_job

from wavefront.server.fair_queue import FairQueue
from wavefront.server.request_builder import build_request
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Limits
from wavefront.server.step_events import StepEvents
from wavefront.server.worker_messages import (
    Job,
)


def test_clients_take_turns(lm: Any) -> None:
    queue = FairQueue()
    for id, client in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")]:
        job = make_job(id, client=client)
        queue.push(StepEvents(lm, job, build_request(lm, job, Limits(), length=64)))
    queue.remove("a2")
    order = []
    while events := queue.pop():
        order.append(events.job.id)
    assert order == ["a1", "b1", "a3", "b2"]


def test_item_pushed_to_the_front_is_next() -> None:
    queue = FairQueue[Any]()
    states = {id: RequestState(Job(id=id, client=id[0])) for id in ("a1", "a2", "b1", "c1")}
    for one in states.values():
        queue.push(one)
    first = queue.pop()
    assert first is states["a1"]
    queue.push_front(first)
    order = []
    while one := queue.pop():
        order.append(one.id)
    assert order == ["a1", "b1", "c1", "a2"]
