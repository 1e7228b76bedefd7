"""The guard: what every request passes before anything reads it.

Request id, host name, API key, size and type of the body; and the headers that every answer has.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from typing import Any

from wavefront.server.openai_format import Refusal
from wavefront.server.settings import Settings

SANE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
PROBES = frozenset(("/health", "/ready"))
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", PAGE_POLICY.encode()),
)


class Guard:
    """ASGI middleware; `public` are the paths of the page, which hold nothing but its code."""

    def __init__(self, app: Any, settings: Settings, public: frozenset[str]) -> None:
        self.app, self.settings = app, settings
        self.open = PROBES | public | ({"/metrics"} if settings.open_metrics else set())
        self.key, self.hosts = settings.key_hash, settings.known_hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        name = given if SANE_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = name.decode()

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = list(message.get("headers", ()))
                message = {**message, "headers": [*kept, (b"x-request-id", name), *HEADERS]}
            await send(message)

        try:
            self._check(scope, headers)
            await self.app(scope, self._counted(receive), answer)
        except Refusal as refusal:
            await refusal.reply(scope, receive, answer)

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        bare = re.sub(r":\d*$", "", host).strip("[]")
        if self.hosts is not None and bare not in self.hosts:
            # A web page elsewhere can point its own name at this address.
            message = f"The host {bare[:80]!r} is not one of ours: start with --allow-host."
            raise Refusal(421, message, code="wrong_host")
        if scope["path"] not in self.open and not self._knows(headers):
            message = "The API key is missing or wrong: send 'Authorization: Bearer KEY'."
            raise Refusal(401, message, code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.limits.body:
            raise self._too_large()
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            # Forms of other sites can send anything but this.
            if kind != b"application/json":
                message = "The body must be JSON: send 'Content-Type: application/json'."
                raise Refusal(415, message, code="not_json")

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        if self.key is None:
            return True
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        same = hmac.compare_digest(hashlib.sha256(given.strip()).digest(), self.key)
        return same and scheme.lower() == b"bearer"

    def _too_large(self) -> Refusal:
        most = self.settings.limits.body
        return Refusal(413, f"The body has more than {most} bytes: send less.", code="too_large")

    def _counted(self, receive: Any) -> Any:
        """`receive`, counting bytes: the length that is announced need not be the true one."""
        total = 0

        async def counted() -> Any:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.settings.limits.body:
                raise self._too_large()
            return message

        return counted
