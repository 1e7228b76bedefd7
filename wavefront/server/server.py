"""Runs the server under uvicorn, and drains it at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import sys
import time
from typing import Any

import uvicorn

from wavefront.core.errors import OptionError, WavefrontError
from wavefront.server.app import create_app
from wavefront.server.connections import (
    ACCEPT_BATCH,
    BACKLOG,
    KEEP_ALIVE,
    ConnectionLimiter,
    LimitedProtocol,
    RepeatFilter,
    available_connections,
)
from wavefront.server.service import Service
from wavefront.server.settings import MAX_HEADER_BYTES, Settings

CHECK_TICKS = 3  # uvicorn's ticks of 0.1 s between two checks of all connections


class DrainingServer(uvicorn.Server):
    """A server that answers all accepted requests before it exits.

    The first signal starts the drain: new requests are rejected. A second signal exits at once.
    """

    def __init__(
        self, config: uvicorn.Config, service: Service, limiter: ConnectionLimiter
    ) -> None:
        super().__init__(config)
        self.service, self.limiter = service, limiter
        self._drain_start: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio sets it to the size of a batch

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._drain_start is not None:
            self.should_exit = self.force_exit = True
            return
        self._drain_start = time.monotonic()
        self.service.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self.service.backend.load_error is not None:
            return True
        if counter % CHECK_TICKS == 0:
            self.limiter.check()
        if self._drain_start is not None:
            if time.monotonic() - self._drain_start > self.service.limits.drain_timeout:
                self.service.backend.abort_all()
            if self.service.idle:
                self.should_exit = True
        return await super().on_tick(counter)


def run(settings: Settings) -> None:
    """Serve until a signal arrives.

    Raises:
        OptionError: The address is not available.
        WavefrontError: The model cannot be loaded.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(settings))
        if settings.scale is not None:
            from wavefront.server.ray_backend import ray_cluster  # imports Ray

            stack.enter_context(ray_cluster(settings.scale))
        _serve(settings, listener)


def _serve(settings: Settings, listener: socket.socket) -> None:
    app, service = create_app(settings)
    connections = available_connections(settings.limits.connections)
    limiter = ConnectionLimiter(settings.limits, service.metrics, connections=connections)
    config = make_config(app, settings, limiter)
    for name in ("uvicorn.error", "asyncio"):  # a client can cause any number of warnings
        logging.getLogger(name).addFilter(RepeatFilter())
    listener.listen(BACKLOG)  # accept clients as soon as the line below is printed
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"wavefront serves on http://{shown}:{port}", file=sys.stderr, flush=True)
    if connections < settings.limits.connections:
        text = "The limit on open files allows only %d connections: raise it with ulimit -n."
        logging.getLogger("uvicorn.error").warning(text, connections)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(DrainingServer(config, service, limiter).serve(sockets=[listener]))
    if service.backend.load_error is not None:
        raise WavefrontError(service.backend.load_error)


def make_config(app: Any, settings: Settings, limiter: ConnectionLimiter) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return uvicorn.Config(
        app,
        # By default, uvicorn lets every client on this machine name another address.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        backlog=ACCEPT_BATCH,
        lifespan="on",
        ws="none",
        # h11, because httptools does not limit the size of headers.
        http=functools.partial(LimitedProtocol, limiter=limiter),  # pyright: ignore[reportArgumentType]
    )


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(
            f"Cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port.",
            option="port",
            value=settings.port,
        ) from error
    return listener
