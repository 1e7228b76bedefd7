"""Replies: OpenAI's objects, made of what a ticket has heard; and errors in OpenAI's body."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

from wavefront.server.request_state import Ticket, error_body
from wavefront.server.worker_messages import Ended, Refused


class Reply(JSONResponse):
    """JSON in plain ASCII: half a character in a message is no reason to fail."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


class Refusal(Exception):
    """A request ends here, with this answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry: int | None = None,
    ) -> None:
        super().__init__(message)
        self.refused = Refused("", status, message, code, param)
        self.headers = {} if retry is None else {"retry-after": str(retry)}

    @classmethod
    def of(cls, refused: Refused) -> Refusal:
        """The same, of what the decode process said."""
        retry = 1 if refused.status == 503 else None
        given = {"code": refused.code, "param": refused.param, "retry": retry}
        return cls(refused.status, refused.message, **given)

    @property
    def reply(self) -> Reply:
        body = {"error": error_body(self.refused)}
        return Reply(body, self.refused.status, headers=self.headers)


class Shape:
    """How one of the two routes words its answers."""

    def __init__(self, *, chat: bool) -> None:
        self.chat = chat
        self.prefix = "chatcmpl-" if chat else "cmpl-"

    def whole(self, ticket: Ticket, ended: Ended, about: dict[str, str]) -> dict[str, Any]:
        """The answer in one piece."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": ended.finish_reason}
        choice["logprobs"] = None
        if self.chat:
            choice["message"] = {"role": "assistant", "content": ticket.text, "refusal": None}
        else:
            choice["text"] = ticket.text
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(ticket, kind, about), "choices": [choice], "usage": usage(ticket)}

    def piece(
        self,
        ticket: Ticket,
        about: dict[str, str],
        *,
        text: str | None = None,
        first: bool = False,
        reason: str | None = None,
    ) -> dict[str, Any]:
        """A chunk of a stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            choice["delta"] = delta if text is None else {**delta, "content": text}
        else:
            choice["text"] = text or ""
        return {**self._head(ticket, self._chunk, about), "choices": [choice]}

    def last(self, ticket: Ticket, about: dict[str, str]) -> dict[str, Any]:
        """The chunk that has the usage and nothing else."""
        return {**self._head(ticket, self._chunk, about), "choices": [], "usage": usage(ticket)}

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    @staticmethod
    def _head(ticket: Ticket, kind: str, about: dict[str, str]) -> dict[str, Any]:
        return {"id": ticket.id, "object": kind, "created": int(ticket.created), **about}


def usage(ticket: Ticket) -> dict[str, Any]:
    """Visible tokens; what the canvas cost stands beside them."""
    ended, taken = ticket.outcome, ticket.taken
    assert isinstance(ended, Ended)
    assert taken is not None
    return {
        "prompt_tokens": taken.prompt_tokens,
        "completion_tokens": ended.completion_tokens,
        "total_tokens": taken.prompt_tokens + ended.completion_tokens,
        "wavefront": {
            "forwards": ended.forwards,
            "steps": ended.steps,
            "seconds": round(ended.seconds, 4),
        },
    }
