"""Block: the best of the leftmost unfinished block (the paper, section 2.3; LLaDA's sampler)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError, check_int
from wavefront.core.masks import FAR
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.strategies.selectors.quota import Quota

Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class Block(Strategy):
    """Look in one block of `size` slots at a time; the T steps are shared out over the blocks."""

    size: int = 8  # B
    selector: Selector = field(default=Quota(), repr=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        return self._scope(canvas.masked, canvas.slot)

    def step(self, view: View, state: State) -> Decision:
        scope = self._scope(view.masked, view.slot)
        inner = view._replace(progress=self._clock(view.progress, scope))
        return Decision(self.selector.select(inner, scope, scope), scope=scope)

    def _scope(self, masked: Tensor, slot: Tensor) -> Tensor:
        """(B, L) bool: masked places of the leftmost block that has any."""
        block = torch.where(masked, slot // self.size, FAR)
        return masked & (block == block.amin(-1, keepdim=True))

    def _clock(self, progress: RowProgress, scope: Tensor) -> RowProgress:
        """The block's own clock: its length, its share of the steps, the step inside it."""
        length, steps, step = _inside(progress.length, progress.steps, progress.step, self.size)
        return progress._replace(length=length, steps=steps, step=step, left=scope.sum(-1))

    def width(self, length: int, steps: int) -> int:
        return min(self.size, length)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        if steps < _blocks(length, self.size):
            return False  # only a take without a plan gets here, see validate
        return self.selector.is_noop_step(*_inside(length, steps, step, self.size))

    def validate(self, length: int, steps: int) -> None:
        blocks = _blocks(length, self.size)
        if steps < blocks and self.selector.planned:
            raise OptionError(
                f"steps={steps} is fewer than the {blocks} blocks of {self.size} in {length} "
                "places; give at least one step per block, or a larger block size."
            )


def _blocks(length: Count, size: int) -> Count:
    return (length + size - 1) // size


def _inside(length: Count, steps: Count, step: Count, size: int) -> tuple[Count, Count, Count]:
    """(length, steps, step) inside the block that `step` falls in; ints or (B,) tensors.

    The remainder of steps over blocks goes to the first blocks, one each.
    """
    blocks = _blocks(length, size)
    base, extra = steps // blocks, steps % blocks
    early = (step < extra * (base + 1)) * 1  # 1 while in a block that got one step more
    past = step - extra * (base + 1)
    # With fewer steps than blocks (adaptive takes only) base is 0; one step per block then.
    late_size = base + (base == 0) * 1
    index = early * (step // (base + 1)) + (1 - early) * (extra + past // late_size)
    inner = early * (step % (base + 1)) + (1 - early) * (past % late_size)
    share = late_size + early * (base + 1 - late_size)
    rest = length - index * size
    places = rest + (rest > size) * (size - rest)
    return places, share, inner
