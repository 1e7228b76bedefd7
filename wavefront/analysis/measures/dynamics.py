"""Dynamics: the frontier after every step, and a heat map of every position (figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import active_steps, need_full
from wavefront.core.errors import OptionError, check_choice
from wavefront.core.masks import FAR
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Frontier:
    """The frontier by slot. Index 0 is the first canvas, index s the canvas after s steps."""

    t: Tensor  # (S + 1, B) long: the row's own step
    leftmost: Tensor  # (S + 1, B) long: the first masked slot; N if none is
    furthest: Tensor  # (S + 1, B) long: the last decided slot; -1 if none is
    length: Tensor  # (B,) long: N
    live: Tensor  # (S + 1, B) bool: the step is active for the row; otherwise values repeat

    @property
    def plateau(self) -> Tensor:
        """The longest run of steps that did not move the first masked slot, (B,) long."""
        most = run = torch.zeros_like(self.length)
        for step in range(1, len(self.t)):
            still = self.live[step] & (self.leftmost[step] == self.leftmost[step - 1])
            run = torch.where(still, run + 1, torch.where(self.live[step], 0, run))
            most = torch.maximum(most, run)
        return most

    @staticmethod
    def join(parts: Sequence[Frontier]) -> Frontier:
        """Join the rows of several batches. Shorter ones repeat their last value."""
        longest = max(len(part.t) for part in parts)

        def extend(part: Tensor, dead: bool = False) -> Tensor:
            tail = part[-1:].expand(longest - len(part), -1)
            return torch.cat([part, torch.zeros_like(tail) if dead else tail])

        return Frontier(
            t=torch.cat([extend(p.t) for p in parts], 1),
            leftmost=torch.cat([extend(p.leftmost) for p in parts], 1),
            furthest=torch.cat([extend(p.furthest) for p in parts], 1),
            length=torch.cat([p.length for p in parts]),
            live=torch.cat([extend(p.live, dead=True) for p in parts], 1),
        )


def frontier(trace: Trace) -> Frontier:
    """Return the leftmost masked and the furthest decided slot after every step of any trace."""
    slot = trace.first.slot
    length = (slot >= 0).sum(-1)
    t, leftmost, furthest = [torch.zeros_like(length)], [], []
    live = torch.cat([torch.ones_like(length, dtype=torch.bool)[None], active_steps(trace)])
    for canvas in (trace.first, *trace.replay()):
        # If nothing is masked, the first masked slot is the one after the last.
        masked = torch.where(canvas.masked, slot, FAR).amin(-1)
        leftmost.append(torch.minimum(masked, length))
        furthest.append(torch.where(canvas.known, slot, -1).amax(-1))
    for own, moves in zip(trace.step, live[1:], strict=True):
        t.append(torch.where(moves, own + 1, t[-1]))
    return Frontier(torch.stack(t), torch.stack(leftmost), torch.stack(furthest), length, live)


@dataclass(frozen=True)
class HeatMap:
    """The heat map of one row: its active steps S' by its N slots."""

    of: str
    row: int
    t: Tensor  # (S',) long
    values: Tensor  # (S', N) float32; NaN for decided slots
    candidates: Tensor  # (S', N) bool
    commit: Tensor  # (S', N) bool


def heat_map(trace: Trace, row: int = 0, of: str = "score") -> HeatMap:
    """Return scores, probabilities or entropies of one row of a full trace, by step and slot."""
    need_full(trace, "A heat map")
    check_choice("of", of, ("score", "probability", "entropy"))
    rows = trace.first.tokens.shape[0]
    if not 0 <= row < rows:
        raise OptionError(f"row must be between 0 and {rows - 1}, not {row}.")
    board = {"score": trace.score, "probability": trace.logp.exp(), "entropy": trace.entropy}[of]
    assert board is not None  # a full trace has them
    inside = trace.first.slot[row] >= 0
    steps = active_steps(trace)[:, row]

    def cut(part: Tensor) -> Tensor:
        return part[steps][:, row][:, inside]

    masked = [canvas.masked for canvas in trace.before()]
    read = trace.logp > float("-inf")  # without the blocks that were not read yet
    undecided = cut(torch.stack(masked) & read if masked else trace.commit)
    return HeatMap(
        of,
        row,
        t=trace.step[steps, row] + 1,
        values=torch.where(undecided, cut(board), float("nan")),
        candidates=cut(trace.candidates),
        commit=cut(trace.commit),
    )
