"""The service: how a client is known, and what is refused before it is read."""

from __future__ import annotations

import time
from typing import Any

import pytest
from starlette.requests import Request

from wavefront.server.local_backend import FORGIVEN_AFTER, RESTART_DELAYS, LocalBackend
from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import APIError
from wavefront.server.service import Service, client_address
from wavefront.server.settings import Limits, ModelSource, Settings
from wavefront.server.worker_messages import ModelInfo


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


def test_small_prompts_and_other_bodies_pass() -> None:
    service = Service(Settings(source=ModelSource(model="toy")))
    service.backend.status = "ready"
    service.backend.model_info = ModelInfo("toy", False, "fp", 20, 640, "llada", {}, {}, {})
    for content in ({"prompt": "x" * 640}, {"prompt": [1] * 20}, [], "text", None, {"prompt": 3}):
        service._check_admission(request_from("10.0.0.7"), content)
