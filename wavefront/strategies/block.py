"""Block: the best of the leftmost unfinished block (the paper, section 2.3; LLaDA's sampler)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeVar

import torch
from torch import Tensor

from wavefront.core.bounds import DEFAULT_STRATEGY, MAX_POSITIONS, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError
from wavefront.core.masks import FAR
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.strategies.selectors.quota import Quota

Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class Block(Strategy):
    """Choose from one block of `size` slots at a time; the blocks share the T steps."""

    recommended: ClassVar[str] = DEFAULT_STRATEGY

    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 8  # B
    selector: Selector = field(default=Quota(), repr=False)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return self._block(canvas.masked, canvas.slot)

    def step(self, view: View, state: State) -> Decision:
        block = self._block(view.masked, view.slot)
        inner = view._replace(progress=self._block_progress(view.progress, block))
        return Decision(self.selector.select(inner, block, block), candidates=block)

    def _block(self, masked: Tensor, slot: Tensor) -> Tensor:
        """Return (B, L) bool: the masked positions of the leftmost block that has any."""
        block = torch.where(masked, slot // self.size, FAR)
        return masked & (block == block.amin(-1, keepdim=True))

    def _block_progress(self, progress: RowProgress, block: Tensor) -> RowProgress:
        """Return the block's own progress: its length, its share of the steps, its step."""
        length, steps, step = _in_block(
            progress.length, progress.steps, progress.step, size=self.size
        )
        left = block.sum(-1)
        return progress._replace(length=length, steps=steps, step=step, left=left, block=None)

    def width(self, length: int, steps: int) -> int:
        return min(self.size, length)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        if steps < _blocks(length, self.size):
            return False  # only for adaptive selectors; see `validate`
        return self.selector.is_noop_step(*_in_block(length, steps, step, size=self.size))

    def validate(self, length: int, steps: int) -> None:
        blocks = _blocks(length, self.size)
        if steps < blocks and self.selector.planned:
            raise OptionError(
                f"steps={steps} is fewer than the {blocks} blocks of {self.size} in {length} "
                "positions; give at least one step per block, or a larger block size.",
                option="steps",
                value=steps,
            )


def _blocks(length: Count, size: int) -> Count:
    """Return how many blocks there are."""
    return (length + size - 1) // size


def _in_block(length: Count, steps: Count, step: Count, *, size: int) -> tuple[Count, Count, Count]:
    """Return (length, steps, step) within the block that `step` falls in; ints or (B,) tensors.

    If the steps do not divide evenly, the first blocks get one step more each.
    """
    blocks = _blocks(length, size)
    base, extra = steps // blocks, steps % blocks
    early = (step < extra * (base + 1)) * 1  # 1 in a block that has one step more
    past = step - extra * (base + 1)
    # With fewer steps than blocks (adaptive selectors only) base is 0; use one step per block.
    late_size = base + (base == 0) * 1
    index = early * (step // (base + 1)) + (1 - early) * (extra + past // late_size)
    inner = early * (step % (base + 1)) + (1 - early) * (past % late_size)
    share = late_size + early * (base + 1 - late_size)
    rest = length - index * size
    block_length = rest + (rest > size) * (size - rest)
    return block_length, share, inner
