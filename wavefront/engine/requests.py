"""Seats: a request, the row it sits in, and what a step did to it; all of it on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wavefront.engine.options import Plan


class Request(NamedTuple):
    """A board to fill, and how."""

    ids: Sequence[int]  # what stands at a hole does not matter
    holes: Sequence[bool]  # of every place: is it to be filled?
    plan: Plan
    infilling: bool = False  # the text around the holes is part of the answer


@dataclass
class ActiveRequest:
    """A request in its row, and what the host knows of it."""

    row: int
    request: Request
    tokens: list[int]
    final: list[bool]
    width: int  # how many places its strategy reads
    steps: int = 0  # made so far that committed something
    forwards: int = 0
    token_forwards: int = 0
    steps_since_refresh: int = 0  # steps since its last full forward; 0: none was made yet
    done: bool = False
    error: str | None = None
    left: bool = field(default=False, repr=False)

    @property
    def open(self) -> list[bool]:
        """Of every place: may it still change?"""
        return [not self.done and not settled for settled in self.final]


class Commit(NamedTuple):
    place: int  # counted over the whole board of the request
    token: int
    logp: float


class Survey(NamedTuple):
    """What a step saw, over the whole board of the request."""

    scope: list[bool]  # where the strategy looked
    logp: list[float]  # of the proposal, at every place that was masked


class StepUpdate(NamedTuple):
    """What a step did to a request."""

    seat: ActiveRequest
    commits: list[Commit]
    back: list[int]  # places taken back
    front: list[int]  # places held ready for the next step
    survey: Survey | None = None  # of a request whose Config asks for it
