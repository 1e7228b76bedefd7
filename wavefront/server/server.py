"""The server: uvicorn, and an end that lets what is under way finish."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from typing import Any

import uvicorn

from wavefront.core.errors import OptionError, WavefrontError
from wavefront.server.app import make
from wavefront.server.service import Service
from wavefront.server.settings import Settings


class Server(uvicorn.Server):
    """At the first signal nothing more is accepted and all that was is answered; then it ends."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._asked: float | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._asked is not None:
            self.should_exit = self.force_exit = True
            return
        self._asked = time.monotonic()
        self.service.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self.service.engine.failure is not None:
            return True
        if self._asked is not None:
            if time.monotonic() - self._asked > self.service.limits.drain:
                self.service.engine.abandon()
            if self.service.idle:
                self.should_exit = True
        return await super().on_tick(counter)


def run(settings: Settings) -> None:
    """Serve until a signal says otherwise."""
    with contextlib.ExitStack() as around:
        listener = around.enter_context(_listen(settings))
        if settings.scale is not None:
            from wavefront.server.ray_serve import cluster  # needs Ray

            around.enter_context(cluster(settings.scale))
        _serve(settings, listener)


def _serve(settings: Settings, listener: socket.socket) -> None:
    app, service = make(settings)
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
        http="h11",  # the other parser, where it is installed, has no limit on headers
    )
    listener.listen(config.backlog)  # who comes as soon as the line is there is not turned away
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"wavefront serves on http://{shown}:{port}", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Server(config, service).serve(sockets=[listener]))
    if service.engine.failure is not None:
        raise WavefrontError(service.engine.failure)


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(
            f"Cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port."
        ) from error
    return listener
