"""The routes, as FastAPI knows them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

import wavefront
from wavefront.server.middleware import Guard
from wavefront.server.openai_format import Refusal, Reply
from wavefront.server.request_models import Begin, Branch, Chat, Complete
from wavefront.server.request_parser import schema
from wavefront.server.service import Service
from wavefront.server.settings import Settings
from wavefront.server.static_files import StaticFiles

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
STATUSES = {
    400: "The request cannot be understood; the error names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such thing.",
    409: "Not yet.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The host is not one of ours.",
    429: "Too many requests are waiting.",
    499: "It was given up.",
    500: "The decode failed.",
    503: "Not now: loading, restarting, shutting down, or out of memory.",
    504: "The answer took too long.",
}
ERRORS: dict[int | str, Any] = {
    status: {"description": text, "content": {"application/json": {"schema": ERROR}}}
    for status, text in STATUSES.items()
}
STREAM: dict[int | str, Any] = {
    200: {"description": "An answer, or a stream of it.", "content": {"text/event-stream": {}}}
}
Id = Annotated[str, Path(max_length=200)]
From = Annotated[int, Query(alias="from", ge=0, lt=1 << 31)]


def make(settings: Settings) -> tuple[Any, Service]:
    """The ASGI application, and the service behind it."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await service.engine.start()
        yield
        await service.engine.stop()

    # The pages that FastAPI would add load scripts from elsewhere.
    app = FastAPI(
        title="wavefront",
        version=wavefront.__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        default_response_class=Reply,
        responses=ERRORS,
    )
    _answers(app, service)
    _viewers(app, service)
    _probes(app, service)
    public = frozenset[str]()
    if settings.page:
        public = StaticFiles().mount(app)
    _errors(app)
    return Guard(Counted(app, service), settings, public), service


class Counted:
    """ASGI middleware that counts answers by route and status."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.counter = app, service.metrics.requests

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                # The pattern, never the path: strangers choose that.
                route = getattr(scope.get("route"), "path", "none")
                self.counter.labels(route, str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counted if scope["type"] == "http" else send)


def _answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=STREAM, openapi_extra=schema(Chat))
    async def chat(request: Request) -> Any:
        return await service.answer(request, Chat)

    @app.post("/v1/completions", responses=STREAM, openapi_extra=schema(Complete))
    async def complete(request: Request) -> Any:
        return await service.answer(request, Complete)

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": service.models()}

    @app.get("/v1/models/{id}")
    async def model(id: Id) -> Any:
        for one in service.models():
            if one["id"] == id:
                return one
        message = f"The model {id!r} does not exist."
        raise Refusal(404, message, code="model_not_found", param="model")


def _viewers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/wavefront/decodes", status_code=202, openapi_extra=schema(Begin))
    async def begin(request: Request) -> Any:
        return await service.begin(request)

    @app.post("/v1/wavefront/decodes/{id}/fork", status_code=202, openapi_extra=schema(Branch))
    async def fork(request: Request, id: Id) -> Any:
        return await service.branch(request, id)

    @app.get("/v1/wavefront/decodes/{id}/events", responses=STREAM)
    async def events(id: Id, start: From = 0) -> Any:
        return service.watch(id, start)

    @app.delete("/v1/wavefront/decodes/{id}", status_code=204, response_model=None)
    async def cancel(id: Id) -> Any:
        return service.cancel(id)


def _probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Any:
        return service.health()

    @app.get("/ready")
    async def ready() -> Any:
        return service.ready()

    @app.get("/version")
    async def version() -> Any:
        return service.version()

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Any:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.metrics.text(), media_type=kind)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return error.reply

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()[0]
        param = str(found["loc"][-1])
        text = f"{param}: {found['msg']}."
        return Refusal(400, text, code="invalid_value", param=param).reply

    @app.exception_handler(StarletteHTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        status = error.status_code
        words = {
            404: "There is nothing at this address.",
            405: "This address takes another method.",
        }
        made = Refusal(status, words.get(status, str(error.detail)), code=f"http_{status}").reply
        made.headers.update(error.headers or {})
        return made

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return Refusal(500, "Something went wrong in the server.", code="internal").reply
