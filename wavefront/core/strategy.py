"""The strategy interface: what a strategy reads (View), returns (Decision) and implements.

A strategy is a frozen dataclass with pure methods: `init` creates its state from the canvas, and
`step` decides which positions to commit. It calls no model and stores nothing on itself, and its
rows never influence each other. A `Strategy` says *where* to look: its candidates. Its `Selector`
says *how many and which* candidates to commit. Check yours with `wavefront.testing.check(Mine())`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, blank
from wavefront.core.errors import StrategyError
from wavefront.core.spec import Spec, default_of
from wavefront.core.tree import short_repr

MIN_STEP_LIMIT = 1 << 16  # a table with an entry per step is built for every row

# A tensor, a NamedTuple of tensors, or (). Structure, shapes and dtypes never change in a decode.
State = Any


class RowProgress(NamedTuple):
    """The progress of each row; all fields are (B,) long."""

    length: Tensor  # N, the number of positions to fill
    steps: Tensor  # T, the step budget
    step: Tensor  # t - 1, from 0
    left: Tensor  # how many positions are still masked
    seed: Tensor
    block: Tensor | None = None  # in a block: its positions, those of the prompt included

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def quota_length(self) -> Tensor:
        """(B,) long: the positions that a quota divides over the steps.

        A block that begins with the end of a prompt has the quota of a whole block, as in the
        published samplers of block-causal models.
        """
        return self.length if self.block is None else self.block


class Stats(NamedTuple):
    """Statistics of one forward pass, (B, L) float32; None if the strategy does not need them."""

    logp: Tensor  # log p of the proposal
    margin: Tensor | None = None  # p1 - p2
    entropy: Tensor | None = None  # in nats
    current_logp: Tensor | None = None  # log p of the current token

    def __repr__(self) -> str:
        return short_repr(self)


class View(NamedTuple):
    """What a strategy may read. Only its candidates hold values from this step's forward pass."""

    score: Tensor  # (B, L) float32, higher = sooner; -inf = only after everything else
    stats: Stats
    proposal: Tensor  # (B, L) long, the token that would be written
    masked: Tensor  # (B, L) bool
    known: Tensor  # (B, L) bool
    slot: Tensor  # (B, L) long
    progress: RowProgress
    tokens: Tensor  # (B, L) long, on the canvas; the mask id where masked

    def __repr__(self) -> str:
        return short_repr(self)


class Decision(NamedTuple):
    """What a strategy returns for a step."""

    commit: Tensor  # (B, L) bool, a subset of masked
    candidates: Tensor  # (B, L) bool, the positions it chose from; a fallback may lie outside
    state: State = ()
    remask: Tensor | None = None  # (B, L) bool, positions to mask again
    final: Tensor | None = None  # (B, L) bool, never changed again; None: everything known
    edit: Tensor | None = None  # (B, L) bool, committed positions that take the new proposal

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def written(self) -> Tensor:
        """(B, L) bool: the positions that take the proposal, by a commit or an edit."""
        return self.commit if self.edit is None else self.commit | self.edit


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
        """Return (B,) long: the fewest commits. The fallback supplies missing candidates."""
        raise NotImplementedError

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        """Return True if this step is certain to commit nothing, so it needs no forward pass."""
        return False


class Strategy(Spec):
    """Where to look for positions to commit. One file in `strategies/`."""

    registry: ClassVar[str] = "strategies"
    needs: ClassVar[tuple[str, ...]] = ()
    # True if it may remask or edit; then no step is certain to be a no-op.
    revises: ClassVar[bool] = False
    reads_copies: ClassVar[bool] = False  # True if `copied` may return positions
    recommended: ClassVar[str] = ""  # the spec to try first, if it differs from the defaults
    show_all: ClassVar[str] = ""  # the option with which it hides nothing, such as "horizon=0"
    selector: Selector

    @classmethod
    def recommended_spec(cls) -> str:
        """Return the spec to try first: `recommended`, or the defaults with their selector.

        `wavefront list strategies` and the server's page show it. It is no ranking.
        """
        if "recommended" in cls.__dict__:  # that of a base class names the base class
            return cls.recommended
        return cls.default_spec()

    @classmethod
    def default_spec(cls) -> str:
        """Return the spec of the defaults, with the selector, which a repr may leave out."""
        every: Any = cls
        shown = [one for one in fields(every) if one.repr or one.name == "selector"]
        stated = [(one.name, default_of(one)) for one in shown]
        options = [f"{name}={value!r}" for name, value in stated if value is not MISSING]
        return f"{cls.spec_name()}({', '.join(options)})"

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

    def readable(self, canvas: Canvas, state: State) -> Tensor:
        """Return (B, L) bool: the masked positions that a full trace reads."""
        return canvas.masked

    def attended(self, canvas: Canvas, state: State) -> Tensor | None:
        """Return (B, L) bool: the positions the model attends to; None means all but padding."""
        return None

    def hides(self, length: int) -> bool:
        """Return whether `attended` may hide a position of an answer of `length` positions.

        A block-causal model needs a strategy that hides nothing inside a block. Override it if
        that depends on the length.
        """
        canvas = blank([[0]], length, mask_id=0, pad_id=0)
        return self.attended(canvas, self.init(canvas)) is not None

    def copied(self, canvas: Canvas, state: State) -> Tensor | None:
        """Return (B, L) bool: the positions with a masked copy; None means none.

        A committed position of these is read at its copy, which does not see the position's own
        token. A copy attends to every position but its own, and to the other copies. No position
        attends to a copy.
        """
        return None

    def step(self, view: View, state: State) -> Decision:
        """Return the decision for every row."""
        raise NotImplementedError

    def forced(self, canvas: Canvas, state: State, progress: RowProgress) -> Tensor | None:
        """Return (B, L) bool: the masked positions that the next step commits in any case.

        None means that there are none. The last step of a decode commits all of them anyway.
        """
        return None

    def without(self, decision: Decision, dropped: Tensor, *, view: View, state: State) -> Decision:
        """Return a decision without the commits and edits `dropped` (B, L) bool.

        The engine calls it if a constraint on the answer does not allow them together with the
        others. Override it if the new state depends on what the step writes.

        Args:
            decision: What `step` returned, limited to legal positions.
            dropped: The positions that must not be written.
            view: What `step` read.
            state: The state before the step.
        """
        edit = None if decision.edit is None else decision.edit & ~dropped
        return decision._replace(commit=decision.commit & ~dropped, edit=edit)

    def width(self, length: int, steps: int) -> int:
        """Return how many candidates there usually are; a wrong guess costs only speed."""
        return length

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        """Return True if this step is certain to change nothing."""
        return not self.revises and self.selector.is_noop_step(length, steps, step)

    def must_commit(self, length: int, steps: int, step: int) -> bool:
        """Return True if this step is certain to commit something, in a row with masks."""
        if self.is_noop_step(length, steps, step):
            return False
        progress = RowProgress(*(torch.tensor([n]) for n in (length, steps, step, 1, 0)))
        return bool(self.selector.min_commits(progress) > 0)

    def budget(self, length: int, steps: int) -> int:
        """Return the maximum number of steps to fill `length` positions, if T is `steps`."""
        return steps

    def front(self, state: State) -> Tensor | None:
        """Return (B, L) bool: the front kept for the next step, or None; viewers show it."""
        return None

    def validate(self, length: int, steps: int) -> None:
        """Raise OptionError if this strategy cannot fill `length` positions in `steps` steps."""


def most_steps(strategy: Strategy, length: int, steps: int) -> int:
    """Return the maximum number of steps of a row: the strategy's budget, up to a high limit.

    The last step commits what is left, so the limit ends a decode whose options make it too long.
    """
    return min(strategy.budget(length, steps), max(MIN_STEP_LIMIT, 8 * steps))


def required_stats(strategy: Strategy) -> tuple[str, ...]:
    """Return the optional statistics that a strategy and its selector need, without duplicates."""
    return tuple(sorted({*strategy.needs, *strategy.selector.needs}))


def check_selector(strategy: Strategy) -> None:
    """Raise `StrategyError` unless the strategy has a selector."""
    if not isinstance(getattr(strategy, "selector", None), Selector):
        raise StrategyError(
            f"{type(strategy).__name__} has no selector, which says how many positions to commit; "
            "add the field `selector: wavefront.Selector = field(default=Quota(), repr=False)`."
        )


def check_decision(strategy: Strategy, decision: object) -> None:
    """Raise `StrategyError` unless `step` returned a decision."""
    if not isinstance(decision, Decision):
        raise StrategyError(
            f"{strategy!r}: step returns a {type(decision).__name__}, not a wavefront.Decision."
        )
