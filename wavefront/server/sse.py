"""Server-sent events, sent as fast as the client reads them.

Each stream keeps its own position in the request's text or events. So a slow client gets fewer and
longer pieces, and never makes another client wait. Comments keep a silent stream alive. The stream
ends when its client disconnects, or accepts no data for `write_timeout` seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from starlette.responses import Response

from wavefront.server.openai_format import ResponseFormat
from wavefront.server.request_state import RequestState, error_body, wait_for_any
from wavefront.server.worker_messages import RequestFailed

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"
EVENTS_PER_PIECE = 64
EXPIRED = "The events of this decode have expired: start it again."
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class EventStream(Response):
    """An ASGI response that sends the pieces of an async generator.

    `on_disconnect` is called if the stream ends before all pieces are sent, and `on_end` in any
    case.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        write_timeout: float,
        on_disconnect: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.pieces, self.write_timeout = pieces, write_timeout
        self.on_disconnect, self.on_end = on_disconnect, on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = sending.done() and sending.exception() is None
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self.pieces.aclose()
            if not finished:
                self.on_disconnect()
            self.on_end()

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        async for piece in self.pieces:
            message = {"type": "http.response.body", "body": piece, "more_body": True}
            # uvicorn waits here while the client's buffers are full.
            await asyncio.wait_for(send(message), self.write_timeout)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def wait_for_disconnect(receive: Any) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def encode_event(content: Any) -> bytes:
    """Return one server-sent event with this content as JSON."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


async def stream_chunks(
    requests: Sequence[RequestState], style: ResponseFormat, *, with_usage: bool, keepalive: float
) -> AsyncGenerator[bytes, None]:
    """Yield OpenAI's chunks while the answers grow. The first error ends the stream."""
    sent, reported = [0] * len(requests), [0] * len(requests)
    growing = dict(enumerate(requests))
    for index in growing:
        yield encode_event(style.chunk(requests, index, text="", first=True))
    while growing:
        is_idle = True
        for index, request in list(growing.items()):
            added, outcome = request.text[sent[index] :], request.outcome
            start, stop = reported[index], len(request.logprobs)
            if added or start < stop:
                is_idle, reported[index] = False, stop
                sent[index] += len(added)
                part = slice(start, stop)
                yield encode_event(style.chunk(requests, index, text=added, logprobs=part))
            elif isinstance(outcome, RequestFailed):
                yield encode_event({"error": error_body(outcome)})
                yield DONE
                return
            elif outcome is not None:
                is_idle = False
                del growing[index]
                reason = outcome.finish_reason
                yield encode_event(style.chunk(requests, index, finish_reason=reason))
        if is_idle and not await wait_for_any(list(growing.values()), keepalive):
            yield KEEPALIVE
    if with_usage:
        yield encode_event(style.usage_chunk(requests))
    yield DONE


async def stream_events(
    request: RequestState, *, start: int, keepalive: float
) -> AsyncGenerator[bytes, None]:
    """Yield the step events from number `start` on. The id of each event is its number."""
    number = start
    while True:
        if request.expired:
            failure = RequestFailed(request.id, 404, EXPIRED, "not_found")
            yield encode_event({"type": "error", "error": error_body(failure)})
            break
        events = request.events[number : number + EVENTS_PER_PIECE]
        if events:
            pieces = (
                b"id: %d\ndata: %b\n\n" % (number + n, event) for n, event in enumerate(events)
            )
            yield b"".join(pieces)
            number += len(events)
        elif request.outcome is not None:
            break
        elif not await request.wait_for_change(keepalive):
            yield KEEPALIVE
    yield DONE
