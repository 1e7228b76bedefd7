"""The service: how a client is known, and what is refused before it is read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.workers import make_job, run_job
from starlette.requests import Request

import wavefront
from wavefront.core.errors import OptionError
from wavefront.server import local_backend
from wavefront.server.connections import ConnectionLimiter
from wavefront.server.local_backend import FORGIVEN_AFTER, RESTART_DELAYS, LocalBackend
from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import APIError
from wavefront.server.request_state import RequestState
from wavefront.server.server import make_config
from wavefront.server.service import Service, _choices, _inherited_options, client_address
from wavefront.server.settings import Limits, ModelSource, Settings
from wavefront.server.worker_messages import (
    AutomatonMissing,
    CheckJob,
    Heartbeat,
    Job,
    ModelInfo,
    RequestFailed,
)


def request_from(host: str | None) -> Request:
    return Request({"type": "http", "headers": [], "client": None if host is None else (host, 1)})


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (None, ""),
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_clients_are_known_by_their_address(host: str | None, address: str) -> None:
    assert client_address(request_from(host)) == address


@pytest.mark.parametrize(
    ("proxies", "peer", "seen"),
    [
        ((), "127.0.0.1", "127.0.0.1"),
        (("10.0.0.0/8",), "127.0.0.1", "127.0.0.1"),
        (("10.0.0.0/8",), "10.1.2.3", "192.0.2.7"),
        (("127.0.0.1",), "127.0.0.1", "192.0.2.7"),
    ],
)
def test_only_a_trusted_proxy_names_the_client(
    monkeypatch: pytest.MonkeyPatch, proxies: tuple[str, ...], peer: str, seen: str
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    settings = Settings(source=ModelSource(model="toy"), trusted_proxies=proxies)
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(client_address(Request(scope)))

    limiter = ConnectionLimiter(settings.limits, Metrics(), connections=1)
    config = make_config(app, settings, limiter)
    config.load()
    scope = {
        "type": "http",
        "client": (peer, 1),
        "headers": [(b"x-forwarded-for", b"198.51.100.9, 192.0.2.7")],
    }
    asyncio.run(config.loaded_app(scope, None, None))
    assert found == [seen]


@pytest.mark.parametrize("address", ["*", "proxy.example", "", "10.0.0.1/8"])
def test_trusted_proxy_must_be_an_address(address: str) -> None:
    with pytest.raises(OptionError, match=r"must be an IP address or a network such as"):
        Settings(source=ModelSource(model="toy"), trusted_proxies=(address,))


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"prompt": "x" * 641}, "prompt"),
        ({"prompt": ["x" * 641]}, "prompt"),
        ({"prompt": "ü" * 321}, "prompt"),
        ({"prompt": "\ud800" * 214}, "prompt"),
        ({"prompt": [1] * 21}, "prompt"),
        ({"messages": [{"role": "user", "content": "x" * 330}] * 2}, "messages"),
        ({"messages": [{"content": [{"type": "text", "text": "x" * 641}]}]}, "messages"),
        ({"messages": [{}] * 4}, "messages"),
        ({"put": {"1": "x" * 641}}, "put"),
    ],
)
def test_large_prompts_are_refused_before_they_are_read(content: Any, param: str) -> None:
    service = Service(Settings(source=ModelSource(model="toy"), limits=Limits(messages=3)))
    service.backend.status = "ready"
    service.backend.model_info = ModelInfo("toy", False, "fp", 20, 640, "llada", {}, {}, {})
    with pytest.raises(APIError) as caught:
        service._check_admission(request_from("10.0.0.7"), content)
    failure = caught.value.failure
    assert (failure.status, failure.param) == (400, param)
    assert len(failure.message) < 200


def test_requests_do_not_pile_up_while_the_decode_process_is_stalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(Settings(source=ModelSource(model="toy")))
    backend = service.backend
    assert isinstance(backend, LocalBackend)
    backend.status = "ready"
    backend.model_info = ModelInfo("toy", False, "fp", 20, 640, "llada", {}, {}, {})
    now = backend._last_message
    monkeypatch.setattr(time, "monotonic", lambda: now)
    service._check_admission(request_from("10.0.0.7"), {"prompt": [1]})
    now += service.limits.health_timeout + 0.1
    with pytest.raises(APIError) as caught:
        service._check_admission(request_from("10.0.0.7"), {"prompt": [1]})
    failure = caught.value.failure
    assert (failure.status, failure.code) == (503, "engine_stalled")
    for probe in (service.health(), service.ready()):
        assert (probe.status_code, probe.body) == (503, b'{"status":"stalled"}')


def test_health_fails_until_the_model_has_loaded() -> None:
    service = Service(Settings(source=ModelSource(model="toy")))
    backend = service.backend
    assert isinstance(backend, LocalBackend)
    for probe in (service.health(), service.ready()):
        assert (probe.status_code, probe.body) == (503, b'{"status":"loading"}')
    backend._process = process = object()  # pyright: ignore[reportAttributeAccessIssue]
    backend._encoder.start = lambda length: None
    loaded = ModelInfo("toy", False, "fp", 20, 640, "llada", {}, {}, {})
    backend._receive(process, [loaded])  # pyright: ignore[reportArgumentType]
    for probe in (service.health(), service.ready()):
        assert (probe.status_code, probe.body) == (200, b'{"status":"ready"}')


def test_slow_steps_are_not_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(Settings(source=ModelSource(model="toy")), Metrics())
    backend.status, process = "ready", object()
    backend._process = process  # pyright: ignore[reportAttributeAccessIssue]
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not backend.has_stepped
    backend._receive(process, [Heartbeat(1, 1, 1, 20.0)])  # pyright: ignore[reportArgumentType]
    assert backend.has_stepped
    now += 39.0
    assert not backend.is_stalled
    now += 2.0
    assert backend.is_stalled


def test_a_decode_process_is_sent_a_constraint_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    process = SimpleNamespace(send=sent.append)
    backend = LocalBackend(Settings(source=ModelSource(model="toy")), Metrics())
    monkeypatch.setattr(local_backend, "ChildProcess", lambda *arguments: process)
    monkeypatch.setattr(local_backend, "MAX_SENT", 2)
    monkeypatch.setattr(
        backend,
        "_compiler",
        SimpleNamespace(
            is_running=True,
            compile=lambda job, deliver: deliver(replace(job, automaton=b"packed")),
        ),
    )

    def submit(id: str, regex: str = "a+") -> Job:
        backend.submit(Job(id=id, prompt=[72], options={"regex": regex}))
        return sent[-1]

    def has_bytes(job: Job) -> bool:
        assert job.automaton_was_sent == (job.automaton is None)
        return job.automaton == b"packed"

    backend._launch()
    assert [has_bytes(submit(id)) for id in "abc"] == [True, False, False]
    assert [has_bytes(submit(id, "b+")) for id in "de"] == [True, False]

    # The decode process has removed it.
    backend._receive(process, [AutomatonMissing(sent[1]), AutomatonMissing(CheckJob(sent[2]))])  # pyright: ignore[reportArgumentType]
    again, check = sent[-2:]
    assert (again.id, has_bytes(again)) == ("b", True)
    assert isinstance(check, CheckJob)
    assert (check.job.id, has_bytes(check.job)) == ("c", True)
    assert not has_bytes(submit("f"))
    count = len(sent)
    backend._receive(process, [AutomatonMissing(Job(id="gone", options={"regex": "a+"}))])  # pyright: ignore[reportArgumentType]
    assert len(sent) == count

    assert has_bytes(submit("g", "c+"))  # a third one: those that were sent are forgotten
    assert [has_bytes(submit(id)) for id in "hi"] == [True, False]
    backend._launch()  # another process
    assert [has_bytes(submit(id)) for id in "jk"] == [True, False]


def test_readers_of_one_decode_are_limited() -> None:
    service = Service(Settings(source=ModelSource(model="toy"), limits=Limits(readers=2)))
    state = RequestState(Job(id="a", events=True))
    service.backend.requests.active["a"] = state
    first, second = (service.read_events("a", 0) for _ in range(2))
    with pytest.raises(APIError) as caught:
        service.read_events("a", 0)
    failure = caught.value.failure
    assert (failure.status, failure.code) == (429, "too_many_readers")
    state.update(RequestFailed("a", 500, "no", "internal"))

    async def read() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        await first({}, receive, send)
        return sent

    assert b"[DONE]" in b"".join(one.get("body", b"") for one in asyncio.run(read()))
    assert state.readers == 1
    assert service.read_events("a", 0) is not second


def test_delay_before_a_restart_grows_and_time_in_service_reduces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(source=ModelSource(model="toy"))
    backend = LocalBackend(settings, Metrics())
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert [backend._next_delay() for _ in range(6)] == [*RESTART_DELAYS, *RESTART_DELAYS[-1:] * 2]
    backend._ready_since = now
    now += 3.5 * FORGIVEN_AFTER  # three restarts of six are forgiven
    assert backend._next_delay() == RESTART_DELAYS[3]
    assert backend._recent_restarts == 4
    backend._ready_since = now
    now += 100 * FORGIVEN_AFTER
    assert backend._next_delay() == RESTART_DELAYS[0] == 0.0


@pytest.mark.parametrize(
    ("n", "count"), [(3, 3), (3.0, 3), (None, 1), (0, 1), ("3", 1), (10**9, 1)]
)
def test_choices_are_counted_before_the_body_is_read(n: Any, count: int) -> None:
    assert _choices({"n": n}) == count


def test_fork_of_a_decode_without_a_cache_uses_none() -> None:
    fast = wavefront.load("toy", speed="fast")
    for options, cache in (({"cache": "none"}, "none"), ({}, "wave(refresh=32")):
        state = run_job(fast, make_job("a", events=True, options=options))
        assert _inherited_options(state, 3, {})["cache"].startswith(cache)


def test_small_prompts_and_other_bodies_pass() -> None:
    service = Service(Settings(source=ModelSource(model="toy")))
    service.backend.status = "ready"
    service.backend.model_info = ModelInfo("toy", False, "fp", 20, 640, "llada", {}, {}, {})
    for content in ({"prompt": "x" * 640}, {"prompt": [1] * 20}, [], "text", None, {"prompt": 3}):
        service._check_admission(request_from("10.0.0.7"), content)
