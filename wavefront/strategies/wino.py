"""WINO: wide in, narrow out (2507.18578). Commit generously, then take back what fails a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, FloatRange, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.masks import FAR, top
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.strategies.selectors.threshold import Threshold

SHARE, LEAST, MOST = 0.7, 5, 20  # of the masked positions, a step commits at most this many


@dataclass(frozen=True)
class Wino(Strategy):
    """Commit confident positions of a block, and remask committed tokens that the model rejects.

    A committed token is tested at a masked copy of its position, which sees everything but the
    token itself. It is masked again if its probability there is below `keep`. A step takes back
    fewer tokens than it commits, so every step makes progress. The published bound is the number
    of commits of the step before. Earlier blocks never change.
    """

    revises = True
    reads_copies = True
    needs = ("current_logp",)
    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 128
    keep: Annotated[float, FloatRange(0, 1)] = 0.9
    selector: Selector = field(default=Threshold(0.6), repr=False)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return self._block(canvas.masked, canvas.slot)

    def copied(self, canvas: Canvas, state: State) -> Tensor:
        return self._block(canvas.masked, canvas.slot)

    def step(self, view: View, state: State) -> Decision:
        block = self._block(view.masked, view.slot)
        masked = view.masked & block
        count = masked.sum(-1)
        commit = self.selector.select(view, masked, masked)
        limit = (count.double() * SHARE).long().clamp(LEAST, MOST)
        commit = top(view.score, commit, torch.minimum(limit, commit.sum(-1)))
        return self._decide(view, commit)

    def without(self, decision: Decision, dropped: Tensor, *, view: View, state: State) -> Decision:
        return self._decide(view, decision.commit & ~dropped)

    def _decide(self, view: View, commit: Tensor) -> Decision:
        """Return the decision to commit these positions, with the tokens that it takes back."""
        block = self._block(view.masked, view.slot)
        masked = view.masked & block
        accepted = commit.sum(-1)
        current = view.stats.current_logp
        assert current is not None
        tested = view.known & block
        doubted = tested & (current.exp() < self.keep)
        fewer = torch.minimum(doubted.sum(-1), (accepted - 1).clamp(min=0))
        remask = top(-current, doubted, fewer)
        open_ = (masked & ~commit) | remask
        ended = ~open_.any(-1)
        number = view.slot // self.size
        here = torch.where(masked, number, FAR).amin(-1, keepdim=True)
        final = (view.slot >= 0) & ((number < here) | ((number == here) & ended[:, None]))
        return Decision(
            commit,
            candidates=masked,
            remask=remask,
            final=final,
        )

    def _block(self, masked: Tensor, slot: Tensor) -> Tensor:
        """Return (B, L) bool: the positions of the first block with a masked position."""
        number = slot // self.size
        first = torch.where(masked, number, FAR).amin(-1, keepdim=True)
        return (slot >= 0) & (number == first)

    def width(self, length: int, steps: int) -> int:
        return min(self.size, length)
