"""AdaBlock: blocks that end where the model predicts the end of a line (2509.26432)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, MAX_TOKEN_ID, FloatRange, IntRange, TupleBounds
from wavefront.core.canvas import Canvas, is_any
from wavefront.core.errors import OptionError
from wavefront.core.masks import FAR, first, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.threshold import Threshold

DELIMITERS = TupleBounds(
    IntRange(0, MAX_TOKEN_ID), "token ids or texts", "(198,) or ('\\n', '.')", max_text=64
)


@dataclass(frozen=True)
class Adablock(Strategy):
    """Choose from one block at a time, up to the most probable delimiter or `size` slots.

    When a block begins, the strategy searches the next `share` of all slots for proposals that are
    `delimiters`: token ids, or texts of one token such as ('\\n', '.'). The most probable one ends
    the block if its probability is at least `tau_d`. The block's first step uses the same forward
    pass. Blocks are not known in advance, so a selector with a fixed budget follows the budget of
    the whole answer. If the block is too small for it, the next masked positions are used.
    """

    # The state is the block's end, (B,) long: the slot after its last.

    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 16  # B_0
    delimiters: Annotated[tuple[int | str, ...], DELIMITERS] = ("\n",)
    tau_d: Annotated[float, FloatRange(0, 1)] = 0.3
    share: Annotated[float, FloatRange(0, 1)] = 0.25
    selector: Selector = field(default=Threshold(0.9), repr=False)

    def with_ids(self, id_of: Callable[[str], int] | None) -> Adablock:
        texts = [delimiter for delimiter in self.delimiters if isinstance(delimiter, str)]
        if texts and id_of is None:
            raise OptionError(
                f"The delimiter {texts[0]!r} is a text, and there is no tokenizer; give token ids, "
                "such as adablock(delimiters=(198,)).",
                option="delimiters",
                value=self.delimiters,
            )
        ids = (id_of(text) if id_of and isinstance(text, str) else text for text in self.delimiters)
        return replace(self, delimiters=tuple(dict.fromkeys(ids)))

    def init(self, canvas: Canvas) -> Tensor:
        return torch.zeros_like(canvas.slot[:, 0])  # no block yet

    def step(self, view: View, state: Tensor) -> Decision:
        start = _start(view.masked, view.slot)
        end = torch.where(start < state, state, self._end(view, start))
        block = _before(end, view.masked, view.slot)
        fallback = first(view.masked, self.selector.min_commits(view.progress))
        commit = self.selector.select(view, block, fallback)
        # A step that commits nothing may be skipped by the engine, so it must not begin a block.
        return Decision(commit, block, torch.where(commit.any(-1), end, state))

    def _end(self, view: View, start: Tensor) -> Tensor:
        """Return (B,) long: where a block that begins at `start` ends, by this step's proposals."""
        ahead = _before(start + self._window(view.progress), view.masked, view.slot)
        ids = [delimiter for delimiter in self.delimiters if isinstance(delimiter, int)]
        probable = view.stats.logp.exp() >= self.tau_d
        best = top(view.stats.logp, ahead & probable & is_any(view.proposal, ids), 1)
        found = torch.where(best, view.slot + 1, 0).amax(-1)
        return torch.where(found > 0, found, start + self.size)

    def _window(self, progress: RowProgress) -> Tensor:
        """Return (B,) long: how many slots ahead to search for a delimiter."""
        return (progress.length * self.share).long()

    def candidates(self, canvas: Canvas, state: Tensor, progress: RowProgress) -> Tensor:
        # A new block may end anywhere in the window, or be `size` long.
        start = _start(canvas.masked, canvas.slot)
        new = start + self._window(progress).clamp(min=self.size)
        end = torch.where(start < state, state, new)
        fallback = first(canvas.masked, self.selector.min_commits(progress))
        return _before(end, canvas.masked, canvas.slot) | fallback

    def width(self, length: int, steps: int) -> int:
        k = -(-length // steps) if self.selector.planned else 1
        return max(self.size, int(length * self.share), k)


def _start(masked: Tensor, slot: Tensor) -> Tensor:
    """Return (B,) long: the first masked slot; FAR if there is none."""
    return torch.where(masked, slot, FAR).amin(-1)


def _before(end: Tensor, masked: Tensor, slot: Tensor) -> Tensor:
    """Return (B, L) bool: the masked positions in the slots before `end`."""
    return masked & (slot < end[:, None])
