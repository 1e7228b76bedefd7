"""What of replicas can be shown without Ray: options, turns, what is told twice and what is not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import refused

import wavefront
from wavefront.core.errors import MissingExtraError, OptionError
from wavefront.server.decode_worker import DecodeWorker
from wavefront.server.fair_queue import FairQueue
from wavefront.server.metrics import Metrics
from wavefront.server.ray_backend import (
    RayBackend,
    deploy,
    join_threads,
    load_serve,
    replica_settings,
    run_in_thread,
)
from wavefront.server.ray_replica import Coordinator, HeartbeatBuffer, ReplicaRequest
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Limits, Scale, Settings, Source
from wavefront.server.worker_messages import (
    Accepted,
    CheckJob,
    Finished,
    Heartbeat,
    Job,
    Progress,
    RequestFailed,
    Started,
)
from wavefront.storage.ray_start import load_ray

START = {"type": "start"}
STEP = {"type": "step", "commits": [[0, 5, "x", 0.5]], "back": []}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--engine", "slurm"), "engine must be one of local, ray; 'slurm' is not"),
        (("--replicas", "2"), "give --engine ray as well"),
        (("--address", "auto"), "give --engine ray as well"),
        (("--gpus-per-replica", "1"), "give --engine ray as well"),
        (("--engine", "ray", "--replicas", "0"), "replicas must be at least 1, not 0"),
        (("--engine", "ray", "--cpus-per-replica", "-1"), "cpus_per_replica must be at least 0"),
        (
            ("--engine", "ray", "--gpus-per-replica", "1.5"),
            "gpus_per_replica above 1 must be a whole number",
        ),
    ],
)
def test_bad_input_gets_one_sentence(args: tuple[str, ...], words: str) -> None:
    assert words in refused("serve", "-m", "toy", "--port", "0", *args)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="replicas must be a whole number"):
        Scale(replicas=True)
    with pytest.raises(OptionError, match="replicas"):
        Scale(replicas=1.5)


@pytest.mark.parametrize("missing", ["ray", "ray.serve"])
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "ray.serve":
        monkeypatch.delattr("ray.serve", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'wavefront\[ray-serve\]'"):
        load_serve("auto")
    messages = refused("serve", "-m", "toy", "--port", "0", "--engine", "ray", "--address", "auto")
    assert messages.endswith("--engine ray needs Ray Serve: pip install 'wavefront[ray-serve]'.")


def test_the_server_with_replicas_loads_no_torch() -> None:
    check = "print('torch' in sys.modules, 'ray' in sys.modules)"
    code = f"import sys, wavefront.server.ray_backend; {check}"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "False False\n"


def test_a_ray_of_our_own_wants_a_token_and_one_elsewhere_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray")  # put back in the end, whatever it was
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # so that what is set here is accepted back in the end
        monkeypatch.delenv(name)
    nowhere = SimpleNamespace(find_spec=lambda *_: None)  # there is no Ray to be found
    monkeypatch.setattr(sys, "meta_path", [nowhere])
    with pytest.raises(MissingExtraError):
        load_ray("10.0.0.1:6379")
    assert "RAY_AUTH_TOKEN" not in os.environ
    with pytest.raises(MissingExtraError):
        load_ray(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_replica_gets_no_secret_and_a_path_that_holds_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    scale = Scale(replicas=2, cpus=3)
    settings = Settings(source=Source(model=tmp_path.name), api_key="secret", scale=scale)
    given = replica_settings(settings)
    assert given.source.model == str(tmp_path)
    assert (given.api_key, given.threads, given.limits.event_ttl) == (None, 3, 0.0)
    for name in ("toy", "ripple", "org/model"):
        kept = replica_settings(Settings(source=Source(model=name), scale=scale, threads=1))
        assert (kept.source.model, kept.threads) == (name, 1)


def test_whoever_lost_its_turn_is_the_next() -> None:
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


def make_state(job: Job, *messages: Any) -> RequestState:
    state = RequestState(job)
    for message in messages:
        state.update(message)
    return state


def test_only_what_nobody_has_seen_begins_anew() -> None:
    accepted, started = Accepted("a", 3, None, START), Started("a")
    whole = make_state(
        Job(id="a", incremental=False), accepted, started, Progress("a", "some text", None)
    )
    assert whole.reset()
    assert (whole.text, whole.started_after, whole.accepted) == ("", None, accepted)
    assert not make_state(Job(id="a"), accepted, Progress("a", "some text", None)).reset()
    assert not make_state(Job(id="a", events=True), accepted, Progress("a", "", STEP)).reset()
    watched = make_state(Job(id="a", events=True), accepted, started)
    assert watched.reset()
    for message in (accepted, started, Progress("a", "", STEP)):
        watched.update(message)
    assert len(watched.events) == 2  # the start event is not repeated
    assert watched.event_bytes == sum(len(one) + 64 for one in watched.events)


def test_a_check_takes_no_row() -> None:
    lm = wavefront.load("toy")
    worker = DecodeWorker(lm, Limits(rows=2, length=64), fit=True)
    job = Job(id="a", prompt="Once", options={"max_new_tokens": 8}, events=True)
    (accepted,) = worker.handle(CheckJob(job))
    assert not worker.busy
    assert [accepted] == list(worker.handle(job))
    (wrong,) = worker.handle(CheckJob(Job(id="b", prompt="Once", options={"strategy": "nothing"})))
    assert isinstance(wrong, RequestFailed)
    assert (wrong.status, wrong.param) == (400, "strategy")


def ended(text: str) -> Finished:
    return Finished("a", text, "stop", 3, 4, 4, 0.1, None)


@pytest.mark.parametrize("incremental", [True, False])
def test_an_answer_wanted_whole_travels_in_few_messages(incremental: bool) -> None:
    async def sent() -> list[list[Any]]:
        request, found = ReplicaRequest(Job(id="a", incremental=incremental)), []
        for message in (
            Accepted("a", 3, None, None),
            *(Progress("a", c, None) for c in "abc"),
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
    assert "".join(one.text for one in every if isinstance(one, Progress | Finished)) == "abcd"


def test_beats_are_taken_along_once() -> None:
    buffer = HeartbeatBuffer()
    buffer.record_step(Heartbeat(1, 0, 0, 0.0))
    for number in range(3000):
        buffer.record_step(Heartbeat(1, 1, number, 0.1))
    beats = buffer.pop_all()
    assert (len(beats), beats[-1].commits) == (1000, 2999)
    assert buffer.pop_all() == []


def test_replicas_must_hold_the_same_model() -> None:
    coordinator = Coordinator()
    assert coordinator.matches("fp_1")
    assert coordinator.matches("fp_1")
    assert not coordinator.matches("fp_2")
    coordinator.add_load_error("It is not there.")
    assert coordinator.load_errors() == ["It is not there."]


def test_whoever_still_asks_ray_is_waited_for_before_it_ends() -> None:
    done: list[str] = []

    def ask() -> None:
        time.sleep(0.3)
        done.append("asked")

    async def given_up() -> None:
        asking = asyncio.create_task(run_in_thread(ask))
        await asyncio.sleep(0.05)
        asking.cancel()

    asyncio.run(given_up())
    assert done == []
    join_threads(timeout=30.0)
    assert done == ["asked"]


def test_a_server_that_ends_while_it_deploys_takes_its_deployment_along(monkeypatch) -> None:
    seen: list[str] = []

    def start(**options: Any) -> None:
        time.sleep(0.3)  # as long as a controller takes to come up, in small

    def deployment(**options: Any) -> Any:
        return lambda kind: SimpleNamespace(bind=lambda *given: "app")

    serve = SimpleNamespace(
        deployment=deployment,
        start=start,
        run=lambda app, **more: seen.append("deployed"),
        delete=lambda name: seen.append("deleted"),
    )
    monkeypatch.setattr("wavefront.server.ray_backend.load_ray", lambda address: SimpleNamespace())
    monkeypatch.setattr("wavefront.server.ray_backend.load_serve", lambda address: serve)
    scale = Scale(replicas=1, cpus=1, gpus=0, address="somewhere:6379")
    settings = Settings(source=Source(model="toy"), limits=Limits(), scale=scale)
    backend = RayBackend(settings, Metrics())
    backend._coordinator = None

    async def leave_at_once() -> None:
        backend._tasks = [asyncio.create_task(backend._deploy())]
        await asyncio.sleep(0.05)
        await backend.stop()

    asyncio.run(leave_at_once())
    assert seen == ["deployed", "deleted"]


def test_a_deployment_is_not_waited_for_where_ray_can_do_that() -> None:
    messages: list[Any] = []
    new = SimpleNamespace(
        RunTarget=lambda app, **more: (app, more),
        run_many=lambda targets, **more: messages.append((targets, more)),
    )
    deploy(new, "app", "name")
    (((app, named),), waits) = messages.pop()
    assert (app, named) == ("app", {"name": "name", "route_prefix": None})
    assert set(waits.values()) == {False}
    deploy(SimpleNamespace(run=lambda app, **more: messages.append((app, more))), "app", "name")
    assert messages == [("app", named)]
