"""Middleware: API key, host names, bodies, request ids and headers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from wavefront.server.middleware import SecurityMiddleware
from wavefront.server.openai_format import ASCIIResponse
from wavefront.server.settings import Limits, ModelSource, Settings


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await ASCIIResponse({"size": size, "id": scope["state"]["request_id"]})(scope, receive, send)


def respond(path: str = "/v1/models", method: str = "GET", **more: Any) -> httpx.Response:
    settings = {
        "source": ModelSource(model="toy"),
        "limits": Limits(body=100),
        **more.pop("settings", {}),
    }
    app = SecurityMiddleware(_echo, Settings(**settings), frozenset(("/", "/page.css")))
    base = more.pop("base", "http://localhost:8000")

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
            return await client.request(method, path, **more)

    return asyncio.run(asked())


def test_api_key_is_required_except_for_probes_and_page() -> None:
    keyed = {"settings": {"api_key": "secret"}}
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/v1/wavefront/decodes/x"):
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = respond(path, headers=wrong, **keyed)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        right = respond(path, headers={"authorization": "Bearer secret"}, **keyed)
        assert right.status_code == 200
    for path in ("/health", "/ready", "/", "/page.css"):
        assert respond(path, **keyed).status_code == 200
    opened = {"settings": {"api_key": "secret", "open_metrics": True}}
    assert respond("/metrics", **opened).status_code == 200
    assert respond("/v1/models").status_code == 200  # no key is configured


def test_foreign_host_names_are_rejected() -> None:
    assert respond(base="http://evil.example").status_code == 421
    for base in ("http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost"):
        assert respond(base=base).status_code == 200
    named = {"settings": {"hosts": ("box.local",)}}
    assert respond(base="http://box.local:1", **named).status_code == 200
    keyed = {"settings": {"host": "0.0.0.0", "api_key": "secret"}}
    key = {"authorization": "Bearer secret"}
    assert respond(base="http://any.example", headers=key, **keyed).status_code == 200
    both = {"settings": {"host": "0.0.0.0", "hosts": ("box.local",)}}
    assert respond(base="http://any.example", **both).status_code == 421
    for base in (
        "http://box.local",
        "http://127.0.0.1:8000",
    ):  # the second is a health check on this machine
        assert respond(base=base, **both).status_code == 200


def test_bodies_must_be_json_and_small() -> None:
    json = {"content-type": "application/json; charset=utf-8"}
    assert respond(method="POST", content=b"x" * 100, headers=json).json()["size"] == 100
    assert respond(method="POST", content=b"x" * 101, headers=json).status_code == 413

    async def pieces() -> Any:
        for _ in range(11):
            yield b"x" * 10

    assert respond(method="POST", content=pieces(), headers=json).status_code == 413
    assert respond(method="POST", content=b"{}").status_code == 415
    plain = {"content-type": "text/plain"}
    assert respond(method="POST", content=b"{}", headers=plain).status_code == 415


def test_odd_headers_are_rejected_without_an_error() -> None:
    json = {"content-type": "application/json"}
    for length in ("9" * 5000, "-1", "1e9", "", "²", "\x00"):
        answer = respond(headers={"content-length": length.encode()})
        assert answer.status_code == (413 if length.startswith("9") else 200)
    for name in ("authorization", "content-type", "x-request-id", "host", "accept"):
        for value in (
            b"\xff\xfe",
            b"Bearer \xed\xa0\x80",
            b"",
            b"a" * 5000,
            b"application/json\x00",
        ):
            settings = {"api_key": "secret"}
            answer = respond(method="POST", headers={**json, name: value}, settings=settings)
            assert answer.status_code in (401, 421)


def test_valid_request_ids_are_kept() -> None:
    assert respond(headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for wild in ("a b", "x" * 129, "<script>", ""):
        answer = respond(headers={"x-request-id": wild})
        assert len(answer.headers["x-request-id"]) == 32
        assert answer.json()["id"] == answer.headers["x-request-id"]


def test_responses_have_security_headers() -> None:
    headers = respond().headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers
