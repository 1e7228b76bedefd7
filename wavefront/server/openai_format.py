"""The format of OpenAI's response objects, chunks and errors.

The text of an error is written where it is raised; see the package docstring.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from starlette.responses import JSONResponse

from wavefront.server.request_state import RequestState, error_body
from wavefront.server.worker_messages import RequestFailed, RequestFinished


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

    `origin` holds the fields that every object repeats: the model and its fingerprint. If `tool`
    names a function, the answer is a call of this function, and its text holds the arguments.
    """

    def __init__(
        self, *, chat: bool, origin: dict[str, str], tool: str | None = None, named: bool = True
    ) -> None:
        """`named` says that the client named the function; OpenAI's API then reports "stop"."""
        self.chat, self.origin, self.tool, self.named = chat, origin, tool, named

    def completion(self, requests: Sequence[RequestState]) -> dict[str, Any]:
        """Return the finished answers as one object."""
        choices = []
        for index, request in enumerate(requests):
            assert isinstance(request.outcome, RequestFinished)
            choice: dict[str, Any] = {
                "index": index,
                "finish_reason": self._finish_reason(request.outcome.finish_reason),
                "logprobs": self._logprobs(request),
            }
            if self.tool is not None:
                call = self._tool_call(request, request.text)
                choice["message"] = {"role": "assistant", "content": None, "refusal": None}
                choice["message"]["tool_calls"] = [call]
            elif self.chat:
                choice["message"] = {"role": "assistant", "content": request.text, "refusal": None}
            else:
                choice["text"] = request.text
            choices.append(choice)
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(requests[0], kind), "choices": choices, "usage": usage(requests)}

    def chunk(
        self,
        requests: Sequence[RequestState],
        index: int,
        *,
        text: str | None = None,
        logprobs: slice | None = None,
        first: bool = False,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        """Return a chunk of the choice `index`, with the new part of its log-probabilities."""
        reason = None if finish_reason is None else self._finish_reason(finish_reason)
        choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        if logprobs is not None:
            choice["logprobs"] = self._logprobs(requests[index], logprobs)
        if self.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            if text is not None:
                delta |= self._delta(requests[index], text, first=first)
            choice["delta"] = delta
        else:
            choice["text"] = text or ""
        return {**self._head(requests[0], self._chunk_kind), "choices": [choice]}

    def usage_chunk(self, requests: Sequence[RequestState]) -> dict[str, Any]:
        """Return the last chunk of a stream, which holds only the usage."""
        head = self._head(requests[0], self._chunk_kind)
        return {**head, "choices": [], "usage": usage(requests)}

    def _delta(self, request: RequestState, text: str, *, first: bool) -> dict[str, Any]:
        """Return the part of a delta that adds a text."""
        if self.tool is None:
            return {"content": text}
        if first:  # the name of the function comes first, then its arguments
            call = {"index": 0, **self._tool_call(request, text)}
            return {"content": None, "tool_calls": [call]}
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}

    def _tool_call(self, request: RequestState, arguments: str) -> dict[str, Any]:
        id = f"call_{request.id.rpartition('chatcmpl-')[2]}"
        function = {"name": self.tool, "arguments": arguments}
        return {"id": id, "type": "function", "function": function}

    def _finish_reason(self, reason: str) -> str:
        return "tool_calls" if self.tool is not None and not self.named else reason

    def _logprobs(self, request: RequestState, part: slice = slice(None)) -> dict[str, Any] | None:
        """Return log-probabilities in the format of the route; None if they were not requested."""
        count = request.job.options.get("logprobs")
        if count is None:
            return None
        entries = request.logprobs[part]
        if self.chat:
            return {"content": entries, "refusal": None}
        tokens = [entry["token"] for entry in entries]
        before = sum(len(logprob["token"]) for logprob in request.logprobs[: part.start or 0])
        top = [
            {each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries
        ]
        return {
            "tokens": tokens,
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": top if count else None,
            "text_offset": list(accumulate(map(len, tokens), initial=before))[:-1],
        }

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, request: RequestState, kind: str) -> dict[str, Any]:
        created = int(request.created)
        return {"id": request.id, "object": kind, "created": created, **self.origin}


def usage(requests: Sequence[RequestState]) -> dict[str, Any]:
    """Return the number of visible tokens, and the cost of the decodes under `wavefront`.

    The choices of a request share its prompt, so its tokens count once.
    """
    accepted = requests[0].accepted
    finished = [request.outcome for request in requests]
    assert accepted is not None
    ended = [message for message in finished if isinstance(message, RequestFinished)]
    assert len(ended) == len(finished)
    completion_tokens = sum(message.completion_tokens for message in ended)
    return {
        "prompt_tokens": accepted.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": accepted.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": min(one.cached_tokens for one in ended)},
        "wavefront": {
            "forwards": sum(message.forwards for message in ended),
            "steps": sum(message.steps for message in ended),
            "seconds": round(max(message.seconds for message in ended), 4),
        },
    }
