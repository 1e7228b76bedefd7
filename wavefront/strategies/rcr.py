"""RCR: running confidence remasking, from MDPO (2508.13148): fill all, remask the weakest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.masks import top
from wavefront.core.strategy import Decision, View
from wavefront.strategies.block import Block


@dataclass(frozen=True)
class Rcr(Block):
    """Fill the whole block at every step, keep the tokens with the best scores, remask the others.

    A token's score is the one it had when it was filled. Each step adds as many decided positions
    as its selector would commit. New tokens compete with all earlier ones, also those of earlier
    blocks; a token that loses is masked again and filled anew by the next step.
    `stat` says which score counts: the 'last' one (the published code), or the 'min' or 'max' of
    all scores at that position. A minimum never recovers, so with 'min' only a new block can
    displace a token. Any token may be remasked until the answer is full, so none is final before.
    """

    # The state is the recorded score r, (B, L) float32.

    revises = True
    # The default is the smaller published value. If it is N or more, there is one block.
    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 128
    stat: Literal["last", "min", "max"] = "last"

    def init(self, canvas: Canvas) -> Tensor:
        initial = float("inf") if self.stat == "min" else float("-inf")
        return torch.full_like(canvas.tokens, initial, dtype=torch.float32)

    def step(self, view: View, state: Tensor) -> Decision:
        block = self._block(view.masked, view.slot)
        inner = view._replace(progress=self._block_progress(view.progress, block))
        gain = self.selector.select(inner, block, block).sum(-1)
        filled = block & (gain > 0)[:, None]  # a zero quota changes nothing
        record = torch.where(filled, self._update_record(view.score, state), state)
        before = view.known & (view.slot >= 0)
        target = before.sum(-1) + gain
        kept = top(record, before | filled, target)
        # A token that is filled and dropped in the same step is not a commit.
        return Decision(
            commit=filled & kept,
            candidates=block,
            state=record,
            remask=before & ~kept,
            final=(target >= view.progress.length)[:, None] & (view.slot >= 0),
        )

    def _update_record(self, score: Tensor, record: Tensor) -> Tensor:
        """Return the recorded score (B, L) float32 after a new score."""
        score = torch.where(score.isnan(), float("-inf"), score)  # a NaN would never go away
        if self.stat == "last":
            return score
        return (torch.minimum if self.stat == "min" else torch.maximum)(score, record)

    def _block(self, masked: Tensor, slot: Tensor) -> Tensor:
        """Return (B, L) bool: the masked positions up to the end of the current block."""
        # The leftmost mask does not identify the block, because it may have been remasked. The
        # number of decided positions does, because it never decreases.
        decided = ((slot >= 0) & ~masked).sum(-1, keepdim=True)
        return masked & (slot < (decided // self.size + 1) * self.size)
