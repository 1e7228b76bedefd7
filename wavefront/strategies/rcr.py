"""RCR: running confidence remasking, from MDPO (2508.13148): fill all, take back the least sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.errors import check_choice
from wavefront.core.masks import top
from wavefront.core.strategy import Decision, View
from wavefront.strategies.block import Block


@dataclass(frozen=True)
class Rcr(Block):
    """Fill the block at every step and keep the surest of all that was ever filled.

    Sureness is the score a place had when it was filled. A step leaves as many more places decided
    as its take would commit, but they compete with everything decided before, earlier blocks
    included: what falls out is masked again and filled anew by the next step. `stat` says which
    score counts: the 'last' one (the published code), or the 'min' or 'max' of all at that place.
    A minimum never recovers, so with 'min' only a new block can push anything out.
    Any place may still fall out until the answer is full, so nothing is final before that.
    """

    # The state is the recorded score r, (B, L) float32.

    revises = True
    size: int = 128  # the smaller of the two that were published; from N on, one block
    stat: Literal["last", "min", "max"] = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("stat", self.stat, ("last", "min", "max"))

    def init(self, canvas: Canvas) -> Tensor:
        nothing = float("inf") if self.stat == "min" else float("-inf")
        return torch.full_like(canvas.tokens, nothing, dtype=torch.float32)

    def step(self, view: View, state: Tensor) -> Decision:
        scope = self._scope(view.masked, view.slot)
        inner = view._replace(progress=self._clock(view.progress, scope))
        gain = self.selector.select(inner, scope, scope).sum(-1)
        filled = scope & (gain > 0)[:, None]  # a zero quota leaves everything as it is
        record = torch.where(filled, self._recorded(view.score, state), state)
        before = view.known & (view.slot >= 0)
        target = before.sum(-1) + gain
        kept = top(record, before | filled, target)
        # What is filled and falls out at once was never seen by anyone: it is no commit.
        return Decision(
            commit=filled & kept,
            scope=scope,
            state=record,
            remask=before & ~kept,
            final=(target >= view.progress.length)[:, None] & (view.slot >= 0),
        )

    def _recorded(self, score: Tensor, record: Tensor) -> Tensor:
        score = torch.where(score.isnan(), float("-inf"), score)  # or it would stay for ever
        if self.stat == "last":
            return score
        return (torch.minimum if self.stat == "min" else torch.maximum)(score, record)

    def _scope(self, masked: Tensor, slot: Tensor) -> Tensor:
        """(B, L) bool: masked places up to the end of the current block."""
        # The leftmost mask does not tell which block that is, for it may have been pulled back;
        # the number of decided places does, because a step only ever adds to it.
        decided = ((slot >= 0) & ~masked).sum(-1, keepdim=True)
        return masked & (slot < (decided // self.size + 1) * self.size)
