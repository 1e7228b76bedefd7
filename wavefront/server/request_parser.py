"""Reading: a request's bytes become a checked body, or an error that names the field."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from wavefront.server.openai_format import Refusal

Kind = TypeVar("Kind", bound=BaseModel)


async def read(request: Request) -> Any:
    """The JSON of a request."""
    try:
        return json.loads(await request.body(), parse_constant=_no_constant)
    except ClientDisconnect:
        raise Refusal(400, "The client went away.", code="client_gone") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(400, f"The body is not JSON: {reason}.", code="invalid_json") from None


def check(kind: type[Kind], content: Any) -> Kind:
    """The body, or the first thing that is wrong with it."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
    except RecursionError:
        raise Refusal(400, "The body is nested too deeply.", code="invalid_value") from None
    context = found.get("ctx", {})
    if found["type"] == "refused":
        raise Refusal(400, context["sentence"], code=context["code"], param=context["field"])
    place = found["loc"]
    param = str(place[0]) if place else None
    # Where one of several kinds is allowed, the place goes on with the name of the kind.
    where = ".".join(str(one) for one in place if isinstance(one, int) or one.islower())
    code = "missing_field" if found["type"] == "missing" else "invalid_value"
    raise Refusal(400, f"{where or 'The body'}: {found['msg']}.", code=code, param=param)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a body, in one piece, as OpenAPI wants it beside a route."""
    whole = kind.model_json_schema()
    parts = whole.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inlined(parts[node["$ref"].rpartition("/")[2]])
            return {key: inlined(value) for key, value in node.items()}
        return [inlined(one) for one in node] if isinstance(node, list) else node

    content = {"application/json": {"schema": inlined(whole)}}
    return {"requestBody": {"required": True, "content": content}}
