"""Batches in step order, made ahead of time by worker processes.

Worker w of W makes groups w, w + W, … and writes each into its own pipe. A pipe holds far less than
a group, so a worker is at most one group ahead: that is the bound on memory. Both ways of dying
show at the pipe's other end: a worker that is gone reads as end of file; a trainer that is gone,
even by SIGKILL, breaks the worker's write, and it leaves.
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
from wavefront.train.config import DataConfig
from wavefront.train.data import Batch, Source


class DataError(WavefrontError):
    """A process that makes data failed."""


class Feed:
    """An endless iterator over batches from step `start` on; close it, or use it in `with`."""

    def __init__(self, config: DataConfig, *, workers: int, start: int = 0) -> None:
        self._size = config.group
        self._step = start
        self._waiting: list[Batch] = []
        self._source = Source(config) if not workers else None
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []
        first = start // self._size
        # Not fork: the trainer has threads and a CUDA context, which a forked child would break.
        context = multiprocessing.get_context("spawn")
        for number in range(workers):
            reading, writing = context.Pipe(duplex=False)
            process = context.Process(
                target=_produce, args=(writing, config, first + number, workers), daemon=True
            )
            process.start()
            writing.close()  # the worker's copy is then the only one, so its death closes the pipe
            self._ends.append(reading)
            self._processes.append(process)
        self._first = first

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        group, place = divmod(self._step, self._size)
        if not self._waiting or place == 0:
            self._waiting = self._receive(group)
        self._step += 1
        return self._waiting[place]

    def _receive(self, group: int) -> list[Batch]:
        if self._source is not None:
            return self._source.make_group(group)
        number = (group - self._first) % len(self._ends)
        try:
            made = self._ends[number].recv()
        except (EOFError, OSError):
            self._processes[number].join(timeout=1.0)
            code = self._processes[number].exitcode
            raise DataError(
                f"data worker {number} died (exit code {code}): is there enough memory?"
            ) from None
        if isinstance(made, str):
            raise DataError(f"data worker {number} failed: {made}")
        return made

    def close(self) -> None:
        """End the workers; the iterator is of no use afterwards."""
        for process in self._processes:
            process.terminate()
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join()
            process.close()
        self._processes, self._ends = [], []

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _produce(end: Connection, config: DataConfig, first: int, stride: int) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides what Ctrl-C means
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    try:
        source = Source(config)
        group = first
        while True:
            end.send(source.make_group(group))
            group += stride
    except (BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        end.send(f"{type(error).__name__}: {error}")
