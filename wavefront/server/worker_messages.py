"""Messages between the HTTP process and the decode process, as plain picklable types.

The HTTP process sends `Job`, `CheckJob`, `CancelJob` and `Shutdown`. The decode process answers
after each step with a list of the other messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Logprob = dict[str, Any]  # a token's log-probability, as OpenAI's chat format has it
CONSTRAINT_OPTIONS = ("schema", "regex", "choices")
LENGTH_OPTIONS = ("max_new_tokens", "max_tokens", "gen_length")  # names of the same option


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request whose body is valid; only the model can still reject it."""

    id: str
    client: str = ""  # clients take turns for free rows
    address: str = ""  # one address may use only its share of the rows and of the queue
    messages: list[dict[str, str]] | None = None
    prompt: str | list[int] | EncodedText | None = None
    raw: bool = True  # use the prompt without the chat template
    infill: bool = False
    fork: Fork | None = None  # replaces messages and prompt
    options: Mapping[str, Any] = field(default_factory=dict)  # named as in wavefront.Options
    # The fields of the request that set these options, where the names differ.
    fields: Mapping[str, str] = field(default_factory=dict)
    automaton: bytes | None = None  # the constraint of the options, compiled
    automaton_was_sent: bool = False  # with an earlier job, so this one has no bytes of it
    stop: tuple[str, ...] = ()
    events: bool = False  # send an event for every step
    measure: bool = False  # add the confidence of every masked position to the events
    timeout: float | None = None  # seconds; None: the server's own limit
    incremental: bool = True  # a client may read partial output; else only the result counts
    detached: bool = False  # keep decoding for a while when no client reads the events


class EncodedText(NamedTuple):
    """A text as token ids. The token at a hole does not matter."""

    ids: list[int]
    holes: list[bool] | None = None  # positions to fill, if the text has holes


class CanvasSnapshot(NamedTuple):
    """A canvas at one step, from which a decode can continue."""

    ids: list[int]
    holes: list[bool]  # positions still to fill
    answer: list[bool]  # positions that were to fill at the start
    infilling: bool


class Fork(NamedTuple):
    """A canvas to continue from, and the texts or token ids to write into it first."""

    canvas: CanvasSnapshot
    overrides: Mapping[int, str | int | EncodedText]  # by position, counted over the answer


def constraint_option(job: Job) -> str | None:
    """Return the option that constrains the answer of a job; None if there is none."""
    return next((name for name in CONSTRAINT_OPTIONS if name in job.options), None)


def is_whole_text(job: Job) -> bool:
    """Return whether the answer of a job is a text of its own, not holes in another text."""
    return not (job.infill if job.fork is None else job.fork.canvas.infilling)


def has_text(job: Job) -> bool:
    """Return whether a job has a text that is not encoded yet."""
    if job.fork is not None:
        return any(isinstance(new, str) for new in job.fork.overrides.values())
    return isinstance(job.prompt, str) or bool(job.messages)


class CheckJob(NamedTuple):
    """Check whether a job can be decoded, without decoding it."""

    job: Job


class AutomatonMissing(NamedTuple):
    """The decode process has removed an automaton: send this message again with its bytes."""

    message: Job | CheckJob


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
    prompt_bytes: int  # a longer prompt is rejected before it is encoded
    family: str
    strategies: dict[str, str]  # name to spec with its defaults
    recommended: dict[str, str]  # name to the spec to try first
    defaults: dict[str, Any]  # decoding options of requests that do not set them
    summary: str = ""  # what a built-in model can do


class JobProcessReady(NamedTuple):
    """The first message of a process that encodes prompts or compiles constraints."""


class LoadFailed(NamedTuple):
    """The only message of a decode process that could not load its model."""

    message: str


class RequestAccepted(NamedTuple):
    """A request can be decoded and waits for a row."""

    id: str
    prompt_tokens: int
    canvas: CanvasSnapshot | None  # if the request has events
    start_event: dict[str, Any] | None


class RequestStarted(NamedTuple):
    """A request has a row."""

    id: str


class RequestProgress(NamedTuple):
    """Output of one step of a request."""

    id: str
    text: str  # append this to the answer
    event: dict[str, Any] | None
    logprobs: Sequence[Logprob] = ()  # of the tokens whose text is now complete, if asked for


class RequestFinished(NamedTuple):
    """A request ended with an answer."""

    id: str
    text: str  # append this to the answer
    finish_reason: str
    completion_tokens: int
    forwards: int
    steps: int
    seconds: float
    event: dict[str, Any] | None
    logprobs: Sequence[Logprob] = ()  # of the tokens that `RequestProgress` has not reported
    cached_tokens: int = 0  # of the prompt; another request has computed their keys and values


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
