"""Messages between the HTTP process and the decode process, as plain picklable types.

The HTTP process sends `Job`, `CheckJob`, `CancelJob` and `Shutdown`. The decode process answers
after each step with a list of the other messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request whose body is valid; only the model can still reject it."""

    id: str
    client: str = ""  # clients take turns for free rows
    messages: list[dict[str, str]] | None = None
    prompt: str | list[int] | None = None
    raw: bool = True  # use the prompt without the chat template
    infill: bool = False
    fork: Fork | None = None  # replaces messages and prompt
    options: Mapping[str, Any] = field(default_factory=dict)  # named as in wavefront.Options
    stop: tuple[str, ...] = ()
    events: bool = False  # send an event for every step
    measure: bool = False  # add the confidence of every masked position to the events
    timeout: float | None = None  # seconds; None: the server's own limit
    incremental: bool = True  # a client may read partial output; else only the result counts
    detached: bool = False  # keep decoding for a while when no client reads the events


class CanvasSnapshot(NamedTuple):
    """A canvas at one step, from which a decode can continue."""

    ids: list[int]
    holes: list[bool]  # positions still to fill
    answer: list[bool]  # positions that were to fill at the start
    infilling: bool


class Fork(NamedTuple):
    """A canvas to continue from, and the texts or token ids to write into it first."""

    canvas: CanvasSnapshot
    overrides: dict[int, str | int]  # by position, counted over the answer


class CheckJob(NamedTuple):
    """Check whether a job can be decoded, without decoding it."""

    job: Job


class CancelJob(NamedTuple):
    """Stop decoding a job."""

    id: str


class Shutdown(NamedTuple):
    """End the decode process."""


class ModelInfo(NamedTuple):
    """The first message of a decode process: the model it has loaded."""

    name: str
    chat: bool  # the tokenizer has a chat template
    fingerprint: str
    length: int  # the longest canvas, prompt included
    family: str
    strategies: dict[str, str]  # name to spec with its defaults


class LoadFailed(NamedTuple):
    """The only message of a decode process that could not load its model."""

    message: str


class Accepted(NamedTuple):
    """A request can be decoded and waits for a row."""

    id: str
    prompt_tokens: int
    canvas: CanvasSnapshot | None  # if the request has events
    start_event: dict[str, Any] | None


class Started(NamedTuple):
    """A request has a row."""

    id: str


class Progress(NamedTuple):
    """Output of one step of a request."""

    id: str
    text: str  # append this to the answer
    event: dict[str, Any] | None


class Finished(NamedTuple):
    """A request ended with an answer."""

    id: str
    text: str  # append this to the answer
    finish_reason: str
    completion_tokens: int
    forwards: int
    steps: int
    seconds: float
    event: dict[str, Any] | None


CLIENT_GONE = ("The client disconnected.", "client_gone")  # the message and the code


class RequestFailed(NamedTuple):
    """A request ended with an error, as OpenAI's API reports it."""

    id: str
    status: int
    message: str
    code: str
    param: str | None = None


class Heartbeat(NamedTuple):
    """A sign of life of the decode process, with the counts of its last step."""

    busy: int  # rows in use
    forwards: int
    commits: int
    seconds: float
