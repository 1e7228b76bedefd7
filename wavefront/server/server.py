"""Runs the server under uvicorn, and drains it at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from typing import Any

import uvicorn

from wavefront.core.errors import OptionError, WavefrontError
from wavefront.server.app import create_app
from wavefront.server.service import Service
from wavefront.server.settings import Settings


class DrainingServer(uvicorn.Server):
    """A server that answers all accepted requests before it exits.

    The first signal starts the drain: new requests are rejected. A second signal exits at once.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._drain_start: float | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._drain_start is not None:
            self.should_exit = self.force_exit = True
            return
        self._drain_start = time.monotonic()
        self.service.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self.service.backend.load_error is not None:
            return True
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
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=64 << 10,
        backlog=1024,
        lifespan="on",
        ws="none",
        http="h11",  # httptools does not limit the size of headers
    )
    listener.listen(config.backlog)  # accept clients as soon as the line below is printed
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"wavefront serves on http://{shown}:{port}", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(DrainingServer(config, service).serve(sockets=[listener]))
    if service.backend.load_error is not None:
        raise WavefrontError(service.backend.load_error)


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
