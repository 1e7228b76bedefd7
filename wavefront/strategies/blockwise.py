"""Blockwise: decode one block after another, with any strategy inside the block.

This is how block-causal models are decoded. The engine wraps the strategy that you choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_POSITIONS, MAX_STEPS, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError
from wavefront.core.masks import FAR, positions
from wavefront.core.strategy import Decision, RowProgress, Selector, State, Strategy, View
from wavefront.core.tree import choose
from wavefront.strategies.standard import Standard


class BlockState(NamedTuple):
    """The current block of each row, and the state of the strategy inside it."""

    inner: State
    block: Tensor  # (B,) long: the number of the current block
    began: Tensor  # (B,) long: the step at which it began
    settled: Tensor  # (B, L) bool: the positions that the inner strategy declared final


@dataclass(frozen=True)
class Blockwise(Strategy):
    """Fill blocks of `size` positions from the left, each with `strategy` as if it were alone.

    The strategy sees the text before the block as known, and the positions of the block as all
    there is to fill. A block ends when all its positions are final, at the latest after `steps`
    steps; None means one step per position. Later blocks are hidden from the model, unless
    hide=False. `origin` says where the first block starts: at the answer, at the first token of
    the 'row', or at the first column of the 'canvas'. With lead=True the first position of a block
    is decided alone. Models need this if their output at a position predicts the next token.
    """

    show_all: ClassVar[str] = "hide=False"
    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 32
    strategy: Strategy = field(default=Standard())
    steps: Annotated[int, IntRange(1, MAX_STEPS)] | None = field(default=None, repr=False)
    origin: Literal["answer", "row", "canvas"] = field(default="answer", repr=False)
    hide: bool = field(default=True, repr=False)
    lead: bool = field(default=False, repr=False)

    @property
    def selector(self) -> Selector:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.strategy.selector

    @property
    def revises(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.strategy.revises

    @property
    def reads_copies(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.strategy.reads_copies

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.strategy.needs

    @property
    def _limit(self) -> int:
        """The maximum steps of a block, apart from the one that decides only its first position."""
        return self.strategy.budget(self.size, self.steps or self.size)

    def init(self, canvas: Canvas) -> BlockState:
        numbers = self._numbers(canvas.masked, canvas.known, canvas.slot)
        block = _first(canvas.masked, numbers)
        inner = self.strategy.init(_restrict(canvas, numbers, block))
        return BlockState(inner, block, block * 0, torch.zeros_like(canvas.masked))

    def candidates(self, canvas: Canvas, state: BlockState, progress: RowProgress) -> Tensor:
        numbers = self._numbers(canvas.masked, canvas.known, canvas.slot)
        part = _restrict(canvas, numbers, state.block)
        inner = self._progress(progress, part, numbers, state=state)
        found = self.strategy.candidates(part, state.inner, inner)
        found = torch.where((inner.step + 1 >= inner.steps)[:, None], found | part.masked, found)
        if self.lead:
            first = part.masked & self._firsts(numbers)
            found = torch.where(first.any(-1, keepdim=True), first, found)
        return found

    def readable(self, canvas: Canvas, state: BlockState) -> Tensor:
        numbers = self._numbers(canvas.masked, canvas.known, canvas.slot)
        return canvas.masked & (numbers == state.block[:, None])

    def attended(self, canvas: Canvas, state: BlockState) -> Tensor | None:
        if not self.hide:
            return None
        numbers = self._numbers(canvas.masked, canvas.known, canvas.slot)
        return canvas.real & (numbers <= state.block[:, None])

    def hides(self, length: int) -> bool:
        # Blocks that are not counted from the answer may begin in the middle of it.
        return self.hide and (self.size < length or self.origin != "answer")

    def forced(self, canvas: Canvas, state: BlockState, progress: RowProgress) -> Tensor | None:
        numbers = self._numbers(canvas.masked, canvas.known, canvas.slot)
        part = _restrict(canvas, numbers, state.block)
        inner = self._progress(progress, part, numbers, state=state)
        last = inner.step + 1 >= inner.steps
        if self.lead:
            last = last & ~(part.masked & self._firsts(numbers)).any(-1)
        found = part.masked & last[:, None]
        more = self.strategy.forced(part, state.inner, inner)
        return found if more is None else found | (more & part.masked)

    def copied(self, canvas: Canvas, state: BlockState) -> Tensor | None:
        numbers = self._numbers(canvas.masked, canvas.known, canvas.slot)
        return self.strategy.copied(_restrict(canvas, numbers, state.block), state.inner)

    def step(self, view: View, state: BlockState) -> Decision:
        return self._decide(view, state, None)

    def without(
        self, decision: Decision, dropped: Tensor, *, view: View, state: BlockState
    ) -> Decision:
        return self._decide(view, state, dropped)  # a block ends only if everything is written

    def _decide(self, view: View, state: BlockState, dropped: Tensor | None) -> Decision:
        """Return the decision, without the commits and edits `dropped` (B, L) bool."""
        numbers = self._numbers(view.masked, view.known, view.slot)
        canvas = Canvas(view.tokens, view.masked, view.known, view.slot)
        part = _restrict(canvas, numbers, state.block)
        progress = self._progress(view.progress, part, numbers, state=state)
        inner = view._replace(
            masked=part.masked, known=part.known, slot=part.slot, progress=progress
        )
        decision = self.strategy.step(inner, state.inner)
        if dropped is not None:
            decision = self.strategy.without(decision, dropped, view=inner, state=state.inner)
        alone = torch.zeros_like(state.block, dtype=torch.bool)
        if self.lead:
            first = part.masked & self._firsts(numbers)
            alone = first.any(-1)
            decision = _only(decision, first, alone)
        last = ((progress.step + 1 >= progress.steps) & ~alone)[:, None]
        commit = (decision.commit | last) & part.masked
        if dropped is not None:
            commit = commit & ~dropped
        remask = None if decision.remask is None else decision.remask & ~last
        left = view.masked & ~commit if remask is None else (view.masked & ~commit) | remask
        inside, settled = part.slot >= 0, state.settled
        open_ = left & inside
        if decision.final is not None:
            settled = settled | decision.final
            open_ = open_ | (inside & ~settled)
        done = ~open_.any(-1) | last[:, 0]
        final = None if decision.final is None else settled | (done[:, None] & inside)
        block = torch.where(done & left.any(-1), _first(left, numbers), state.block)
        after = canvas.commit(commit, view.proposal)._replace(masked=left)
        fresh = self.strategy.init(_restrict(after, numbers, block))
        step = view.progress.step
        state = BlockState(
            choose(done | alone, fresh, decision.state),
            block,
            torch.where(done | alone, step + 1, state.began),
            settled,
        )
        return Decision(
            commit, decision.candidates & part.masked, state, remask, final, decision.edit
        )

    def _numbers(self, masked: Tensor, known: Tensor, slot: Tensor) -> Tensor:
        """Return (B, L) long: the number of the block of every position."""
        here = positions(masked)
        counted = slot >= 0 if self.origin == "answer" else masked | known
        first = torch.where(counted, here, FAR).amin(-1, keepdim=True)
        if self.origin == "canvas":
            # The numbers seed draws, so they must not depend on the padding of a batch.
            first = first // self.size * self.size
        return (here - first) // self.size

    def _firsts(self, numbers: Tensor) -> Tensor:
        """Return (B, L) bool: the first position of every block."""
        before = torch.nn.functional.pad(numbers[:, :-1], (1, 0), value=-FAR)
        return numbers > before

    def _progress(
        self, progress: RowProgress, part: Canvas, numbers: Tensor, *, state: BlockState
    ) -> RowProgress:
        """Return the progress inside the block."""
        length = (part.slot >= 0).sum(-1).clamp(min=1)  # an empty row of a batch has none
        block = (part.real & (numbers == state.block[:, None])).sum(-1)
        return RowProgress(
            length,
            steps=length * 0 + self._limit,
            step=progress.step - state.began,
            left=part.masked.sum(-1),
            seed=progress.seed + state.block,  # else every block would draw the same numbers
            block=block,
        )

    def width(self, length: int, steps: int) -> int:
        return min(self.size, length)

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return False  # where a block ends depends on the prompt, and on the selector

    def must_commit(self, length: int, steps: int, step: int) -> bool:
        return False

    def budget(self, length: int, steps: int) -> int:
        # The end of the prompt may share a block, so the answer may touch one block more.
        return (-(-length // self.size) + 1) * (self._limit + self.lead)

    def front(self, state: BlockState) -> Tensor | None:
        return self.strategy.front(state.inner)

    def validate(self, length: int, steps: int) -> None:
        if self.strategy.hides(self.size):
            use = self.strategy.show_all
            raise OptionError(
                f"{self.strategy!r} hides positions of a block of {self.size} from the model, "
                "which does not work block by block: "
                f"{f'use {use}, which hides none' if use else 'choose another strategy'}.",
                option="strategy",
                value=repr(self.strategy),
            )
        self.strategy.validate(self.size, self.steps or self.size)


def _first(masked: Tensor, numbers: Tensor) -> Tensor:
    """Return (B,) long: the first block with a masked position; FAR if there is none."""
    return torch.where(masked, numbers, FAR).amin(-1)


def _restrict(canvas: Canvas, numbers: Tensor, block: Tensor) -> Canvas:
    """Return the canvas as the strategy inside the block sees it."""
    inside, before = numbers == block[:, None], numbers <= block[:, None]
    answer = inside & (canvas.slot >= 0)
    first = torch.where(answer, canvas.slot, FAR).amin(-1, keepdim=True)
    return Canvas(
        canvas.tokens,
        canvas.masked & inside,
        canvas.known & before,
        torch.where(answer, canvas.slot - first, -1),
    )


def _only(decision: Decision, where: Tensor, rows: Tensor) -> Decision:
    """Return the decision with only the commit `where` (B, L) in the rows (B,)."""
    free = ~rows[:, None]
    return Decision(
        torch.where(free, decision.commit, where),
        torch.where(free, decision.candidates, where),
        decision.state,
        None if decision.remask is None else decision.remask & free,
        None if decision.final is None else decision.final & free,
        None if decision.edit is None else decision.edit & free,
    )
