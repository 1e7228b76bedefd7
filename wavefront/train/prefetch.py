"""Make batches ahead of time in worker processes, and return them in step order.

Worker w of W makes groups w, w + W, … and writes each into its own pipe. A pipe holds much less
than a group, so a worker is at most one group ahead, which bounds the memory. If a worker dies, the
trainer reads an end of file. If the trainer dies, even by SIGKILL, its workers end at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType

from wavefront.core.errors import WavefrontError
from wavefront.storage.parent_process import end_with_parent
from wavefront.train.config import BatchConfig
from wavefront.train.data import TrainingBatch
from wavefront.train.rows import open_source


class DataError(WavefrontError):
    """A data worker failed."""


class Prefetcher:
    """An endless iterator over batches from step `start` on. Close it, or use it in `with`."""

    def __init__(self, config: BatchConfig, *, workers: int, start: int = 0) -> None:
        self._size = config.group
        self._step = start
        self._waiting: list[TrainingBatch] = []
        self._source = open_source(config) if not workers else None
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []
        first = start // self._size
        # Not fork: a forked child would break the trainer's threads and CUDA context.
        context = multiprocessing.get_context("spawn")
        for number in range(workers):
            reading, writing = context.Pipe(duplex=False)
            process = context.Process(
                target=_produce,
                args=(writing, config),
                kwargs={"first": first + number, "stride": workers},
                daemon=True,
            )
            process.start()
            writing.close()  # only the worker's copy stays open, so its death closes the pipe
            self._ends.append(reading)
            self._processes.append(process)
        self._first = first

    def __iter__(self) -> Iterator[TrainingBatch]:
        return self

    def __next__(self) -> TrainingBatch:
        group, index = divmod(self._step, self._size)
        if not self._waiting or index == 0:
            self._waiting = self._receive(group)
        self._step += 1
        return self._waiting[index]

    def _receive(self, group: int) -> list[TrainingBatch]:
        if self._source is not None:
            return self._source.make_group(group)
        number = (group - self._first) % len(self._ends)
        try:
            received = self._ends[number].recv()
        except (EOFError, OSError):
            self._processes[number].join(timeout=1.0)
            code = self._processes[number].exitcode
            raise DataError(
                f"Data worker {number} died (exit code {code}). Check that there is enough memory."
            ) from None
        if isinstance(received, str):
            raise DataError(f"Data worker {number} failed: {received}")
        return received

    def close(self) -> None:
        """Terminate the workers. The iterator cannot be used afterwards."""
        for process in self._processes:
            process.terminate()
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join()
            process.close()
        self._processes, self._ends = [], []

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _produce(end: Connection, config: BatchConfig, *, first: int, stride: int) -> None:
    """Make groups first, first + stride, … and send them, until the pipe breaks."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    try:
        source = open_source(config)
        group = first
        while True:
            end.send(source.make_group(group))
            group += stride
    except (BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        end.send(f"{type(error).__name__}: {error}")
