"""Clock: how long a step takes, as a median with its spread, several subjects in turns.

A busy or throttled machine slows whatever it happens to run, so subjects take turns, a piece of a
few steps each: a ratio of two is of one minute, not of two. Every other round goes backwards: who
comes after a subject that heats the machine is slower, and it is not always the same one.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

# A few steps of one subject; how many it made.
Piece = Callable[[], int]
Tick = Callable[[str], None]
Now = Callable[[], float]  # seconds: on the wall, or of this process alone


class Timing(NamedTuple):
    """Seconds a step: the median, the quartiles, the least, and how many pieces were timed."""

    median: float
    low: float
    high: float
    least: float
    repeats: int

    @property
    def ms(self) -> float:
        return 1000 * self.median


def settle(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def spent(device: torch.device, piece: Piece, now: Now = time.perf_counter) -> float:
    """Seconds a step of one piece; nothing waits inside it that does not wait by itself.

    What a piece has to do before it can go on, its `ready`, is not timed.
    """
    getattr(piece, "ready", int)()
    settle(device)
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        steps = piece()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / steps
    began = now()
    steps = piece()
    return (now() - began) / steps


def summary(seconds: list[float]) -> Timing:
    """The median and the quartiles; of one value, itself."""
    middle = statistics.median(seconds)
    low, high = middle, middle
    if len(seconds) > 1:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(middle, low, high, min(seconds), len(seconds))


def in_turns(
    device: torch.device,
    pieces: Mapping[str, Piece],
    *,
    repeats: int,
    warm_up: int = 2,
    now: Now = time.perf_counter,
    tick: Tick = lambda what: None,
) -> dict[str, Timing]:
    """Every piece `repeats` times, in turns, after `warm_up` rounds that do not count."""
    found: dict[str, list[float]] = {name: [] for name in pieces}
    with undisturbed():
        for number in range(warm_up + repeats):
            for name, piece in list(pieces.items())[:: -1 if number % 2 else 1]:
                tick(name)
                seconds = spent(device, piece, now)
                if number >= warm_up:
                    found[name].append(seconds)
    return {name: summary(seconds) for name, seconds in found.items()}


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Python's garbage is collected before and not meanwhile: in a process that holds a compiler,
    one collection takes as long as several steps, and it would meet those who launch most.
    """
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
