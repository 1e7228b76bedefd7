"""Engines: what gets batches answered. This one is the process itself; `cluster` is Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from wavefront.evaluate.worker import About, Done, Job, Prompt, Worker


class Engine(Protocol):
    """One or many workers with the same model."""

    def about(self, options: Mapping[str, Any]) -> About: ...
    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]: ...
    def decode(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Every job once, in whatever order they are done."""
        ...


class Local:
    """A worker in this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def about(self, options: Mapping[str, Any]) -> About:
        return self.worker.about(options)

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        return self.worker.lengths(prompts, raw)

    def decode(self, jobs: Sequence[Job]) -> Iterator[Done]:
        return map(self.worker.decode, jobs)
