"""Limits on connections, which apply before the API key is checked.

uvicorn waits for a request without a time limit. `LimitedProtocol` adds time limits for
headers, bodies and unread responses. `ConnectionLimiter` bounds the number of connections and the
memory of requests that have not arrived completely. When a bound is reached, the client with the
largest share loses its oldest connection, so a new client is still answered.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import time
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import APIError
from wavefront.server.settings import Limits

KEEP_ALIVE = 30  # seconds that a connection may stay open between two requests
BACKLOG = 1024  # connections that wait in the kernel to be accepted
ACCEPT_BATCH = 16  # connections that the event loop accepts in one iteration
# For pipes, files and the decode process. The loop needs four iterations from accepting one
# connection to closing another one for it, so five batches are reserved too.
RESERVED_DESCRIPTORS = 64 + 5 * ACCEPT_BATCH
LOG = logging.getLogger("uvicorn.error")
LOG_BURST, LOG_INTERVAL = 5, 60.0  # similar messages that are logged, in this many seconds
MAX_LOG_KINDS = 256
FEWER = 4  # an address has far fewer connections than another with this many times as many


def available_connections(wanted: int) -> int:
    """Raise the limit on file descriptors as far as needed, and return how many connections fit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + RESERVED_DESCRIPTORS
    target = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if target > soft:
        with contextlib.suppress(ValueError, OSError):  # the system may have its own maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return max(1, min(wanted, soft - RESERVED_DESCRIPTORS))


class LimitedProtocol(H11Protocol):
    """An HTTP connection whose client must send and read within time limits.

    `phase` says what the connection does: "headers" and "body" while a request arrives,
    "response" until it is answered, "idle" between requests, and "closing" while the last bytes
    are sent. `since` is the start of the phase, and `held` the bytes of an unfinished request.
    """

    def __init__(self, *, limiter: ConnectionLimiter, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.limiter = limiter
        self.phase, self.since, self.held = "headers", time.monotonic(), 0
        self.stalled_since: float | None = None  # when the client stopped reading
        self.address = ""
        self._request: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = _network(self.client[0] if self.client else "")
        self.limiter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.limiter.remove(self)

    def data_received(self, data: bytes) -> None:
        if self.phase == "idle":
            self.phase, self.since = "headers", time.monotonic()
        super().data_received(data)
        self._update(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled_since = time.monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled_since = None

    def _update(self, received: int = 0) -> None:
        """Enter the phase that the connection is in now, and count the received bytes."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing():
            phase = "closing"
        elif self.conn.their_state is h11.SEND_BODY:
            phase = "body"
        elif not answered:
            phase = "response"
        else:
            phase = "headers" if self.conn.trailing_data[0] or self.cycle is None else "idle"
        if (phase, self.cycle) != (self.phase, self._request):
            self.phase, self._request, self.since = phase, self.cycle, time.monotonic()
        # The rest of a body is not kept if its request has already been answered.
        kept = phase == "headers" or (phase == "body" and not answered)
        self.limiter.hold(self, self.held + received if kept else 0)

    def check(self, limits: Limits) -> None:
        """End the connection if it exceeds a time limit."""
        now = time.monotonic()
        self._update()
        waited = now - self.since
        stalled = self.stalled_since is not None and now - self.stalled_since > limits.write_timeout
        if stalled or (self.phase == "closing" and waited > limits.write_timeout):
            self.abort("write_timeout")
        elif self.phase == "idle" and waited > KEEP_ALIVE:
            self.transport.close()
        elif self.phase == "headers" and waited > limits.header_timeout:
            if not self.held:  # some browsers connect in advance
                self.transport.close()
                return
            text = f"The headers took more than {limits.header_timeout:g} seconds: send them faster"
            self.end(APIError(408, f"{text}.", code="header_timeout"))
        elif self.phase == "body" and waited > limits.body_timeout:
            text = f"The body took more than {limits.body_timeout:g} seconds: send it faster."
            self.end(APIError(408, text, code="body_timeout"))

    def end(self, error: APIError) -> None:
        """Send an error if no response has begun, and close the connection."""
        self.limiter.record_closed(error.failure.code)
        started = self.cycle is not None and self.cycle.response_started
        if not started:
            response = error.response
            headers = [*response.raw_headers, (b"connection", b"close")]
            with contextlib.suppress(h11.LocalProtocolError):
                start = h11.Response(status_code=error.failure.status, headers=headers)
                for event in (start, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            # Tell the application, which may still wait for the body.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._update()

    def abort(self, reason: str) -> None:
        """Close the connection without waiting for the client to read."""
        self.limiter.record_closed(reason)
        self.transport.abort()


class ConnectionLimiter:
    """All open connections of a server, by the network address of their clients."""

    def __init__(self, limits: Limits, metrics: Metrics, *, connections: int) -> None:
        """Allow `connections` connections, which may be fewer than in `limits`."""
        self.limits, self.metrics = limits, metrics
        self.max_open = connections
        self.max_per_address = min(limits.connections_per_address, connections)
        self._by_address: dict[str, dict[LimitedProtocol, None]] = {}
        self._count = self._held = 0

    def add(self, connection: LimitedProtocol) -> None:
        """Register a new connection. If there are too many, close one."""
        own = self._by_address.setdefault(connection.address, {})
        own[connection] = None
        self._count += 1
        if len(own) > self.max_per_address:
            self._make_room(own, connection)
        elif self._count > self.max_open:
            largest = max(self._by_address.values(), key=len)
            self._make_room(largest, connection, may_cut=len(largest) >= FEWER * len(own))
        self.metrics.connections.set(self._count)

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a closed connection."""
        own = self._by_address.get(connection.address, {})
        if connection not in own:
            return
        del own[connection]
        if not own:
            del self._by_address[connection.address]
        self._count -= 1
        self._held -= connection.held
        connection.held = 0
        self.metrics.connections.set(self._count)

    def hold(self, connection: LimitedProtocol, size: int) -> None:
        """Set the size of an unfinished request. End requests while the total is too large."""
        if connection not in self._by_address.get(connection.address, ()):
            return
        self._held += size - connection.held
        connection.held = size
        while self._held > self.limits.pending_bytes:
            largest = max(self._by_address.values(), key=lambda own: sum(c.held for c in own))
            victim = min((one for one in largest if one.held), key=lambda one: one.since)
            message = "Too many requests are arriving at the same time: try again later."
            victim.end(APIError(503, message, code="too_many_bytes", retry_after=1))

    def check(self) -> None:
        """End every connection that exceeds a time limit."""
        for connection in [one for own in self._by_address.values() for one in own]:
            connection.check(self.limits)

    def record_closed(self, reason: str) -> None:
        """Count a connection that the server closed because of a limit."""
        self.metrics.connections_closed.labels(reason).inc()
        LOG.warning("Closed a connection because of a limit: %s.", reason)

    def _make_room(
        self,
        group: Iterable[LimitedProtocol],
        newcomer: LimitedProtocol,
        *,
        may_cut: bool = False,
    ) -> None:
        """Close the connection that is least likely to be needed, or else the new one.

        With `may_cut`, a response may be cut off: its address has far more connections.
        """
        order = (("closing", "idle", "headers"), ("body",), ("response",))
        for phases in order if may_cut else order[:2]:
            found = [one for one in group if one.phase in phases and one is not newcomer]
            if found:
                victim = min(found, key=lambda one: one.since)
                victim.abort("too_many_connections")
                self.remove(victim)
                return
        message = "Too many connections are open: try again later."
        newcomer.end(APIError(503, message, code="too_many_connections", retry_after=1))


class RepeatFilter(logging.Filter):
    """Drops log records that are similar to recent ones, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record. The first one after a pause gives the count."""
        kind = (record.name, str(record.msg)[:40])
        now = time.monotonic()
        if len(self._seen) > MAX_LOG_KINDS:
            self._seen.clear()
        start, count = self._seen.get(kind, (now, 0))
        if now - start > LOG_INTERVAL:
            if count > LOG_BURST:
                dropped = count - LOG_BURST
                record.msg = f"{record.msg} ({dropped} similar messages were not logged)"
            start, count = now, 0
        self._seen[kind] = (start, count + 1)
        return count < LOG_BURST


def _network(host: str) -> str:
    """Return a client's address, or its 64-bit network for IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
