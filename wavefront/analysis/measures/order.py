"""Order: how close a decode is to left-to-right order (Kendall's tau-b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import lasting_commits, stop_ids_of, visible_positions
from wavefront.core.masks import distance
from wavefront.traces.trace import Trace

NAN = float("nan")


@dataclass(frozen=True)
class Order:
    """The order of each row, (B,) float64. NaN if a row has too few commits."""

    tau: Tensor  # Kendall's tau-b of position and commit step: 1 is left to right
    inversions: Tensor  # share of pairs from different steps, right committed before left
    jump: Tensor  # mean distance from one commit to the next
    adjacent: Tensor  # share of commits next to a position known before the step
    commits: Tensor  # long

    @staticmethod
    def join(parts: Sequence[Order]) -> Order:
        """Join the rows of several batches."""
        names = ("tau", "inversions", "jump", "adjacent", "commits")
        return Order(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def measure(trace: Trace, *, visible: bool = False, stop_ids: Sequence[int] | None = None) -> Order:
    """Measure the order of a trace's commits. Distances are between positions.

    `tau` and `inversions` use the commits that lasted. `jump` and `adjacent` use every commit,
    including remasked ones. With `visible`, all use only lasting commits of the visible text.
    """
    last = lasting_commits(trace)
    every = trace.commit
    if visible:
        every = last = last & visible_positions(trace, stop_ids_of(trace, stop_ids))
    beside = [(distance(canvas.known) == 1) for canvas in trace.before()]
    next_to = every & torch.stack(beside) if beside else every
    rows = range(every.shape[1])
    pairs = [_pairs(last[:, row]) for row in rows]
    commits = every.sum((0, 2))
    return Order(
        tau=torch.tensor([tau for tau, _ in pairs], dtype=torch.float64),
        inversions=torch.tensor([share for _, share in pairs], dtype=torch.float64),
        jump=torch.tensor([_jump(every[:, row]) for row in rows], dtype=torch.float64),
        adjacent=next_to.sum((0, 2)).double() / commits,
        commits=commits,
    )


def _pairs(commit: Tensor) -> tuple[float, float]:
    """Return tau-b and the share of inversions of one row's commits (S, L)."""
    step = commit.T.nonzero()[:, 1]  # by position, the step of its commit
    later = (step[None, :] - step[:, None]).triu(1).sign()  # 1: the right position comes later
    agree, differ = int((later > 0).sum()), int((later < 0).sum())
    apart, every = agree + differ, len(step) * (len(step) - 1) // 2
    if not apart:
        return NAN, NAN
    return (agree - differ) / (apart * every) ** 0.5, differ / apart


def _jump(commit: Tensor) -> float:
    place = commit.nonzero()[:, 1]  # by step, and within a step from the left
    return float(place.diff().abs().double().mean()) if len(place) > 1 else NAN
