"""The replica side of Ray Serve, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from wavefront.server.ray_replica import (
    STALL_TTL,
    Coordinator,
    HeartbeatBuffer,
    Replica,
    ReplicaRequest,
    StalledError,
)
from wavefront.server.worker_messages import (
    Heartbeat,
    Job,
    RequestAccepted,
    RequestFinished,
    RequestProgress,
)


def ended(text: str) -> RequestFinished:
    return RequestFinished("a", text, "stop", 3, 4, 4, 0.1, None)


@pytest.mark.parametrize("incremental", [True, False])
def test_non_incremental_answer_needs_few_updates(incremental: bool) -> None:
    async def sent() -> list[list[Any]]:
        request, found = ReplicaRequest(Job(id="a", incremental=incremental)), []
        for message in (
            RequestAccepted("a", 3, None, None),
            *(RequestProgress("a", c, None) for c in "abc"),
            ended("d"),
        ):
            request.update(message)
            if request._has_unsent.is_set():
                found.append(await request.next_messages())
        request.update(ended("too late"))
        assert not request._has_unsent.is_set()
        return found

    batches = asyncio.run(sent())
    assert len(batches) == (5 if incremental else 3)
    every = [one for batch in batches for one in batch]
    assert (
        "".join(one.text for one in every if isinstance(one, RequestProgress | RequestFinished))
        == "abcd"
    )


def test_heartbeats_are_returned_once() -> None:
    buffer = HeartbeatBuffer()
    buffer.record_step(Heartbeat(1, 0, 0, 0.0))
    for number in range(3000):
        buffer.record_step(Heartbeat(1, 1, number, 0.1))
    beats = buffer.pop_all()
    assert (len(beats), beats[-1].commits) == (1000, 2999)
    assert buffer.pop_all() == []


@pytest.mark.parametrize(
    ("stalled", "stepped", "raises"),
    [(False, True, False), (True, False, False), (True, True, True)],
)
def test_stalled_replica_is_reported_and_unhealthy(
    monkeypatch: pytest.MonkeyPatch, stalled: bool, stepped: bool, raises: bool
) -> None:
    died = type("ActorDiedError", (Exception,), {})
    fake = SimpleNamespace(exceptions=SimpleNamespace(ActorDiedError=died), serve=None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    coordinator = Coordinator()

    async def set_stalled(name: str, found: bool) -> None:
        coordinator.set_stalled(name, found)

    replica: Any = object.__new__(Replica)
    replica.name, replica.app = "one", "app"
    replica.backend = SimpleNamespace(is_stalled=stalled, has_stepped=stepped)
    replica.coordinator = SimpleNamespace(set_stalled=SimpleNamespace(remote=set_stalled))
    with pytest.raises(StalledError) if raises else contextlib.nullcontext():
        asyncio.run(replica.check_health())
    assert coordinator.stalled() == stalled


def test_stalled_replica_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, now = Coordinator(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    coordinator.set_stalled("one", True)
    coordinator.set_stalled("two", True)
    assert coordinator.stalled() == 2
    coordinator.set_stalled("two", False)
    assert coordinator.stalled() == 1
    now += STALL_TTL
    assert coordinator.stalled() == 0


def test_replicas_must_have_the_same_model() -> None:
    coordinator = Coordinator()
    assert coordinator.matches("fp_1")
    assert coordinator.matches("fp_1")
    assert not coordinator.matches("fp_2")
    coordinator.add_load_error("It is not there.")
    assert coordinator.load_errors() == ["It is not there."]
