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
from wavefront.server.decode_worker import Decoder
from wavefront.server.fair_queue import Queue
from wavefront.server.metrics import Metrics
from wavefront.server.ray_backend import Fleet
from wavefront.server.ray_replica import Keeper, Relay, Tally
from wavefront.server.ray_serve import aside, begin, load_serve, remote, still
from wavefront.server.request_state import Ticket
from wavefront.server.settings import Limits, Scale, Settings, Source
from wavefront.server.worker_messages import Beat, Check, Ended, Job, Refused, Seated, Taken, Told
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
            "gpus_per_replica above 1 must be whole",
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
    said = refused("serve", "-m", "toy", "--port", "0", "--engine", "ray", "--address", "auto")
    assert said.endswith("--engine ray needs Ray Serve: pip install 'wavefront[ray-serve]'.")


def test_the_server_with_replicas_loads_no_torch() -> None:
    code = "import sys, wavefront.server.ray_backend; print('torch' in sys.modules, 'ray' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "False False\n"


def test_a_ray_of_our_own_wants_a_token_and_one_elsewhere_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray")  # put back in the end, whatever it was
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # so that what is set here is taken back in the end
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
    given = remote(settings)
    assert given.source.model == str(tmp_path)
    assert (given.api_key, given.threads, given.limits.keep) == (None, 3, 0.0)
    for name in ("toy", "ripple", "org/model"):
        kept = remote(Settings(source=Source(model=name), scale=scale, threads=1))
        assert (kept.source.model, kept.threads) == (name, 1)


def test_whoever_lost_its_turn_is_the_next() -> None:
    queue = Queue[Any]()
    tickets = {id: Ticket(Job(id=id, client=id[0])) for id in ("a1", "a2", "b1", "c1")}
    for one in tickets.values():
        queue.add(one)
    first = queue.next()
    assert first is tickets["a1"]
    queue.back(first)
    order = []
    while one := queue.next():
        order.append(one.id)
    assert order == ["a1", "b1", "c1", "a2"]


def heard(job: Job, *messages: Any) -> Ticket:
    ticket = Ticket(job)
    for message in messages:
        ticket.hear(message)
    return ticket


def test_only_what_nobody_has_seen_begins_anew() -> None:
    taken, seated = Taken("a", 3, None, START), Seated("a")
    whole = heard(Job(id="a", told=False), taken, seated, Told("a", "some text", None))
    assert whole.forget()
    assert (whole.text, whole.seated, whole.taken) == ("", None, taken)
    assert not heard(Job(id="a"), taken, Told("a", "some text", None)).forget()
    assert not heard(Job(id="a", events=True), taken, Told("a", "", STEP)).forget()
    watched = heard(Job(id="a", events=True), taken, seated)
    assert watched.forget()
    for message in (taken, seated, Told("a", "", STEP)):
        watched.hear(message)
    assert len(watched.events) == 2  # it begins once
    assert watched.size == sum(len(one) + 64 for one in watched.events)


def test_a_check_takes_no_row() -> None:
    lm = wavefront.load("toy")
    decoder = Decoder(lm, Limits(rows=2, length=64), fit=True)
    job = Job(id="a", prompt="Once", options={"max_new_tokens": 8}, events=True)
    (taken,) = decoder.selector(Check(job))
    assert not decoder.busy
    assert [taken] == list(decoder.selector(job))
    (wrong,) = decoder.selector(Check(Job(id="b", prompt="Once", options={"strategy": "nothing"})))
    assert isinstance(wrong, Refused)
    assert (wrong.status, wrong.param) == (400, "strategy")


def ended(text: str) -> Ended:
    return Ended("a", text, "stop", 3, 4, 4, 0.1, None)


@pytest.mark.parametrize("told", [True, False])
def test_an_answer_wanted_whole_travels_in_few_messages(told: bool) -> None:
    async def sent() -> list[list[Any]]:
        relay, found = Relay(Job(id="a", told=told)), []
        for message in (
            Taken("a", 3, None, None),
            *(Told("a", c, None) for c in "abc"),
            ended("d"),
        ):
            relay.hear(message)
            if relay._some.is_set():
                found.append(await relay.said())
        relay.hear(ended("too late"))
        assert not relay._some.is_set()
        return found

    batches = asyncio.run(sent())
    assert len(batches) == (5 if told else 3)
    every = [one for batch in batches for one in batch]
    assert "".join(one.text for one in every if isinstance(one, Told | Ended)) == "abcd"


def test_beats_are_taken_along_once() -> None:
    tally = Tally()
    tally.step(Beat(1, 0, 0, 0.0))
    for number in range(3000):
        tally.step(Beat(1, 1, number, 0.1))
    beats = tally.selector()
    assert (len(beats), beats[-1].commits) == (1000, 2999)
    assert tally.selector() == []


def test_replicas_must_hold_the_same_model() -> None:
    keeper = Keeper()
    assert keeper.agree("fp_1")
    assert keeper.agree("fp_1")
    assert not keeper.agree("fp_2")
    keeper.note("It is not there.")
    assert keeper.failed() == ["It is not there."]


def test_whoever_still_asks_ray_is_waited_for_before_it_ends() -> None:
    done: list[str] = []

    def ask() -> None:
        time.sleep(0.3)
        done.append("asked")

    async def given_up() -> None:
        asking = asyncio.create_task(aside(ask))
        await asyncio.sleep(0.05)
        asking.cancel()

    asyncio.run(given_up())
    assert done == []
    still(patience=30.0)
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
    fleet = Fleet(settings, Metrics())
    fleet._keeper = None

    async def leave_at_once() -> None:
        fleet._tasks = [asyncio.create_task(fleet._deploy())]
        await asyncio.sleep(0.05)
        await fleet.stop()

    asyncio.run(leave_at_once())
    assert seen == ["deployed", "deleted"]


def test_a_deployment_is_not_waited_for_where_ray_can_do_that() -> None:
    said: list[Any] = []
    new = SimpleNamespace(
        RunTarget=lambda app, **more: (app, more),
        run_many=lambda targets, **more: said.append((targets, more)),
    )
    begin(new, "app", "name")
    (((app, named),), waits) = said.pop()
    assert (app, named) == ("app", {"name": "name", "route_prefix": None})
    assert set(waits.values()) == {False}
    begin(SimpleNamespace(run=lambda app, **more: said.append((app, more))), "app", "name")
    assert said == [("app", named)]
