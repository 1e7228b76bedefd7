"""Ray cluster: workers on Ray, each with its own model; one driver assigns and writes.

A lost worker is replaced, and its batch goes to a free one. Only the driver writes, so no item is
lost and none is written twice. The batches have the same shapes as in one process, so the answers
are the same.
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
from wavefront.evaluation.run import describe_differences
from wavefront.evaluation.worker import (
    BatchJob,
    BatchResult,
    JobProgress,
    Loader,
    Prompt,
    Worker,
    WorkerInfo,
    ignore_progress,
)
from wavefront.storage.ray_start import load_ray, start_ray

START_TIMEOUT = 60.0  # seconds without any worker before a warning


@dataclass(frozen=True, kw_only=True)
class Resources:
    """How much of a cluster to use."""

    address: str | None = None  # of a running cluster, or "auto"; None starts one here
    workers: int = 1
    cpus: float = 1.0  # for each worker
    gpus: float = 0.0  # for each worker; with 0.5, two workers share a GPU
    losses: int = 3  # lost workers after which the run stops

    def __post_init__(self) -> None:
        check_int("workers", self.workers, 1)
        check_float("cpus_per_worker", self.cpus, 0)
        check_float("gpus_per_worker", self.gpus, 0)
        check_int("max_losses", self.losses, 0)
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise OptionError(
                f"gpus_per_worker above 1 must be an integer, not {self.gpus}.",
                option="gpus_per_worker",
                value=self.gpus,
            )


class RayCluster:
    """An executor with workers on Ray. Use it in a `with` statement, so that it is shut down."""

    def __init__(self, loader: Loader, resources: Resources) -> None:
        self.ray, self.resources = load_ray(resources.address), resources
        # By default as many threads as a worker has CPUs.
        threads = loader.threads or max(1, int(resources.cpus))
        self.loader = replace(loader.with_absolute_path(), threads=threads)
        self._started_ray = False
        self._lost = 0
        self._starting: dict[Any, Any] = {}  # reference to the first reply -> worker
        self._idle: list[Any] = []
        self._model: dict[str, Any] | None = None  # of the first worker; the others must agree
        self._warned = False

    def __enter__(self) -> RayCluster:
        cores = math.ceil(self.resources.workers * self.resources.cpus)
        self._started_ray = start_ray(self.resources.address, cores=cores)
        for _ in range(self.resources.workers):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *self._starting.values()):
            self.ray.kill(worker)
        self._idle, self._starting = [], {}
        if self._started_ray:
            self.ray.shutdown()

    def _start(self) -> None:
        needs = self.resources
        actor = self.ray.remote(num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0)(Worker)
        worker = actor.remote(self.loader)
        # A worker counts once it has replied; if the cluster has no room, it never replies.
        self._starting[worker.about.remote({})] = worker

    def about(self, options: Mapping[str, Any]) -> WorkerInfo:
        return self._ask(lambda worker: worker.about.remote(dict(options)))

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        return self._ask(lambda worker: worker.lengths.remote(list(prompts), raw))

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        """Call any worker, and another one if that worker is lost."""
        while True:
            while not self._idle:
                self._wait({})
            worker = self._idle[0]
            found = self._fetch(call(worker))
            if found is not None:
                return found
            self._idle.remove(worker)
            self._replace()

    def decode(
        self, jobs: Sequence[BatchJob], on_progress: JobProgress = ignore_progress
    ) -> Iterator[BatchResult]:
        """Yield the result of every job once. The job of a lost worker is assigned again first.

        `on_progress` is not called; the end of each job is reported instead.
        """
        queue, busy = deque(jobs), dict[Any, tuple[Any, BatchJob]]()
        try:
            while queue or busy:
                while queue and self._idle:
                    worker, job = self._idle.pop(), queue.popleft()
                    busy[worker.decode.remote(job)] = (worker, job)
                for reference in self._wait(busy):
                    worker, job = busy.pop(reference)
                    result = self._fetch(reference)
                    if result is None:
                        queue.appendleft(job)
                        self._replace()
                        continue
                    self._idle.append(worker)
                    yield result
        finally:
            self._idle += [worker for worker, _ in busy.values()]

    def _wait(self, busy: Mapping[Any, Any]) -> list[Any]:
        """Return the references of `busy` that are ready, and admit workers that have started."""
        references = [*busy, *self._starting]
        ready, _ = self.ray.wait(references, num_returns=1, timeout=START_TIMEOUT)
        if not ready and not busy and not self._warned:
            self._warned = True
            needs = self.resources
            warnings.warn(
                f"No worker has started yet: each needs {needs.cpus:g} CPUs and {needs.gpus:g} "
                f"GPUs, and the cluster has {self.ray.available_resources()} free.",
                WavefrontWarning,
                stacklevel=2,
            )
        for reference in [one for one in ready if one in self._starting]:
            worker = self._starting.pop(reference)
            info = self._fetch(reference)
            if info is None:
                self._replace()
                continue
            self._check_model(info)
            self._idle.append(worker)
        return [one for one in ready if one in busy]

    def _check_model(self, info: WorkerInfo) -> None:
        """Check that workers have the same model, so that answers do not depend on the worker."""
        self._model = self._model or info.model
        if found := describe_differences(info.model, self._model):
            raise RunError(f"Two workers have different models: {found[0]}.")

    def _fetch(self, reference: Any) -> Any:
        """Return a worker's result; None if the worker or its result was lost."""
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
                "command resumes the run; --max-losses allows more."
            )
        warnings.warn(
            f"A worker was lost ({self._lost} so far): its batch goes to another.",
            WavefrontWarning,
            stacklevel=2,
        )
        self._start()
