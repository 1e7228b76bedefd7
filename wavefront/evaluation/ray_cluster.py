"""Cluster: workers on Ray, each with a model of its own; one driver hands out and writes.

A worker that is lost is replaced, and its batch goes to whoever is free: the driver is the only one
that writes, so no item is lost and none is there twice. Boards are those of a run in one process,
and so are the answers.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavefront.core.errors import (
    OptionError,
    RunError,
    WavefrontError,
    WavefrontWarning,
    check_float,
    check_int,
)
from wavefront.evaluation.executor import Heard, unheard
from wavefront.evaluation.run import differences
from wavefront.evaluation.worker import About, Done, Job, Loader, Prompt, Worker
from wavefront.storage.ray_start import load_ray, start_ray

PATIENCE = 60.0  # seconds without any worker before it is said what is waited for


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What of a cluster is used."""

    address: str | None = None  # of one that runs, or "auto"; None starts one on this machine
    workers: int = 1
    cpus: float = 1.0  # of each worker
    gpus: float = 0.0  # of each worker; half a one lets two share it
    losses: int = 3  # workers that may be lost in all, before the run gives up

    def __post_init__(self) -> None:
        check_int("workers", self.workers, 1)
        check_float("cpus_per_worker", self.cpus, 0)
        check_float("gpus_per_worker", self.gpus, 0)
        check_int("max_losses", self.losses, 0)
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise OptionError(f"gpus_per_worker above 1 must be whole, not {self.gpus}.")


class Cluster:
    """An engine of workers on Ray. Use it in a `with`, so that they are given back."""

    def __init__(self, loader: Loader, resources: Resources) -> None:
        self.ray, self.resources = load_ray(resources.address), resources
        # As many threads as there are processors to a worker, unless somebody said so.
        threads = loader.threads or max(1, int(resources.cpus))
        self.loader = replace(loader.at_home(), threads=threads)
        self._began = False  # Ray itself, by us
        self._lost = 0
        self._starting: dict[Any, Any] = {}  # reference to its first sign of life -> worker
        self._idle: list[Any] = []
        self._model: dict[str, Any] | None = None  # what the first one said; the others must agree
        self._told = False

    def __enter__(self) -> Cluster:
        asked = self.resources
        cores = math.ceil(asked.workers * asked.cpus)
        self._began = start_ray(asked.address, cores=cores)
        for _ in range(self.resources.workers):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *self._starting.values()):
            self.ray.kill(worker)
        self._idle, self._starting = [], {}
        if self._began:
            self.ray.shutdown()

    def _start(self) -> None:
        asked = self.resources
        kind = self.ray.remote(num_cpus=asked.cpus, num_gpus=asked.gpus, max_restarts=0)(Worker)
        worker = kind.remote(self.loader)
        # A worker counts when it has answered: one that finds no room on the cluster never does.
        self._starting[worker.about.remote({})] = worker

    def about(self, options: Mapping[str, Any]) -> About:
        return self._ask(lambda worker: worker.about.remote(dict(options)))

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        return self._ask(lambda worker: worker.lengths.remote(list(prompts), raw))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Ask whoever is there."""
        while True:
            while not self._idle:
                self._wait({})
            worker = self._idle[0]
            found = self._fetch(question(worker))
            if found is not None:
                return found
            self._idle.remove(worker)
            self._replace()

    def decode(self, jobs: Sequence[Job], told: Heard = unheard) -> Iterator[Done]:
        """Every job once. A job whose worker was lost is handed out again, before the others.

        How far each is stays with its worker: many jobs end often enough to be counted.
        """
        queue, busy = deque(jobs), dict[Any, tuple[Any, Job]]()
        try:
            while queue or busy:
                while queue and self._idle:
                    worker, job = self._idle.pop(), queue.popleft()
                    busy[worker.decode.remote(job)] = (worker, job)
                for reference in self._wait(busy):
                    worker, job = busy.pop(reference)
                    done = self._fetch(reference)
                    if done is None:
                        queue.appendleft(job)
                        self._replace()
                        continue
                    self._idle.append(worker)
                    yield done
        finally:
            self._idle += [worker for worker, _ in busy.values()]

    def _wait(self, busy: Mapping[Any, Any]) -> list[Any]:
        """The references of `busy` that are ready; workers that have started are taken in."""
        every = [*busy, *self._starting]
        ready, _ = self.ray.wait(every, num_returns=1, timeout=PATIENCE)
        if not ready and not busy and not self._told:
            self._told = True
            asked = self.resources
            warnings.warn(
                f"No worker has started yet: each needs {asked.cpus:g} CPUs and {asked.gpus:g} "
                f"GPUs, and the cluster has {self.ray.available_resources()} free.",
                WavefrontWarning,
                stacklevel=2,
            )
        for reference in [one for one in ready if one in self._starting]:
            worker = self._starting.pop(reference)
            about = self._fetch(reference)
            if about is None:
                self._replace()
                continue
            self._agree(about)
            self._idle.append(worker)
        return [one for one in ready if one in busy]

    def _agree(self, about: About) -> None:
        """All workers hold the same model, or the answers would depend on who gave them."""
        self._model = self._model or about.model
        if found := differences(about.model, self._model):
            raise RunError(f"Two workers hold different models: {found[0]}.")

    def _fetch(self, reference: Any) -> Any:
        """What a worker made; None when the worker, or what it made, was lost."""
        failures = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except failures.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, WavefrontError):
                raise cause from None
            raise
        except failures.RayError:
            return None

    def _replace(self) -> None:
        self._lost += 1
        if self._lost > self.resources.losses:
            raise RunError(
                f"{self._lost} workers were lost: the answers so far are kept, and the same "
                "command goes on; --max-losses allows more."
            )
        warnings.warn(
            f"A worker was lost ({self._lost} so far): its batch goes to another.",
            WavefrontWarning,
            stacklevel=2,
        )
        self._start()
