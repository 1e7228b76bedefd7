"""Timing: the median time of a step with quartiles, for several workloads that alternate.

A busy or throttled machine slows down whatever runs at that time. The workloads therefore take
turns, a few steps each, so both sides of a ratio come from the same period. Every other round runs
in reverse order, because a workload is slower after one that heats the machine.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

# Runs a few steps of one workload and returns how many. A `ready` method, if any, is not timed. If
# `on_host` is true, the piece ends when it returns, though the device may have more to do.
Piece = Callable[[], int]
Tick = Callable[[str], None]
Now = Callable[[], float]  # seconds of the wall clock, or of CPU time


class Timing(NamedTuple):
    """Seconds per step: the median, the quartiles, the minimum, and the number of pieces."""

    median: float
    low: float
    high: float
    least: float
    repeats: int

    @property
    def ms(self) -> float:
        return 1000 * self.median


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_piece(device: torch.device, piece: Piece, now: Now = time.perf_counter) -> float:
    """Return the seconds per step of one piece, without its `ready` and extra synchronisation."""
    getattr(piece, "ready", int)()
    synchronize(device)
    if device.type == "cuda" and not getattr(piece, "on_host", False):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        steps = piece()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / steps
    started = now()
    steps = piece()
    return (now() - started) / steps


def summarise(seconds: list[float]) -> Timing:
    """Return the median and the quartiles; a single value is all of them."""
    middle = statistics.median(seconds)
    low, high = middle, middle
    if len(seconds) > 1:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(middle, low, high, min(seconds), len(seconds))


def time_in_turns(
    device: torch.device,
    pieces: Mapping[str, Piece],
    *,
    repeats: int,
    warm_up: int = 2,
    now: Now = time.perf_counter,
    tick: Tick = lambda what: None,
) -> dict[str, Timing]:
    """Time every piece `repeats` times, alternately, after `warm_up` rounds that do not count."""
    found: dict[str, list[float]] = {name: [] for name in pieces}
    with without_garbage_collection():
        for number in range(warm_up + repeats):
            for name, piece in list(pieces.items())[:: -1 if number % 2 else 1]:
                tick(name)
                seconds = time_piece(device, piece, now)
                if number >= warm_up:
                    found[name].append(seconds)
    return {name: summarise(seconds) for name, seconds in found.items()}


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect garbage now, and not inside the block.

    In a process with a compiler, one collection takes as long as several steps.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
