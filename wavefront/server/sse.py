"""Streams: server-sent events, sent as fast as their one reader takes them.

A stream reads a ticket from its own place in it, so a slow reader gets fewer and longer pieces and
never makes another wait. Quiet times are filled with comments. A reader that goes away, or takes
nothing for long, ends the stream; `gone` says what becomes of the request then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response

from wavefront.server.openai_format import Shape
from wavefront.server.request_state import Ticket, error_body
from wavefront.server.worker_messages import Ended, Refused

DONE = b"data: [DONE]\n\n"
QUIET = b": keep-alive\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class EventStream(Response):
    """An ASGI response that sends what an iterator yields until its reader is gone."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], *, patience: float, gone: Callable[[], None]
    ) -> None:
        super().__init__()
        self.pieces, self.patience, self.gone = pieces, patience, gone

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = sending.done() and sending.exception() is None
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self.pieces.aclose()
            if not finished:
                self.gone()

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        async for piece in self.pieces:
            message = {"type": "http.response.body", "body": piece, "more_body": True}
            # uvicorn waits here while the reader's buffers are full.
            await asyncio.wait_for(send(message), self.patience)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def left(receive: Any) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def said(content: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


async def deltas(
    ticket: Ticket, shape: Shape, about: dict[str, str], *, with_usage: bool, quiet: float
) -> AsyncGenerator[bytes, None]:
    """OpenAI's chunks: the settled text as it grows."""
    sent = 0
    yield said(shape.piece(ticket, about, text="", first=True))
    while True:
        more, outcome = ticket.text[sent:], ticket.outcome
        if more:
            sent += len(more)
            yield said(shape.piece(ticket, about, text=more))
        elif outcome is not None:
            break
        elif not await ticket.more(quiet):
            yield QUIET
    if isinstance(outcome, Refused):
        yield said({"error": error_body(outcome)})
    elif isinstance(outcome, Ended):
        yield said(shape.piece(ticket, about, reason=outcome.finish_reason))
        if with_usage:
            yield said(shape.last(ticket, about))
    yield DONE


async def pictures(ticket: Ticket, *, start: int, quiet: float) -> AsyncGenerator[bytes, None]:
    """Every step, from event number `start` on; each has its number as its id."""
    number = start
    while True:
        events = ticket.events[number : number + 64]
        if events:
            pieces = (b"id: %d\ndata: %b\n\n" % (number + n, one) for n, one in enumerate(events))
            yield b"".join(pieces)
            number += len(events)
        elif ticket.outcome is not None:
            break
        elif not await ticket.more(quiet):
            yield QUIET
    yield DONE
