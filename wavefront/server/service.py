"""What the routes do, and the admission control that decides whether a request may enter."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import wavefront
from wavefront.server.frontend import Frontend
from wavefront.server.local_backend import LocalBackend
from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import APIError, ASCIIResponse, ResponseFormat
from wavefront.server.request_models import (
    ChatBody,
    CompletionBody,
    DecodeBody,
    DecodingFields,
    ForkBody,
    Message,
    OpenAIBody,
    read_json,
    validate,
)
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Settings
from wavefront.server.sse import EventStream, stream_chunks, stream_events, wait_for_disconnect
from wavefront.server.worker_messages import (
    CLIENT_GONE,
    Finished,
    Fork,
    Job,
    ModelInfo,
    RequestFailed,
)

EOS_OPTIONS = ("eos", "eos_policy", "logits_eos_inf", "confidence_eos_eot_inf")
NOT_READY = {
    "loading": "The model is still loading",
    "down": "The decode process is restarting",
    "stopped": "The server has stopped",
}


class Service:
    """One served model."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.metrics = Metrics()
        self.backend = _make_backend(settings, self.metrics)
        self.draining = False

    @property
    def idle(self) -> bool:
        """Whether no request is active."""
        return not self.backend.requests.active

    @property
    def _model(self) -> ModelInfo:
        assert self.backend.model_info is not None
        return self.backend.model_info

    def _check_admission(self) -> None:
        """Raise an `APIError` if the server cannot take another request now."""
        if self.draining:
            message = "The server is shutting down: use another server."
            self._reject(503, message, code="draining", retry_after=5)
        status = self.backend.status
        if status != "ready":
            message = f"{NOT_READY[status]}: try again later."
            self._reject(503, message, code=f"engine_{status}", retry_after=2)
        if len(self.backend.requests.active) >= self.backend.capacity:
            message = f"{self.limits.queue} requests are already waiting: try again later."
            self._reject(429, message, code="queue_full", retry_after=1)

    def _reject(self, status: int, message: str, *, code: str, retry_after: int) -> None:
        self.metrics.rejections.labels(code).inc()
        raise APIError(status, message, code=code, retry_after=retry_after)

    async def complete(self, request: Request, kind: type[ChatBody] | type[CompletionBody]) -> Any:
        """Answer a request of one of OpenAI's two completion routes."""
        content = await read_json(request)
        self._check_admission()
        body = validate(kind, content)
        prefix = "chatcmpl-" if kind is ChatBody else "cmpl-"
        job = self._make_job(body, request, id=f"{prefix}{uuid.uuid4().hex}", events=body.events)
        job = replace(job, incremental=bool(body.stream or body.events))
        if isinstance(body, ChatBody):
            job = replace(job, messages=self._plain_messages(body.messages))
        elif isinstance(body, CompletionBody):
            job = replace(job, prompt=body.prompt, infill=body.infill)  # pyright: ignore[reportArgumentType]
        state = self.backend.submit(job)
        await self._wait_with_client(request, state, state.wait_until_checked())
        if isinstance(state.outcome, RequestFailed):
            raise APIError.from_failure(state.outcome)
        origin = {"model": self._model.name, "system_fingerprint": self._model.fingerprint}
        style = ResponseFormat(chat=kind is ChatBody, origin=origin)
        if body.stream:
            return self._stream(state, style, body)
        await self._wait_with_client(request, state, state.wait_until_ended())
        if isinstance(state.outcome, Finished):
            return ASCIIResponse(style.completion(state, state.outcome))
        assert state.outcome is not None
        raise APIError.from_failure(state.outcome)

    def _stream(self, state: RequestState, style: ResponseFormat, body: OpenAIBody) -> EventStream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        chunks = stream_chunks(
            state, style, with_usage=with_usage, keepalive=self.limits.keepalive_interval
        )
        return EventStream(
            chunks,
            write_timeout=self.limits.write_timeout,
            on_disconnect=lambda: self._cancel_for_client(state),
        )

    def _cancel_for_client(self, state: RequestState) -> None:
        self.backend.cancel(state, RequestFailed(state.id, 499, *CLIENT_GONE))

    async def _wait_with_client(
        self, request: Request, state: RequestState, wait: Coroutine[Any, Any, Any]
    ) -> None:
        """Wait for a change of the state. Cancel the request if its client disconnects."""
        waiting = asyncio.ensure_future(wait)
        leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._cancel_for_client(state)
                raise APIError(499, CLIENT_GONE[0], code=CLIENT_GONE[1])
        except asyncio.CancelledError:
            self._cancel_for_client(state)
            raise
        finally:
            for task in (waiting, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _make_job(self, body: DecodingFields, request: Request, *, id: str, events: bool) -> Job:
        """Make a job without a prompt from the decoding fields of a body."""
        if body.model is not None and body.model != self._model.name:
            message = f"The model {body.model!r} does not exist; use {self._model.name!r}."
            raise APIError(404, message, code="model_not_found", param="model")
        options = body.options()
        if not any(name in options for name in EOS_OPTIONS):
            options["eos"] = "stop"  # the same text as with keep, in fewer steps
        if (options.get("steps") or 0) > self.limits.steps:
            message = f"steps must be at most {self.limits.steps} here, not {options['steps']}."
            raise APIError(400, message, code="invalid_value", param="steps")
        address = request.client.host if request.client else ""
        limit = self.limits.request_timeout
        return Job(
            id=id,
            client=f"{address} {body.user or ''}",
            options=options,
            stop=body.stops(),
            events=events,
            timeout=min(body.timeout or limit, limit),
        )

    def _plain_messages(self, messages: list[Message]) -> list[dict[str, str]]:
        if len(messages) > self.limits.messages:
            text = f"{len(messages)} messages are more than {self.limits.messages}: send fewer."
            raise APIError(400, text, code="invalid_value", param="messages")
        return [one.plain() for one in messages]

    async def start_decode(self, request: Request) -> ASCIIResponse:
        """Start a decode whose events can be read."""
        content = await read_json(request)
        self._check_admission()
        body = validate(DecodeBody, content)
        job = self._make_job(body, request, id=f"wave-{uuid.uuid4().hex}", events=True)
        job = replace(job, measure=body.measure, detached=True)
        if body.messages is not None:
            job = replace(job, messages=self._plain_messages(body.messages))
        else:
            raw = body.raw or not self._model.chat
            job = replace(job, prompt=body.prompt, infill=body.infill, raw=raw)  # pyright: ignore[reportArgumentType]
        return await self._submit_detached(job)

    async def fork_decode(self, request: Request, id: str) -> ASCIIResponse:
        """Start a decode that continues from a step of another decode."""
        content = await read_json(request)
        self._check_admission()
        body = validate(ForkBody, content)
        origin = self._find(id)
        if origin.canvas is None:
            raise APIError(409, "That decode has not started yet: wait for it.", code="not_begun")
        if body.at > len(origin.commits):
            message = f"at must be at most {len(origin.commits)}, the steps so far, not {body.at}."
            raise APIError(400, message, code="invalid_value", param="at")
        try:
            overrides = body.overrides()
        except ValueError:
            message = "put must map positions, counted from 0, to texts or token ids."
            raise APIError(400, message, code="invalid_value", param="put") from None
        job = self._make_job(body, request, id=f"wave-{uuid.uuid4().hex}", events=True)
        job = replace(
            job,
            options={**_inherited_options(origin, body.at), **_without_length(body.options())},
            fork=Fork(origin.canvas_at(body.at), overrides),
            stop=job.stop or origin.job.stop,
            measure=body.measure,
            detached=True,
        )
        return await self._submit_detached(job)

    async def _submit_detached(self, job: Job) -> ASCIIResponse:
        state = self.backend.submit(job)
        await state.wait_until_checked()
        if isinstance(state.outcome, RequestFailed) and state.accepted is None:
            raise APIError.from_failure(state.outcome)
        assert state.accepted is not None
        events = f"/v1/wavefront/decodes/{state.id}/events"
        first = state.accepted.start_event
        return ASCIIResponse({"id": state.id, "events": events, "first": first}, 202)

    def read_events(self, id: str, start: int) -> EventStream:
        """Stream the events of a decode from number `start` on."""
        state = self._find(id)
        events = stream_events(state, start=start, keepalive=self.limits.keepalive_interval)

        async def watched() -> AsyncGenerator[bytes, None]:
            state.readers += 1
            try:
                async for piece in events:
                    yield piece
            finally:
                state.readers -= 1
                state.unwatched_since = time.monotonic()

        return EventStream(
            watched(), write_timeout=self.limits.write_timeout, on_disconnect=lambda: None
        )

    def cancel_decode(self, id: str) -> Response:
        """Cancel a decode."""
        failure = RequestFailed(id, 499, "The decode was cancelled.", "cancelled")
        self.backend.cancel(self._find(id), failure)
        return Response(status_code=204)

    def _find(self, id: str) -> RequestState:
        state = self.backend.requests.find(id[:200])
        if state is None or not state.job.events:
            message = "There is no such decode, or its events have expired: start it again."
            raise APIError(404, message, code="not_found", param="id")
        return state

    def health(self) -> ASCIIResponse:
        """Return 200 while the decode process runs or loads for the first time, else 503."""
        status = self.backend.status
        return ASCIIResponse({"status": status}, 200 if status in ("loading", "ready") else 503)

    def ready(self) -> ASCIIResponse:
        """Return 200 while the server accepts requests, else 503."""
        status = "draining" if self.draining else self.backend.status
        return ASCIIResponse({"status": status}, 200 if status == "ready" else 503)

    def version(self) -> ASCIIResponse:
        """Return the version, and the fingerprint of the model once it has loaded."""
        info = self.backend.model_info
        fingerprint = None if info is None else info.fingerprint
        return ASCIIResponse({"version": wavefront.__version__, "system_fingerprint": fingerprint})

    def models(self) -> list[dict[str, Any]]:
        """Return the served model as a list, which is empty until the model has loaded."""
        info = self.backend.model_info
        if info is None:
            return []
        entry = {"id": info.name, "object": "model", "created": 0, "owned_by": "wavefront"}
        details = {"chat": info.chat, "family": info.family, "max_length": info.length}
        return [entry | {"wavefront": details | {"strategies": info.strategies}}]


def _make_backend(settings: Settings, metrics: Metrics) -> Frontend:
    if settings.scale is None:
        return LocalBackend(settings, metrics)
    from wavefront.server.ray_backend import RayBackend  # imports Ray

    return RayBackend(settings, metrics)


def _inherited_options(origin: RequestState, at: int) -> dict[str, Any]:
    """Return the options of a decode for a fork, with the steps that remain after `at`."""
    assert origin.accepted is not None
    assert origin.accepted.start_event is not None
    options = dict(origin.accepted.start_event["options"])
    options["steps"] = max(1, options["steps"] - at)
    return {k: v for k, v in _without_length(options).items() if v not in (None, 0.0, False)}


def _without_length(options: dict[str, Any]) -> dict[str, Any]:
    dropped = ("max_new_tokens", "max_tokens", "gen_length", "cfg_scale", "speculate", "cache")
    return {name: value for name, value in options.items() if name not in dropped}
