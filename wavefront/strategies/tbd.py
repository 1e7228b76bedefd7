"""TBD: decode a short block, keep its confident beginning, drop the rest (a reconstruction).

After "Diffusion with Truncated Blocks" (2026.findings-acl.212). Only the abstract and the reviews
were available, without code or settings. They say: a short masked block is decoded after the text,
part of it is dropped again by length or confidence, and the model does not see later masks. The
defaults, and the division of steps over blocks, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, FloatRange, IntRange
from wavefront.core.budget import Count
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError, check_int
from wavefront.core.masks import FAR, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.quota import Quota


class TbdState(NamedTuple):
    """The text kept so far, and the progress of the block after it."""

    kept: Tensor  # (B,) long: slots kept for good, from the left
    blocks: Tensor  # (B,) long: blocks truncated so far
    first_step: Tensor  # (B,) long: the first step of the current block
    confident: Tensor  # (B, L) bool: the confidence was at least gamma at the commit


@dataclass(frozen=True)
class Tbd(Strategy):
    """Fill `size` slots after the kept text, keep their beginning, and drop the rest.

    mode='confidence' keeps the longest beginning whose confidences at commit are at least `gamma`:
    at least `min_kept` slots and at most size - drop. mode='length' keeps size - drop slots. Kept
    tokens are final, and the next block begins after them. A block that reaches the end is kept
    completely.
    Dropped positions are decoded again, so a fixed budget needs more commits per step. The
    remaining steps are divided evenly over the number of blocks that the row's history predicts.
    Every block gets at least half of its share if all blocks kept the most; if the steps do not
    suffice for that, more is kept. An adaptive selector decides its own number of steps.
    The model attends to the block and to `spare` masks after it; None means all masks.
    """

    recommended: ClassVar[str] = "tbd(size=32, selector=threshold(tau=0.98))"
    show_all: ClassVar[str] = "spare=None"
    revises = True
    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 32
    drop: Annotated[int, IntRange(0, MAX_POSITIONS)] = 8
    gamma: Annotated[float, FloatRange(0, 1)] = 0.9
    min_kept: Annotated[int, IntRange(1, MAX_POSITIONS)] = 4
    mode: Literal["confidence", "length"] = "confidence"
    spare: Annotated[int, IntRange(0, MAX_POSITIONS)] | None = 0
    selector: Selector = field(default=Quota(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("drop", self.drop, 0, high=self.size - 1)
        check_int("min_kept", self.min_kept, 1, high=self.size - self.drop)

    def init(self, canvas: Canvas) -> TbdState:
        zero = torch.zeros_like(canvas.slot[:, 0])
        return TbdState(zero, zero, zero, torch.zeros_like(canvas.masked))

    def candidates(self, canvas: Canvas, state: TbdState, progress: RowProgress) -> Tensor:
        return self._within(canvas, state, self.size)

    def attended(self, canvas: Canvas, state: TbdState) -> Tensor | None:
        """Return (B, L) bool: known tokens, the block, and the spare masks."""
        if self.spare is None:
            return None
        return canvas.known | self._within(canvas, state, self.size + self.spare)

    def hides(self, length: int) -> bool:
        return self.spare is not None and self.size + self.spare < length

    def step(self, view: View, state: TbdState) -> Decision:
        block = self._within(view, state, self.size)
        inner = view._replace(progress=self._block_progress(view, state, block))
        commit = self.selector.select(inner, block, block)
        if self.selector.planned:  # no step is skipped here, so a zero count would waste a pass
            commit = torch.where(commit.any(-1, keepdim=True), commit, top(view.score, block, 1))
        confident = torch.where(commit, view.stats.logp.exp() >= self.gamma, state.confident)
        full = ~(block & ~commit).any(-1)
        kept = state.kept + full * self._keep(view, state, confident)
        dropped = full[:, None] & (view.slot >= kept[:, None])
        after = TbdState(
            kept,
            state.blocks + full * 1,
            torch.where(full, view.progress.step + 1, state.first_step),
            confident,
        )
        # A token that is committed and dropped in the same step is not a commit.
        return Decision(
            commit=commit & ~dropped,
            candidates=block,
            state=after,
            remask=view.known & dropped,
            final=(view.slot >= 0) & (view.slot < kept[:, None]),
        )

    def _within(self, canvas: Canvas | View, state: TbdState, slots: int) -> Tensor:
        """Return (B, L) bool: the masked positions in this many slots after the kept text."""
        return canvas.masked & (canvas.slot < (state.kept + slots)[:, None])

    def _keep(self, view: View, state: TbdState, confident: Tensor) -> Tensor:
        """Return (B,) long: how many slots of the full block to keep."""
        progress, most = view.progress, self.size - self.drop
        rest = progress.length - state.kept
        keep = torch.full_like(rest, most)
        if self.mode == "confidence":
            uncertain = (view.slot >= state.kept[:, None]) & ~confident
            end = torch.where(uncertain, view.slot, FAR).amin(-1)
            keep = (end - state.kept).clamp(self.min_kept, most)
        # Slots beyond what the remaining steps can fill, at the fewest steps per block.
        later = (progress.steps - progress.step - 1) // self._fewest(progress) - 1
        beyond = rest - self.size - later * most
        return torch.where(
            rest <= self.size, rest, torch.maximum(keep, beyond).clamp(max=self.size)
        )

    def _block_progress(self, view: View, state: TbdState, block: Tensor) -> RowProgress:
        """Return the block's own progress: its slots, its share of the steps, its step."""
        rest = view.progress.length - state.kept
        # Predict that a block keeps the average of those before it, counting one that kept most.
        kept, blocks = state.kept + self.size - self.drop, state.blocks + 1
        ahead = _ceil((rest - self.size).clamp(min=0) * blocks, kept)
        share = _ceil(view.progress.steps - state.first_step, ahead + 1)
        return view.progress._replace(
            length=rest.clamp(max=self.size),
            steps=torch.maximum(share, self._fewest(view.progress)),
            step=view.progress.step - state.first_step,
            left=block.sum(-1),
        )

    def _fewest(self, progress: RowProgress) -> Tensor:
        """Return (B,) long: the minimum steps per block, half of its share if all keep the most."""
        return _ceil(progress.steps // self._blocks(progress.length), 2).clamp(min=1)

    def _blocks(self, length: Count) -> Count:
        """Return how many blocks there are if all keep the most."""
        return _ceil((length - self.size) * (length > self.size), self.size - self.drop) + 1

    def width(self, length: int, steps: int) -> int:
        return min(self.size, length)

    def validate(self, length: int, steps: int) -> None:
        blocks = self._blocks(length)
        if steps < blocks and self.selector.planned:
            raise OptionError(
                f"steps={steps} is too few: {length} positions need {blocks} blocks of {self.size} "
                f"slots, and each block drops {self.drop}; give at least one step per block, or a "
                "larger block size.",
                option="steps",
                value=steps,
            )


def _ceil(count: Count, by: Count | int) -> Count:
    """Return count / by, rounded up."""
    return (count + by - 1) // by
