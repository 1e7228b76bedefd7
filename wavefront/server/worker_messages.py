"""Jobs: what the two processes say to each other, in plain pickled tuples.

To the decode process go `Job`, `Check`, `Drop` and `Stop`; a list of the others comes back after
each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request, checked as far as that is possible without the model."""

    id: str
    client: str = ""  # rows go round among clients
    messages: list[dict[str, str]] | None = None
    prompt: str | list[int] | None = None
    raw: bool = True  # of a prompt: past the chat template
    infill: bool = False
    fork: Fork | None = None  # instead of any of these
    options: Mapping[str, Any] = field(default_factory=dict)  # under the names of wavefront.Options
    stop: tuple[str, ...] = ()
    events: bool = False  # tell every step
    measure: bool = False  # and what was seen in it
    seconds: float | None = None  # until it is given up; the server's own limit when None
    told: bool = True  # somebody may read it as it grows; else its end is all that counts
    detached: bool = False  # it goes on while nobody reads, for a while


class Board(NamedTuple):
    """A canvas to go on from."""

    ids: list[int]
    holes: list[bool]  # to be filled now
    answer: list[bool]  # to be filled from the beginning
    infilling: bool


class Fork(NamedTuple):
    board: Board
    put: dict[int, str | int]  # places, counted over the answer, to texts or ids


class Check(NamedTuple):
    """Can it be decoded? It is not, yet."""

    job: Job


class Drop(NamedTuple):
    """Its client went away."""

    id: str


class Stop(NamedTuple):
    """Leave."""


class About(NamedTuple):
    """The first word of a decode process: its model."""

    name: str
    chat: bool  # it has a template
    fingerprint: str
    length: int  # the longest board
    family: str
    strategies: dict[str, str]  # name -> its defaults, as a spec


class Failed(NamedTuple):
    """The last word of one that could not load."""

    message: str


class Taken(NamedTuple):
    """A request can be decoded, and waits for a row."""

    id: str
    prompt_tokens: int
    board: Board | None  # of one that tells events
    first: dict[str, Any] | None  # its first event


class Refused(NamedTuple):
    """A request ends in an error."""

    id: str
    status: int
    message: str
    code: str
    param: str | None = None


class Told(NamedTuple):
    """A step of a request: what is settled from the left, if more than before; an event."""

    id: str
    text: str  # to be appended
    event: dict[str, Any] | None


class Ended(NamedTuple):
    """A request is answered."""

    id: str
    text: str  # to be appended
    finish_reason: str
    completion_tokens: int
    forwards: int
    steps: int
    seconds: float
    event: dict[str, Any] | None


class Seated(NamedTuple):
    """A request has a row."""

    id: str


class Beat(NamedTuple):
    """A sign of life, with what the step did."""

    busy: int  # rows
    forwards: int
    commits: int
    seconds: float  # 0: no step was made
