"""The strategy interface: what a strategy reads (View), returns (Decision) and implements.

A strategy is a frozen dataclass with pure methods: `init` creates its state from the canvas, and
`step` decides which positions to commit. It calls no model, stores nothing on itself, and rows
never influence each other. A `Strategy` says *where* to look: its candidates. Its `Selector` says
*how many and which* candidates to commit. Check yours with `wavefront.testing.check(Mine())`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.spec import Spec

# A tensor, a NamedTuple of tensors, or (). Structure, shapes and dtypes never change in a decode.
State = Any


class RowProgress(NamedTuple):
    """The progress of each row; all fields are (B,) long."""

    length: Tensor  # N, the number of positions to fill
    steps: Tensor  # T, the step budget
    step: Tensor  # t - 1, from 0
    left: Tensor  # how many positions are still masked
    seed: Tensor


class Stats(NamedTuple):
    """Statistics of one forward pass, (B, L) float32; None if the strategy does not need them."""

    logp: Tensor  # log p of the proposal
    margin: Tensor | None = None  # p1 - p2
    entropy: Tensor | None = None  # in nats
    current_logp: Tensor | None = None  # log p of the token that is there now


class View(NamedTuple):
    """What a strategy may read. Only its candidates hold values from this step's forward pass."""

    score: Tensor  # (B, L) float32, higher = sooner; -inf = only after everything else
    stats: Stats
    proposal: Tensor  # (B, L) long, the token that would be written
    masked: Tensor  # (B, L) bool
    known: Tensor  # (B, L) bool
    slot: Tensor  # (B, L) long
    progress: RowProgress


class Decision(NamedTuple):
    """What a strategy returns for a step."""

    commit: Tensor  # (B, L) bool, a subset of masked
    candidates: Tensor  # (B, L) bool, the positions it chose from; a fallback may lie outside
    state: State = ()
    remask: Tensor | None = None  # (B, L) bool, positions to mask again
    final: Tensor | None = None  # (B, L) bool, never remasked again; None: everything known


class Selector(Spec):
    """How many candidates to commit, and which. One file in `strategies/selectors/`."""

    registry: ClassVar[str] = "selectors"
    needs: ClassVar[tuple[str, ...]] = ()  # optional statistics: "margin", "entropy", ...
    planned: ClassVar[bool] = False  # True if length and steps fix its counts

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        """Return (B, L) bool: the positions to commit.

        Args:
            view: What this step reads.
            candidates: (B, L) bool, the positions to choose from.
            fallback: (B, L) bool, positions to use when there are too few candidates.
        """
        raise NotImplementedError

    def min_commits(self, progress: RowProgress) -> Tensor:
        """Return (B,) long: the fewest commits. With fewer candidates, the fallback is used."""
        raise NotImplementedError

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        """Return True if this step commits nothing for sure, so its forward pass can be skipped."""
        return False


class Strategy(Spec):
    """Where to look for positions to commit. One file in `strategies/`."""

    registry: ClassVar[str] = "strategies"
    needs: ClassVar[tuple[str, ...]] = ()
    revises: ClassVar[bool] = False  # True if it may remask; then no step is a no-op for sure
    example: ClassVar[str] = ""  # a spec to try first, if the defaults are not
    selector: Selector

    def with_ids(self, id_of: Callable[[str], int] | None) -> Self:
        """Return the strategy with texts in its options replaced by token ids.

        `id_of` maps a text to its token id; it is None if there is no tokenizer.
        """
        return self

    def init(self, canvas: Canvas) -> State:
        """Return the state before the first step."""
        return ()

    def candidates(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor:
        """Return (B, L) bool: the positions whose score, stats and proposal `step` may read."""
        return canvas.masked

    def attended(self, canvas: Canvas, state: State) -> Tensor | None:
        """Return (B, L) bool: the positions the model attends to; None means all but padding."""
        return None

    def step(self, view: View, state: State) -> Decision:
        """Return the decision for every row."""
        raise NotImplementedError

    def width(self, length: int, steps: int) -> int:
        """Return how many candidates there usually are; a wrong guess costs only speed."""
        return length

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        """Return True if this step changes nothing for sure."""
        return not self.revises and self.selector.is_noop_step(length, steps, step)

    def front(self, state: State) -> Tensor | None:
        """Return (B, L) bool: the front kept for the next step, or None; viewers show it."""
        return None

    def validate(self, length: int, steps: int) -> None:
        """Raise OptionError if this strategy cannot fill `length` positions in `steps` steps."""


def required_stats(strategy: Strategy) -> tuple[str, ...]:
    """Return the optional statistics that a strategy and its selector need, each once."""
    return tuple(sorted({*strategy.needs, *strategy.selector.needs}))
