"""What a strategy sees (View), says (Decision), and is (Strategy and Take).

A strategy is a frozen dataclass with pure methods: `init` makes its state from the canvas, `step`
turns what is seen into what is committed. It calls no model, keeps nothing on itself, looks at
tensors only, and never lets one row influence another. A Strategy says *where* to look; its Take
says *how many and which* of what it offers. Check yours with `wavefront.testing.check(Mine())`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.spec import Spec

State = (
    Any  # a tensor, a NamedTuple of tensors, or (); same structure, shapes and dtypes throughout
)


class RowProgress(NamedTuple):
    """Where each row stands, all (B,) long."""

    length: Tensor  # N, the places to fill
    steps: Tensor  # T, the budget
    step: Tensor  # t - 1, from 0
    left: Tensor  # places still masked
    seed: Tensor


class Stats(NamedTuple):
    """What one forward says of each place, (B, L) float32; None where no strategy asked for it."""

    logp: Tensor  # log p of the proposal
    margin: Tensor | None = None  # p1 - p2
    entropy: Tensor | None = None  # in nats
    current_logp: Tensor | None = None  # log p of the token that stands there now


class View(NamedTuple):
    """All a strategy may see. Only the places it declared in `reach` hold this step's values."""

    score: Tensor  # (B, L) float32, higher = sooner; -inf = only when nothing else is left
    stats: Stats
    proposal: Tensor  # (B, L) long, the token that would be written
    masked: Tensor  # (B, L) bool
    known: Tensor  # (B, L) bool
    slot: Tensor  # (B, L) long
    progress: RowProgress


class Decision(NamedTuple):
    """What a strategy says."""

    commit: Tensor  # (B, L) bool, a subset of masked
    scope: Tensor  # (B, L) bool, where it looked; reserve places may be committed outside it
    state: State = ()
    remask: Tensor | None = None  # (B, L) bool, taken back
    final: Tensor | None = None  # (B, L) bool, never taken back again; None: all that is known


class Selector(Spec):
    """How many places to commit, and which. One file in `strategies/selectors/`."""

    registry: ClassVar[str] = "selectors"
    needs: ClassVar[tuple[str, ...]] = ()  # of "margin", "entropy", "current_logp"
    planned: ClassVar[bool] = False  # its counts are fixed by length and steps

    def select(self, view: View, among: Tensor, fallback: Tensor) -> Tensor:
        """(B, L) bool: the commit, from `among`; `reserve` serves when `among` is too short."""
        raise NotImplementedError

    def min_commits(self, progress: RowProgress) -> Tensor:
        """(B,) long: commits it insists on. With fewer places than this, the reserve serves."""
        raise NotImplementedError

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        """True when this step is sure to commit nothing, so that its forward can be saved."""
        return False


class Strategy(Spec):
    """Where to look. One file in `strategies/`."""

    registry: ClassVar[str] = "strategies"
    needs: ClassVar[tuple[str, ...]] = ()
    revises: ClassVar[bool] = False  # may take back, so no step is sure to be idle
    example: ClassVar[str] = ""  # a spec to try first, where that is not the defaults
    selector: Selector

    def with_ids(self, id_of: Callable[[str], int] | None) -> Self:
        """The same, texts among its options turned into token ids; None: there is no tokenizer."""
        return self

    def init(self, canvas: Canvas) -> State:
        """The state before the first step."""
        return ()

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        """(B, L) bool: the places whose score, statistics and proposal this step may read."""
        return canvas.masked

    def attended(self, canvas: Canvas, state: State) -> Tensor | None:
        """(B, L) bool: the places the model may look at, padding aside; None when it is all."""
        return None

    def step(self, view: View, state: State) -> Decision:
        """One decision per row."""
        raise NotImplementedError

    def width(self, length: int, steps: int) -> int:
        """How many places `reach` usually holds; a guess that costs only speed when wrong."""
        return length

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        """True when this step is sure to change nothing."""
        return not self.revises and self.selector.is_noop_step(length, steps, step)

    def front(self, state: State) -> Tensor | None:
        """(B, L) bool: the places held ready for the next step, if it keeps any; for viewers."""
        return None

    def validate(self, length: int, steps: int) -> None:
        """Raise OptionError when this strategy cannot run on so many places and steps."""


def every_stat(strategy: Strategy) -> tuple[str, ...]:
    """The optional statistics a strategy and its take ask for, each once."""
    return tuple(sorted({*strategy.needs, *strategy.selector.needs}))
