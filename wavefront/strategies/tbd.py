"""TBD: decode a short block, keep its sure beginning, drop the rest (a reconstruction).

After "Diffusion with Truncated Blocks" (2026.findings-acl.212), of which only the abstract and the
reviews could be read: no code, no settings. From them: a short masked block is decoded after the
text, a part of it is dropped again, by length or by confidence, and masks further on are not shown
to the model. The defaults, and how the steps are shared out, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from wavefront.core.budget import Count
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError, check_choice, check_float, check_int
from wavefront.core.masks import FAR, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.quota import Quota


class Text(NamedTuple):
    """What is kept for good, and how the block after it came about."""

    kept: Tensor  # (B,) long: slots kept, all from the left
    blocks: Tensor  # (B,) long: blocks truncated so far
    began: Tensor  # (B,) long: the first step of the current block
    sure: Tensor  # (B, L) bool: the confidence reached gamma when the place was committed


@dataclass(frozen=True)
class Tbd(Strategy):
    """Reconstruction: fill `size` slots after the kept text, keep their beginning, drop the rest.

    mode='confidence' keeps the longest beginning whose confidences at commit are at least `gamma`,
    of `least` slots or more, and of no more than size - drop; mode='length' keeps size - drop. What
    is kept is final; the next block begins after it. A block that reaches the end is kept whole.
    Dropped places are decoded again, so a fixed budget commits more a step: the steps left are
    shared out evenly over as many blocks as the row's own so far let expect. No block is hurried to
    less than half its share if all kept the most; more is kept where the steps would not suffice
    for that. An adaptive take goes at its own pace.
    The model is to see the block and `spare` masks after it; None shows it all of them.
    """

    revises = True
    size: int = 32
    drop: int = 8
    gamma: float = 0.9
    min_commits: int = 4
    mode: Literal["confidence", "length"] = "confidence"
    spare: int | None = 0
    selector: Selector = field(default=Quota(), repr=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)
        check_int("drop", self.drop, 0, self.size - 1)
        check_float("gamma", self.gamma, 0, 1)
        check_int("least", self.min_commits, 1, self.size - self.drop)
        check_choice("mode", self.mode, ("confidence", "length"))
        if self.spare is not None:
            check_int("spare", self.spare, 0)

    def init(self, canvas: Canvas) -> Text:
        zero = torch.zeros_like(canvas.slot[:, 0])
        return Text(zero, zero, zero, torch.zeros_like(canvas.masked))

    def candidates(self, canvas: Canvas, state: Text, progress: RowProgress) -> Tensor:
        return self._within(canvas, state, self.size)

    def attended(self, canvas: Canvas, state: Text) -> Tensor | None:
        """(B, L) bool: what the model may attend to: what is known, the block, the spare masks."""
        if self.spare is None:
            return None
        return canvas.known | self._within(canvas, state, self.size + self.spare)

    def step(self, view: View, state: Text) -> Decision:
        scope = self._within(view, state, self.size)
        commit = self.selector.select(
            view._replace(progress=self._clock(view, state, scope)), scope, scope
        )
        if self.selector.planned:  # no step is idle here, so a zero count would waste its forward
            commit = torch.where(commit.any(-1, keepdim=True), commit, top(view.score, scope, 1))
        sure = torch.where(commit, view.stats.logp.exp() >= self.gamma, state.sure)
        full = ~(scope & ~commit).any(-1)
        kept = state.kept + full * self._keep(view, state, sure)
        dropped = full[:, None] & (view.slot >= kept[:, None])
        after = Text(
            kept,
            state.blocks + full * 1,
            torch.where(full, view.progress.step + 1, state.began),
            sure,
        )
        # What is committed and dropped at once was never seen by anyone: it is no commit.
        return Decision(
            commit=commit & ~dropped,
            scope=scope,
            state=after,
            remask=view.known & dropped,
            final=(view.slot >= 0) & (view.slot < kept[:, None]),
        )

    def _within(self, board: Canvas | View, state: Text, slots: int) -> Tensor:
        """(B, L) bool: masked places of so many slots after the kept text."""
        return board.masked & (board.slot < (state.kept + slots)[:, None])

    def _keep(self, view: View, state: Text, sure: Tensor) -> Tensor:
        """(B,) long: how many slots of the full block stay."""
        progress, most = view.progress, self.size - self.drop
        rest = progress.length - state.kept
        keep = torch.full_like(rest, most)
        if self.mode == "confidence":
            unsure = (view.slot >= state.kept[:, None]) & ~sure
            end = torch.where(unsure, view.slot, FAR).amin(-1)
            keep = (end - state.kept).clamp(self.min_commits, most)
        # What the steps left cannot reach, at the fewest a block and the most kept of each.
        later = (progress.steps - progress.step - 1) // self._fewest(progress) - 1
        beyond = rest - self.size - later * most
        return torch.where(
            rest <= self.size, rest, torch.maximum(keep, beyond).clamp(max=self.size)
        )

    def _clock(self, view: View, state: Text, scope: Tensor) -> RowProgress:
        """The block's own clock: its slots, its share of the steps left, the step inside it."""
        rest = view.progress.length - state.kept
        # A block keeps what those before it kept, on average, and one more that kept the most.
        kept, blocks = state.kept + self.size - self.drop, state.blocks + 1
        ahead = _ceil((rest - self.size).clamp(min=0) * blocks, kept)
        share = _ceil(view.progress.steps - state.began, ahead + 1)
        return view.progress._replace(
            length=rest.clamp(max=self.size),
            steps=torch.maximum(share, self._fewest(view.progress)),
            step=view.progress.step - state.began,
            left=scope.sum(-1),
        )

    def _fewest(self, progress: RowProgress) -> Tensor:
        """(B,) long: the steps that every block gets, half of its share if all kept the most."""
        return _ceil(progress.steps // self._blocks(progress.length), 2).clamp(min=1)

    def _blocks(self, length: Count) -> Count:
        """How many blocks there are if all keep the most."""
        return _ceil((length - self.size) * (length > self.size), self.size - self.drop) + 1

    def width(self, length: int, steps: int) -> int:
        return min(self.size, length)

    def validate(self, length: int, steps: int) -> None:
        blocks = self._blocks(length)
        if steps < blocks and self.selector.planned:
            raise OptionError(
                f"steps={steps} is fewer than the {blocks} blocks of {self.size}, less the "
                f"{self.drop} dropped of each, in {length} places; give at least one step per "
                "block, or a larger block size."
            )


def _ceil(count: Count, by: Count | int) -> Count:
    return (count + by - 1) // by
