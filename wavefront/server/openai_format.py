"""The format of OpenAI's response objects, chunks and errors.

The text of an error is written where it is raised; see the package docstring.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

from wavefront.server.request_state import RequestState, error_body
from wavefront.server.worker_messages import Finished, RequestFailed


class ASCIIResponse(JSONResponse):
    """A JSON response in ASCII, which can also hold lone surrogates."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


class APIError(Exception):
    """An error that ends a request, with its HTTP response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = RequestFailed("", status, message, code, param)
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}

    @classmethod
    def from_failure(cls, failure: RequestFailed) -> APIError:
        """Return the error for a request that failed in the decode process."""
        return cls(
            failure.status,
            failure.message,
            code=failure.code,
            param=failure.param,
            retry_after=1 if failure.status == 503 else None,
        )

    @property
    def response(self) -> ASCIIResponse:
        """The response with OpenAI's error body."""
        body = {"error": error_body(self.failure)}
        return ASCIIResponse(body, self.failure.status, headers=self.headers)


class ResponseFormat:
    """The response objects of one of OpenAI's two completion routes.

    `origin` holds the fields that every object repeats: the model and its fingerprint.
    """

    def __init__(self, *, chat: bool, origin: dict[str, str]) -> None:
        self.chat, self.origin = chat, origin

    def completion(self, request: RequestState, finished: Finished) -> dict[str, Any]:
        """Return the whole answer as one object."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finished.finish_reason}
        choice["logprobs"] = None
        if self.chat:
            choice["message"] = {"role": "assistant", "content": request.text, "refusal": None}
        else:
            choice["text"] = request.text
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(request, kind), "choices": [choice], "usage": usage(request)}

    def chunk(
        self,
        request: RequestState,
        *,
        text: str | None = None,
        first: bool = False,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        """Return a chunk of a stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            choice["delta"] = delta if text is None else {**delta, "content": text}
        else:
            choice["text"] = text or ""
        return {**self._head(request, self._chunk_kind), "choices": [choice]}

    def usage_chunk(self, request: RequestState) -> dict[str, Any]:
        """Return the last chunk of a stream, which holds only the usage."""
        head = self._head(request, self._chunk_kind)
        return {**head, "choices": [], "usage": usage(request)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, request: RequestState, kind: str) -> dict[str, Any]:
        created = int(request.created)
        return {"id": request.id, "object": kind, "created": created, **self.origin}


def usage(request: RequestState) -> dict[str, Any]:
    """Return the number of visible tokens, and the cost of the decode under `wavefront`."""
    finished, accepted = request.outcome, request.accepted
    assert isinstance(finished, Finished)
    assert accepted is not None
    return {
        "prompt_tokens": accepted.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": accepted.prompt_tokens + finished.completion_tokens,
        "wavefront": {
            "forwards": finished.forwards,
            "steps": finished.steps,
            "seconds": round(finished.seconds, 4),
        },
    }
