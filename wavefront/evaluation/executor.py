"""Engines: what gets batches answered. This one is the process itself; `cluster` is Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from wavefront.evaluation.worker import About, Done, Job, Prompt, Worker

Heard = Callable[[Job, float], None]  # a job under way, and the share of its steps that is done


def unheard(job: Job, share: float) -> None:
    """Nobody asks how far a job is."""


class Engine(Protocol):
    """One or many workers with the same model."""

    def about(self, options: Mapping[str, Any]) -> About: ...
    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]: ...
    def decode(self, jobs: Sequence[Job], told: Heard = ...) -> Iterator[Done]:
        """Every job once, in whatever order they are done; `told` may hear how far each is."""
        ...


class Local:
    """A worker in this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def about(self, options: Mapping[str, Any]) -> About:
        return self.worker.about(options)

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        return self.worker.lengths(prompts, raw)

    def decode(self, jobs: Sequence[Job], told: Heard = unheard) -> Iterator[Done]:
        for job in jobs:
            yield self.worker.decode(job, partial(told, job))
