"""The routes of the server, as a FastAPI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

import wavefront
from wavefront.server.middleware import MetricsMiddleware, SecurityMiddleware
from wavefront.server.openai_format import APIError, ASCIIResponse
from wavefront.server.request_models import ChatBody, CompletionBody, DecodeBody, ForkBody, schema
from wavefront.server.service import Service
from wavefront.server.settings import Settings
from wavefront.server.static_files import StaticFiles

ERROR_SCHEMA = {
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
    400: "The request is invalid; the error names the field.",
    401: "The API key is missing or wrong.",
    404: "The model, decode or address does not exist.",
    408: "The request took too long to arrive.",
    409: "The decode has not started yet.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The host name is not allowed.",
    429: "Too many requests are waiting.",
    499: "The request was cancelled.",
    500: "The decode failed.",
    503: "The server is loading, restarting, shutting down, or out of memory.",
    504: "The request timed out.",
}
ERRORS: dict[int | str, Any] = {
    status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    for status, text in STATUSES.items()
}
STREAM: dict[int | str, Any] = {
    200: {"description": "The answer, or a stream of it.", "content": {"text/event-stream": {}}}
}
STATUS_SCHEMA = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
}
PROBE: dict[int | str, Any] = {
    status: {"description": text, "content": {"application/json": {"schema": STATUS_SCHEMA}}}
    for status, text in ((200, "The status is ready."), (503, "The status says why not."))
}
Id = Annotated[str, Path(max_length=200)]
From = Annotated[int, Query(alias="from", ge=0, lt=1 << 31)]


class Application(NamedTuple):
    """The ASGI application and its service."""

    asgi: Any
    service: Service


def create_app(settings: Settings) -> Application:
    """Create the ASGI application of a server."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.backend.start()
        yield
        await service.backend.stop()

    # FastAPI's own documentation pages load scripts from other sites, so they are off.
    app = FastAPI(
        title="wavefront",
        version=wavefront.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host name of the request
        default_response_class=ASCIIResponse,
        responses=ERRORS,
    )
    _add_openai_routes(app, service)
    _add_decode_routes(app, service)
    _add_status_routes(app, service)
    public = frozenset[str]()
    if settings.page:
        public = StaticFiles().mount(app)
    _add_error_handlers(app)
    counted = MetricsMiddleware(app, service.metrics)
    return Application(SecurityMiddleware(counted, settings, public), service)


def _add_openai_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=STREAM, openapi_extra=schema(ChatBody))
    async def chat(request: Request) -> Any:
        return await service.complete(request, ChatBody)

    @app.post("/v1/completions", responses=STREAM, openapi_extra=schema(CompletionBody))
    async def complete(request: Request) -> Any:
        return await service.complete(request, CompletionBody)

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": service.models()}

    @app.get("/v1/models/{id}")
    async def model(id: Id) -> Any:
        for entry in service.models():
            if entry["id"] == id:
                return entry
        message = f"The model {id!r} does not exist."
        raise APIError(404, message, code="model_not_found", param="model")


def _add_decode_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/wavefront/decodes", status_code=202, openapi_extra=schema(DecodeBody))
    async def start(request: Request) -> Any:
        return await service.start_decode(request)

    @app.post("/v1/wavefront/decodes/{id}/fork", status_code=202, openapi_extra=schema(ForkBody))
    async def fork(request: Request, id: Id) -> Any:
        return await service.fork_decode(request, id)

    @app.get("/v1/wavefront/decodes/{id}/events", responses=STREAM)
    async def events(id: Id, start: From = 0) -> Any:
        return service.read_events(id, start)

    @app.delete("/v1/wavefront/decodes/{id}", status_code=204, response_model=None)
    async def cancel(id: Id) -> Any:
        return service.cancel_decode(id)


def _add_status_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses=PROBE)
    async def health() -> Any:
        return service.health()

    @app.get("/ready", responses=PROBE)
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


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(APIError)
    async def api_error(request: Request, error: APIError) -> Response:
        return error.response

    @app.exception_handler(RequestValidationError)
    async def invalid_parameter(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()[0]
        param = str(found["loc"][-1])
        text = f"{param}: {found['msg']}."
        return APIError(400, text, code="invalid_value", param=param).response

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        status = error.status_code
        messages = {
            404: "There is no such address.",
            405: "This address does not support this method.",
        }
        message = messages.get(status, str(error.detail))
        response = APIError(status, message, code=f"http_{status}").response
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return APIError(500, "The server had an unexpected error.", code="internal").response
