"""What the routes do, and the admission control that decides whether a request may enter."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import wavefront
from wavefront.core.bounds import MAX_SEED
from wavefront.server.frontend import Frontend
from wavefront.server.local_backend import LocalBackend
from wavefront.server.metrics import Metrics
from wavefront.server.openai_format import APIError, ASCIIResponse, ResponseFormat
from wavefront.server.request_models import (
    MAX_CHOICES,
    ChatBody,
    CompletionBody,
    DecodeBody,
    DecodingFields,
    ForkBody,
    OpenAIBody,
    plain_messages,
    read_json,
    validate,
)
from wavefront.server.request_state import RequestState, wait_until_all_ended
from wavefront.server.settings import Settings
from wavefront.server.sse import EventStream, stream_chunks, stream_events, wait_for_disconnect
from wavefront.server.worker_messages import (
    CLIENT_GONE,
    CONSTRAINT_OPTIONS,
    LENGTH_OPTIONS,
    Fork,
    Job,
    ModelInfo,
    RequestFailed,
)

# The message and the code of a choice that was cancelled because of another one.
OTHER_CHOICE_FAILED = ("Another choice of the request failed.", "cancelled")
# What a field of a fork replaces in the options of the original decode, besides its own option.
REPLACED = {
    "alg": ("strategy", "priority", "sampling"),
    "alg_temp": ("order_noise",),
    "remasking": ("priority",),
    "logits_eos_inf": ("eos",),
    "confidence_eos_eot_inf": ("eos",),
    "speed": ("cache",),
    **dict.fromkeys(CONSTRAINT_OPTIONS, CONSTRAINT_OPTIONS),
}
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

    def _check_admission(self, request: Request, content: Any) -> None:
        """Raise an `APIError` if the server cannot accept this request now.

        This runs before the body is validated, because validating a large body takes time.
        """
        if self.draining:
            message = "The server is shutting down: use another server."
            self._reject(503, message, code="draining", retry_after=5)
        status = self.backend.status
        if status != "ready":
            message = f"{NOT_READY[status]}: try again later."
            self._reject(503, message, code=f"engine_{status}", retry_after=2)
        if self.backend.is_stalled:  # what is sent to it would only pile up
            message = "The decode process does not respond: try again later."
            self._reject(503, message, code="engine_stalled", retry_after=2)
        choices = min(_choices(content), self._most_choices)  # more of them get another error
        if len(self.backend.requests.active) + choices > self.backend.capacity:
            message = f"{self.limits.queue} requests are already waiting: try again later."
            self._reject(429, message, code="queue_full", retry_after=1)
        allowed = self.backend.client_capacity
        address = client_address(request)
        if address and self.backend.count_of(address) + choices > allowed:
            message = f"Your address already has {allowed} requests here: wait for an answer."
            self._reject(429, message, code="client_limit", retry_after=1)
        self._check_size(content if isinstance(content, dict) else {})

    @property
    def _most_choices(self) -> int:
        """How many choices a request may ask for."""
        return min(self.limits.choices, self.backend.client_capacity)

    def _check_size(self, content: dict[str, Any]) -> None:
        """Raise an `APIError` if the prompt cannot fit, regardless of how it is tokenised."""
        prompt, messages = content.get("prompt"), content.get("messages")
        if isinstance(messages, list) and len(messages) > self.limits.messages:
            text = f"{len(messages)} messages are more than {self.limits.messages}: send fewer."
            raise APIError(400, text, code="invalid_value", param="messages")
        length = self._model.length
        if isinstance(prompt, list) and len(prompt) > length:
            text = f"prompt has {len(prompt)} items, but at most {length} tokens fit: shorten it."
            raise APIError(400, text, code="invalid_value", param="prompt")
        allowed = self._model.prompt_bytes
        for param in ("prompt", "messages", "put"):
            if (size := _text_bytes(content.get(param), at_most=allowed)) > allowed:
                text = f"{param} has more than {allowed} bytes of text ({size}): shorten it."
                raise APIError(400, text, code="invalid_value", param=param)

    def _reject(self, status: int, message: str, *, code: str, retry_after: int) -> None:
        self.metrics.rejections.labels(code).inc()
        raise APIError(status, message, code=code, retry_after=retry_after)

    async def complete(self, request: Request, kind: type[ChatBody] | type[CompletionBody]) -> Any:
        """Answer a request of one of OpenAI's two completion routes."""
        content = await read_json(request)
        self._check_admission(request, content)
        body = validate(kind, content)
        prefix = "chatcmpl-" if kind is ChatBody else "cmpl-"
        job = self._make_job(body, request, id=f"{prefix}{uuid.uuid4().hex}", events=body.events)
        job = replace(job, incremental=bool(body.stream or body.events))
        if isinstance(body, ChatBody):
            job = replace(job, messages=body.plain_messages())
            self._check_size({"messages": job.messages})  # with the description of a function
        elif isinstance(body, CompletionBody):
            job = replace(job, prompt=body.prompt, infill=body.infill)  # pyright: ignore[reportArgumentType]
        states = [self.backend.submit(one) for one in _jobs_of_choices(job, body.choice_count)]
        checked = asyncio.gather(*(state.wait_until_checked() for state in states))
        await self._wait_with_client(request, states, checked)
        self._raise_failure(states)
        origin = {"model": self._model.name, "system_fingerprint": self._model.fingerprint}
        style = ResponseFormat(chat=kind is ChatBody, origin=origin)
        if isinstance(body, ChatBody) and (tool := body.forced_tool()) is not None:
            named = body.tool_choice != "required"
            style = ResponseFormat(chat=True, origin=origin, tool=tool.name, named=named)
        if body.stream:
            return self._stream(states, style, body)
        await self._wait_with_client(request, states, wait_until_all_ended(states))
        self._raise_failure(states)
        return ASCIIResponse(style.completion(states))

    def _raise_failure(self, states: Sequence[RequestState]) -> None:
        """Raise the error of a choice that failed, and cancel the other choices."""
        for state in states:
            if isinstance(state.outcome, RequestFailed):
                self._cancel(states, OTHER_CHOICE_FAILED)
                raise APIError.from_failure(state.outcome)

    def _stream(
        self, states: Sequence[RequestState], style: ResponseFormat, body: OpenAIBody
    ) -> EventStream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        chunks = stream_chunks(
            states, style, with_usage=with_usage, keepalive=self.limits.keepalive_interval
        )

        async def ended() -> AsyncGenerator[bytes, None]:
            async for chunk in chunks:
                yield chunk
            self._cancel(states, OTHER_CHOICE_FAILED)  # an error ends the stream of all choices

        return EventStream(
            ended(),
            write_timeout=self.limits.write_timeout,
            on_disconnect=lambda: self._cancel(states, CLIENT_GONE),
        )

    def _cancel(self, states: Sequence[RequestState], reason: tuple[str, str]) -> None:
        """Cancel the requests that have not ended; `reason` is a message and its code."""
        for state in states:
            self.backend.cancel(state, RequestFailed(state.id, 499, *reason))

    async def _wait_with_client(
        self, request: Request, states: Sequence[RequestState], wait: Awaitable[Any]
    ) -> None:
        """Wait for a change of the states. Cancel the requests if their client disconnects."""
        waiting = asyncio.ensure_future(wait)
        leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._cancel(states, CLIENT_GONE)
                raise APIError(499, CLIENT_GONE[0], code=CLIENT_GONE[1])
        except asyncio.CancelledError:
            self._cancel(states, CLIENT_GONE)
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
        if isinstance(body, OpenAIBody) and body.choice_count > self._most_choices:
            message = f"n must be at most {self._most_choices} here, not {body.choice_count}."
            raise APIError(400, message, code="invalid_value", param="n")
        if options.get("steps", 0) > self.limits.steps:
            message = f"steps must be at most {self.limits.steps} here, not {options['steps']}."
            raise APIError(400, message, code="invalid_value", param="steps")
        address = client_address(request)
        limit = self.limits.request_timeout
        return Job(
            id=id,
            client=body.user or "",
            address=address,
            options=options,
            fields=body.field_names(),
            stop=body.stops(),
            events=events,
            timeout=min(body.timeout or limit, limit),
        )

    async def start_decode(self, request: Request) -> ASCIIResponse:
        """Start a decode whose events can be read."""
        content = await read_json(request)
        self._check_admission(request, content)
        body = validate(DecodeBody, content)
        job = self._make_job(body, request, id=f"wave-{uuid.uuid4().hex}", events=True)
        job = replace(job, measure=body.measure, detached=True)
        if body.messages is not None:
            job = replace(job, messages=plain_messages(body.messages))
        else:
            raw = body.raw or not self._model.chat
            job = replace(job, prompt=body.prompt, infill=body.infill, raw=raw)  # pyright: ignore[reportArgumentType]
        return await self._submit_detached(job)

    async def fork_decode(self, request: Request, id: str) -> ASCIIResponse:
        """Start a decode that continues from a step of another decode."""
        content = await read_json(request)
        self._check_admission(request, content)
        body = validate(ForkBody, content)
        origin = self._find(id)
        if origin.canvas is None:
            raise APIError(409, "That decode has not started yet: wait for it.", code="not_begun")
        if body.at > origin.steps:
            message = f"at must be at most {origin.steps}, the steps so far, not {body.at}."
            raise APIError(400, message, code="invalid_value", param="at")
        try:
            overrides = body.overrides()
        except ValueError:
            message = "put must map positions, counted from 0, to texts or token ids."
            raise APIError(400, message, code="invalid_value", param="put") from None
        job = self._make_job(body, request, id=f"wave-{uuid.uuid4().hex}", events=True)
        changed = _without_length(body.options())
        options = {**_inherited_options(origin, body.at, changed), **changed}
        stop = job.stop or origin.job.stop
        constraint = next(
            (name for name in CONSTRAINT_OPTIONS if options.get(name) is not None), None
        )
        if stop and constraint is not None:
            # One of them comes from the original decode.
            if constraint == "schema":
                constraint = {**origin.job.fields, **job.fields}.get(constraint, constraint)
            message = f"stop cannot be combined with {constraint}: it would cut the answer."
            raise APIError(400, message, code="invalid_value", param="stop")
        job = replace(
            job,
            options=options,
            fork=Fork(origin.canvas_at(body.at), overrides),
            stop=stop,
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
        return ASCIIResponse({"id": state.id, "events": events, "first": state.start_event}, 202)

    def read_events(self, id: str, start: int) -> EventStream:
        """Stream the events of a decode from number `start` on."""
        state = self._find(id)
        if state.readers >= self.limits.readers:
            message = f"{state.readers} clients already read this decode: try again later."
            self._reject(429, message, code="too_many_readers", retry_after=1)
        events = stream_events(state, start=start, keepalive=self.limits.keepalive_interval)

        state.readers += 1

        def end() -> None:
            state.readers -= 1
            state.unwatched_since = time.monotonic()

        return EventStream(events, write_timeout=self.limits.write_timeout, on_end=end)

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
        """Return 200 while the decode process can decode, else 503 with the reason."""
        return _status_response(self._status)

    def ready(self) -> ASCIIResponse:
        """Return 200 while the server accepts requests, else 503."""
        return _status_response("draining" if self.draining else self._status)

    @property
    def _status(self) -> str:
        return "stalled" if self.backend.is_stalled else self.backend.status

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
        details |= {"strategies": info.strategies, "recommended": info.recommended}
        details |= {"defaults": info.defaults, "summary": info.summary}
        return [entry | {"wavefront": details}]


def _status_response(status: str) -> ASCIIResponse:
    return ASCIIResponse({"status": status}, 200 if status == "ready" else 503)


def client_address(request: Request) -> str:
    """Return the address that identifies a client. For IPv6, this is its 64-bit network."""
    host = request.client.host if request.client else ""
    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


def _choices(content: Any) -> int:
    """Return how many choices a body requests; 1 if it is invalid, which is reported later."""
    wanted = content.get("n") if isinstance(content, dict) else None
    return int(wanted) if isinstance(wanted, int | float) and 1 <= wanted <= MAX_CHOICES else 1


def _jobs_of_choices(job: Job, choices: int) -> list[Job]:
    """Return one job per choice. The first is the job itself; the others have different seeds."""
    seed = job.options.get("seed", 0)
    return [job] + [
        replace(
            job,
            id=f"{job.id}-{number}",
            options={**job.options, "seed": (seed + number) % (MAX_SEED + 1)},
        )
        for number in range(1, choices)
    ]


def _text_bytes(value: Any, *, at_most: int) -> int:
    """Return the bytes of all texts in a JSON value, counted until they exceed `at_most`."""
    total, rest = 0, [value]
    while rest and total <= at_most:
        part = rest.pop()
        if isinstance(part, str):
            total += len(part.encode("utf-8", "surrogatepass"))
        elif isinstance(part, dict):
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)
    return total


def _make_backend(settings: Settings, metrics: Metrics) -> Frontend:
    if settings.scale is None:
        return LocalBackend(settings, metrics)
    from wavefront.server.ray_backend import RayBackend  # imports Ray

    return RayBackend(settings, metrics)


def _inherited_options(origin: RequestState, at: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a decode that a fork keeps, with the steps that remain after `at`."""
    options = _without_length(origin.start_event["options"])
    options["steps"] = max(1, options["steps"] - at)
    options["cache"] = options["cache"] or "none"  # the server's default may be another one
    replaced = {old for name, olds in REPLACED.items() if changed.get(name) for old in olds}
    return {k: v for k, v in options.items() if v is not None and k not in replaced}


def _without_length(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that the masked positions of a fork determine."""
    return {name: value for name, value in options.items() if name not in LENGTH_OPTIONS}
