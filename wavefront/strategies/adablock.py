"""AdaBlock: blocks that end where the model foresees the end of a line (2509.26432)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, is_any
from wavefront.core.errors import OptionError, check_float, check_int
from wavefront.core.masks import FAR, first, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.threshold import Threshold


@dataclass(frozen=True)
class Adablock(Strategy):
    """Look in one block at a time; each ends at the surest delimiter ahead, or after `size` slots.

    When a block begins, the next `share` of all slots are searched for proposals that are
    delimiters, token ids or texts of one token such as ('\\n', '.'); the surest one ends the block
    if its probability is at least `tau_d`. The same forward then serves the block's first step.
    Blocks are not known in advance, so a take with a plan follows the plan of the whole answer:
    when the block holds fewer places than it insists on, the next masked ones serve.
    """

    # The state is the block's end, (B,) long: the slot after its last.

    size: int = 16  # B_0
    delimiters: tuple[int | str, ...] = ("\n",)
    tau_d: float = 0.3
    share: float = 0.25
    selector: Selector = field(default=Threshold(0.9), repr=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)
        check_float("tau_d", self.tau_d, 0, 1)
        check_float("share", self.share, 0, 1)
        if not isinstance(self.delimiters, tuple):
            raise OptionError(
                "delimiters must be several in brackets, token ids or texts, such as (198,) or "
                f"('\\n', '.'), not {self.delimiters!r}."
            )
        for one in self.delimiters:
            if not isinstance(one, str):
                check_int("a delimiter", one, 0)

    def with_ids(self, id_of: Callable[[str], int] | None) -> Adablock:
        texts = [one for one in self.delimiters if isinstance(one, str)]
        if texts and id_of is None:
            raise OptionError(
                f"The delimiter {texts[0]!r} is a text, and there is no tokenizer here: give "
                "token ids, such as adablock(delimiters=(198,))."
            )
        ids = (id_of(one) if id_of and isinstance(one, str) else one for one in self.delimiters)
        return replace(self, delimiters=tuple(dict.fromkeys(ids)))

    def init(self, canvas: Canvas) -> Tensor:
        return torch.zeros_like(canvas.slot[:, 0])  # no block yet

    def step(self, view: View, state: Tensor) -> Decision:
        start = _start(view.masked, view.slot)
        end = torch.where(start < state, state, self._end(view, start))
        scope = _before(end, view.masked, view.slot)
        spare = first(view.masked, self.selector.min_commits(view.progress))
        commit = self.selector.select(view, scope, spare)
        # A step that commits nothing may have been passed over, so it must not begin a block.
        return Decision(commit, scope, torch.where(commit.any(-1), end, state))

    def _end(self, view: View, start: Tensor) -> Tensor:
        """(B,) long: where a block that begins at `start` ends, by this step's proposals."""
        ahead = _before(start + self._window(view.progress), view.masked, view.slot)
        ids = [one for one in self.delimiters if isinstance(one, int)]
        sure = view.stats.logp.exp() >= self.tau_d
        surest = top(view.stats.logp, ahead & sure & is_any(view.proposal, ids), 1)
        found = torch.where(surest, view.slot + 1, 0).amax(-1)
        return torch.where(found > 0, found, start + self.size)

    def _window(self, progress: RowProgress) -> Tensor:
        return (progress.length * self.share).long()

    def candidates(self, canvas: Canvas, state: Tensor, progress: RowProgress) -> Tensor:
        # A block about to begin may end anywhere in the window, or be `size` long.
        start = _start(canvas.masked, canvas.slot)
        new = start + self._window(progress).clamp(min=self.size)
        end = torch.where(start < state, state, new)
        spare = first(canvas.masked, self.selector.min_commits(progress))
        return _before(end, canvas.masked, canvas.slot) | spare

    def width(self, length: int, steps: int) -> int:
        k = -(-length // steps) if self.selector.planned else 1
        return max(self.size, int(length * self.share), k)


def _start(masked: Tensor, slot: Tensor) -> Tensor:
    """(B,) long: the first masked slot; FAR when there is none."""
    return torch.where(masked, slot, FAR).amin(-1)


def _before(end: Tensor, masked: Tensor, slot: Tensor) -> Tensor:
    """(B, L) bool: masked places in the slots before `end`."""
    return masked & (slot < end[:, None])
