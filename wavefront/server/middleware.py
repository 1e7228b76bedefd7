"""ASGI middleware: checks before a request is read, headers of every response, and counts.

The checks are the Host name, the API key, and the size and type of the body.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from typing import Any

from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import APIError
from wavefront.server.settings import Settings

VALID_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
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


class SecurityMiddleware:
    """Rejects requests that fail a check, and adds security headers and a request id.

    `public` lists the paths of the page's files, which need no API key.
    """

    def __init__(self, app: Any, settings: Settings, public: frozenset[str]) -> None:
        self.app, self.settings = app, settings
        self.open_paths = PROBES | public | ({"/metrics"} if settings.open_metrics else set())
        self.key_hash, self.hosts = settings.key_hash, settings.known_hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = ((b"x-request-id", request_id), *HEADERS)
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            self._check(scope, headers)
            await self.app(scope, self._limit_body(receive), send_with_headers)
        except APIError as error:
            await error.response(scope, receive, send_with_headers)

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = re.sub(r":\d*$", "", host).strip("[]")
        if self.hosts is not None and name not in self.hosts:
            # Prevents DNS rebinding: another site may point its own name at this address.
            message = f"The host {name[:80]!r} is not allowed: start the server with --allow-host."
            raise APIError(421, message, code="wrong_host")
        if scope["path"] not in self.open_paths and not self._has_key(headers):
            message = "The API key is missing or wrong: send 'Authorization: Bearer KEY'."
            raise APIError(401, message, code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        # Python does not convert numbers of many digits.
        if length.isdigit() and (len(length) > 18 or int(length) > self.settings.limits.body):
            raise self._too_large()
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            # Prevents cross-site requests: an HTML form cannot send this content type.
            if kind != b"application/json":
                message = "The body must be JSON: send 'Content-Type: application/json'."
                raise APIError(415, message, code="not_json")

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        if self.key_hash is None:
            return True
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        same = hmac.compare_digest(hashlib.sha256(given.strip()).digest(), self.key_hash)
        return same and scheme.lower() == b"bearer"

    def _too_large(self) -> APIError:
        limit = self.settings.limits.body
        message = f"The body is larger than {limit} bytes: send a smaller one."
        return APIError(413, message, code="too_large")

    def _limit_body(self, receive: Any) -> Any:
        """Wrap `receive` to count the bytes: the Content-Length header may be wrong."""
        total = 0

        async def limited() -> Any:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.settings.limits.body:
                raise self._too_large()
            return message

        return limited


class MetricsMiddleware:
    """Counts responses by route and status."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app, self.counter = app, metrics.responses

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                # Use the route's pattern: clients could choose any number of paths.
                route = getattr(scope.get("route"), "path", "none")
                self.counter.labels(route, str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counted if scope["type"] == "http" else send)
