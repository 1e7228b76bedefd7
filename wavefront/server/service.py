"""The service: what the routes do, and the counting that decides whether a request may come in."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import wavefront
from wavefront.server.frontend import Desk
from wavefront.server.local_backend import Engine
from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import Refusal, Reply, Shape
from wavefront.server.request_models import Answering, Begin, Branch, Chat, Complete, DecodingFields
from wavefront.server.request_parser import check, read
from wavefront.server.request_state import Ticket
from wavefront.server.settings import Settings
from wavefront.server.sse import EventStream, deltas, left, pictures
from wavefront.server.worker_messages import Ended, Fork, Job, Refused

GONE = ("The client went away.", "client_gone")
ENDINGS = ("eos", "eos_policy", "logits_eos_inf", "confidence_eos_eot_inf")


class Service:
    """One model, served."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.metrics = Metrics()
        self.engine = _engine(settings, self.metrics)
        self.draining = False

    @property
    def about(self) -> dict[str, str]:
        """What every answer says of its origin."""
        about = self.engine.about
        assert about is not None
        return {"model": about.name, "system_fingerprint": about.fingerprint}

    @property
    def idle(self) -> bool:
        return not self.engine.shelf.open

    def admit(self) -> None:
        """Refuse at once what cannot be answered soon."""
        if self.draining:
            self._reject("draining", 503, "The server is shutting down: ask another.", 5)
        if self.engine.state != "ready":
            words = {"loading": "The model is being loaded", "down": "The decode process restarts"}
            said = words.get(self.engine.state, "The server has stopped")
            self._reject(f"engine_{self.engine.state}", 503, f"{said}: try again later.", 2)
        if len(self.engine.shelf.open) >= self.engine.room:
            message = f"{self.limits.queue} requests are waiting already: try again later."
            self._reject("queue_full", 429, message, 1)

    def _reject(self, code: str, status: int, message: str, retry: int) -> None:
        self.metrics.rejections.labels(code).inc()
        raise Refusal(status, message, code=code, retry=retry)

    async def answer(self, request: Request, kind: type[Chat] | type[Complete]) -> Any:
        """OpenAI's two routes."""
        content = await read(request)
        self.admit()
        body = check(kind, content)
        shape = Shape(chat=kind is Chat)
        job = self.job(body, request, id=f"{shape.prefix}{uuid.uuid4().hex}", events=body.events)
        job = replace(job, told=bool(body.stream or body.events))
        if isinstance(body, Chat):
            job = replace(job, messages=self._messages(body.messages))
        elif isinstance(body, Complete):
            job = replace(job, prompt=body.prompt, infill=body.infill)  # pyright: ignore[reportArgumentType]
        ticket = self.engine.submit(job)
        await self._while_there(request, ticket, ticket.until_taken())
        if isinstance(ticket.outcome, Refused):
            raise Refusal.of(ticket.outcome)
        if body.stream:
            return self._stream(ticket, shape, body)
        await self._while_there(request, ticket, ticket.until_over())
        if isinstance(ticket.outcome, Ended):
            return Reply(shape.whole(ticket, ticket.outcome, self.about))
        assert ticket.outcome is not None
        raise Refusal.of(ticket.outcome)

    def _stream(self, ticket: Ticket, shape: Shape, body: Answering) -> EventStream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        pieces = deltas(ticket, shape, self.about, with_usage=with_usage, quiet=self.limits.quiet)
        return EventStream(pieces, patience=self.limits.unread, gone=lambda: self._lost(ticket))

    def _lost(self, ticket: Ticket) -> None:
        self.engine.drop(ticket, Refused(ticket.id, 499, *GONE))

    async def _while_there(self, request: Request, ticket: Ticket, wanted: Any) -> None:
        """Wait for something while the client does; without it the request is given up."""
        waiting = asyncio.ensure_future(wanted)
        leaving = asyncio.ensure_future(left(request.receive))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._lost(ticket)
                raise Refusal(499, GONE[0], code=GONE[1])
        except asyncio.CancelledError:
            self._lost(ticket)
            raise
        finally:
            for task in (waiting, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def job(self, body: DecodingFields, request: Request, *, id: str, events: bool) -> Job:
        """What the body says of decoding, as the decode process takes it."""
        assert self.engine.about is not None
        if body.model is not None and body.model != self.engine.about.name:
            message = (
                f"The model {body.model!r} does not exist; here is {self.engine.about.name!r}."
            )
            raise Refusal(404, message, code="model_not_found", param="model")
        options = body.options()
        if not any(name in options for name in ENDINGS):
            options["eos"] = "stop"  # the same text as with keep, only sooner
        if (options.get("steps") or 0) > self.limits.steps:
            message = f"steps must be at most {self.limits.steps} here, not {options['steps']}."
            raise Refusal(400, message, code="invalid_value", param="steps")
        peer = request.client.host if request.client else ""
        seconds = min(body.timeout or self.limits.seconds, self.limits.seconds)
        return Job(
            id=id,
            client=f"{peer} {body.user or ''}",
            options=options,
            stop=body.stops(),
            events=events,
            seconds=seconds,
        )

    def _messages(self, messages: Any) -> list[dict[str, str]]:
        if len(messages) > self.limits.messages:
            text = f"{len(messages)} messages are more than {self.limits.messages}: send fewer."
            raise Refusal(400, text, code="invalid_value", param="messages")
        return [one.plain() for one in messages]

    async def begin(self, request: Request) -> Reply:
        """Start a decode to be watched."""
        content = await read(request)
        self.admit()
        body = check(Begin, content)
        job = self.job(body, request, id=f"wave-{uuid.uuid4().hex}", events=True)
        job = replace(job, measure=body.measure, detached=True)
        assert self.engine.about is not None
        if body.messages is not None:
            job = replace(job, messages=self._messages(body.messages))
        else:
            raw = body.raw or not self.engine.about.chat
            job = replace(job, prompt=body.prompt, infill=body.infill, raw=raw)  # pyright: ignore[reportArgumentType]
        return await self._begun(job)

    async def branch(self, request: Request, id: str) -> Reply:
        """Start a decode from a step of another."""
        content = await read(request)
        self.admit()
        body = check(Branch, content)
        origin = self.find(id)
        if origin.board is None:
            raise Refusal(409, "That decode has not begun: wait for it.", code="not_begun")
        if body.at > len(origin.commits):
            message = f"at must be at most {len(origin.commits)}, the steps made, not {body.at}."
            raise Refusal(400, message, code="invalid_value", param="at")
        try:
            put = body.places()
        except ValueError:
            message = "put maps places, whole numbers from 0, to texts or token ids."
            raise Refusal(400, message, code="invalid_value", param="put") from None
        job = self.job(body, request, id=f"wave-{uuid.uuid4().hex}", events=True)
        options = {**_inherited(origin, body.at), **_without_length(body.options())}
        fork = Fork(origin.board_at(body.at), put)
        stop = job.stop or origin.job.stop
        more = {"options": options, "fork": fork, "detached": True, "stop": stop}
        return await self._begun(replace(job, measure=body.measure, **more))

    async def _begun(self, job: Job) -> Reply:
        ticket = self.engine.submit(job)
        await ticket.until_taken()
        if isinstance(ticket.outcome, Refused) and ticket.taken is None:
            raise Refusal.of(ticket.outcome)
        assert ticket.taken is not None
        events = f"/v1/wavefront/decodes/{ticket.id}/events"
        return Reply({"id": ticket.id, "events": events, "first": ticket.taken.first}, 202)

    def watch(self, id: str, start: int) -> EventStream:
        """The events of a decode, from one on."""
        ticket = self.find(id)

        async def watched() -> AsyncGenerator[bytes, None]:
            ticket.readers += 1
            try:
                async for piece in pictures(ticket, start=start, quiet=self.limits.quiet):
                    yield piece
            finally:
                ticket.readers -= 1
                ticket.unwatched_since = time.monotonic()

        return EventStream(watched(), patience=self.limits.unread, gone=lambda: None)

    def cancel(self, id: str) -> Response:
        ticket = self.find(id)
        self.engine.drop(ticket, Refused(id, 499, "The decode was cancelled.", "cancelled"))
        return Response(status_code=204)

    def find(self, id: str) -> Ticket:
        ticket = self.engine.shelf.find(id[:200])
        if ticket is None or not ticket.job.events:
            message = "There is no such decode, or it ended too long ago: start it again."
            raise Refusal(404, message, code="not_found", param="id")
        return ticket

    def health(self) -> Reply:
        """Alive? Loading the first time is; waiting for another decode process is not."""
        state = self.engine.state
        return Reply({"status": state}, 200 if state in ("loading", "ready") else 503)

    def ready(self) -> Reply:
        state = "draining" if self.draining else self.engine.state
        return Reply({"status": state}, 200 if state == "ready" else 503)

    def version(self) -> Reply:
        about = self.engine.about
        found = {"version": wavefront.__version__, "system_fingerprint": None}
        return Reply(found | ({"system_fingerprint": about.fingerprint} if about else {}))

    def models(self) -> list[dict[str, Any]]:
        """What is served; nothing before it has loaded."""
        about = self.engine.about
        if about is None:
            return []
        entry = {"id": about.name, "object": "model", "created": 0, "owned_by": "wavefront"}
        own = {"chat": about.chat, "family": about.family, "max_length": about.length}
        return [entry | {"wavefront": own | {"strategies": about.strategies}}]


def _engine(settings: Settings, metrics: Metrics) -> Desk:
    if settings.scale is None:
        return Engine(settings, metrics)
    from wavefront.server.ray_backend import Fleet  # needs Ray

    return Fleet(settings, metrics)


def _inherited(origin: Ticket, at: int) -> dict[str, Any]:
    """The options of a decode that goes on: the steps that were left."""
    assert origin.taken is not None
    assert origin.taken.first is not None
    options = dict(origin.taken.first["options"])
    options["steps"] = max(1, options["steps"] - at)
    return {k: v for k, v in _without_length(options).items() if v not in (None, 0.0, False)}


def _without_length(options: dict[str, Any]) -> dict[str, Any]:
    gone = ("max_new_tokens", "max_tokens", "gen_length", "cfg_scale", "draft", "cache")
    return {name: value for name, value in options.items() if name not in gone}
