"""The fair queue: clients take turns."""

from __future__ import annotations

from typing import Any

from helpers.workers import make_job

from wavefront.server.fair_queue import ClientShare, FairQueue
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


def test_item_that_does_not_fit_keeps_its_place() -> None:
    queue = FairQueue[Any]()
    for id in ("a1", "a2", "b1", "a3"):
        queue.push(RequestState(Job(id=id, client=id[0])))

    def fits(state: RequestState) -> bool:
        return state.id != "a1"

    order = [state.id for _ in range(3) if (state := queue.pop(fits=fits))]
    assert order == ["a2", "b1", "a3"]
    assert queue.pop(fits=fits) is None
    last = queue.pop()
    assert last is not None
    assert last.id == "a1"
    assert len(queue) == 0


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


def queue_of(*items: tuple[str, str, str]) -> FairQueue[Any]:
    queue = FairQueue[Any]()
    for id, address, client in items:
        queue.push(RequestState(Job(id=id, address=address, client=client)))
    return queue


def test_invented_clients_get_no_more_turns() -> None:
    many = [(f"a{n}", "a", f"user {n}") for n in range(4)]
    queue = queue_of(*many, ("b1", "b", ""), ("b2", "b", ""))
    order = []
    while one := queue.pop():
        order.append(one.id)
    assert order == ["a0", "b1", "a1", "b2", "a2", "a3"]


def test_address_gets_its_share_of_the_rows() -> None:
    queue = queue_of(("a1", "a", ""), ("a2", "a", ""), ("b1", "b", ""), ("n1", "", ""))
    share = ClientShare(["a", "", "", ""], limit=2)
    order = []
    while one := queue.pop(share.may_start):
        share.add(one.job.address)
        order.append(one.id)
    assert order == ["a1", "b1", "n1"]
    assert len(queue) == 1
