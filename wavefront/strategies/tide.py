"""Tide: our own strategy. It is wavefront with cascade rounds, a horizon and a revisable band."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core.bounds import MAX_POSITIONS, MAX_STEPS, FloatRange, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError
from wavefront.core.masks import (
    FAR,
    best_first,
    distance,
    first,
    positions,
    rank_in_order,
    top,
)
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors._adaptive import Adaptive
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.wavefront import Wavefront

MAX_ROUNDS = 64  # each round costs about as much as a step without rounds


class TideState(NamedTuple):
    """What tide carries from step to step."""

    front: Tensor  # (B, L) bool
    remasks: Tensor  # (B, L) long: how often a position was remasked
    final: Tensor  # (B, L) bool: never remasked again


class _CascadeOrder:
    """The orders of the positions that all rounds of a step share, so they are sorted once."""

    def __init__(self, by_score: Tensor, logp: Tensor) -> None:
        """Sort the positions by their error. Ties go to the better score, then to the left."""
        self.by_score = by_score
        self.error = -torch.expm1(logp)  # the probability that the proposal is wrong
        errors = self.error.gather(-1, by_score)
        self.by_error = by_score.gather(-1, errors.argsort(dim=-1, stable=True))

    def added_error(self, accepted: Tensor) -> Tensor:
        """Return (B, L): the sum of the errors up to each accepted position, smallest first."""
        length = accepted.shape[-1]
        ranks = rank_in_order(accepted, self.by_error)
        # Without gaps between them, so that the sum does not depend on other positions.
        errors = F.pad(torch.zeros_like(self.error), (0, 1))
        errors = errors.scatter(
            -1, torch.where(accepted, ranks, length), torch.where(accepted, self.error, 0.0)
        )
        return errors.cumsum(-1).gather(-1, ranks.clamp(min=0))


@dataclass(frozen=True)
class Tide(Strategy):
    """Wavefront with cascade rounds and a horizon, and a revisable band, which is off by default.

    With all of them off it equals wavefront:
    `tide(cascade_rounds=0, horizon=0, selector=quota())`.

    `cascade_rounds` (with an adaptive selector): after a commit, move the front and select again
    on the same forward pass, up to this many rounds. The expected number of wrong tokens per step
    stays within `risk`. Without rounds, a step commits at most the `size` positions of the front.
    `horizon`: hide masks more than this many positions ahead of the front from the model, so that
    a long canvas looks like a short one; 0 hides nothing.
    `revisable_band`: a token within this many positions of a mask may be remasked. It is remasked
    when its probability falls below `remask_below`, at most `max_remasks` times; a step remasks
    fewer tokens than it commits.
    """

    show_all: ClassVar[str] = "horizon=0"
    size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 8  # F
    radius: Annotated[int, IntRange(1, MAX_POSITIONS)] = 2  # R
    # Shown in every spec, like `horizon` and `selector`: a recorded spec says what was decoded.
    cascade_rounds: Annotated[int, IntRange(0, MAX_ROUNDS)] = 8
    risk: Annotated[float, FloatRange(0, MAX_POSITIONS)] = field(default=0.5, repr=False)
    horizon: Annotated[int, IntRange(0, MAX_POSITIONS)] = 64
    revisable_band: Annotated[int, IntRange(0, MAX_POSITIONS)] = field(default=0, repr=False)
    remask_below: Annotated[float, FloatRange(0, 1)] = field(default=0.1, repr=False)
    max_remasks: Annotated[int, IntRange(0, MAX_STEPS)] = field(default=2, repr=False)
    selector: Selector = field(default=Threshold(0.98))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cascade_rounds and not isinstance(self.selector, Adaptive):
            raise OptionError(
                "cascade_rounds needs an adaptive selector, because a quota is used up after one "
                f"round. Write tide(cascade_rounds=0, selector={self.selector!r}), or try "
                "tide(cascade_rounds=4, selector=threshold(tau=0.9)).",
                option="cascade_rounds",
                value=self.cascade_rounds,
            )

    # Both depend on `revisable_band`: only then are tokens remasked, by their own probability.
    @property
    def revises(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.revisable_band > 0

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("current_logp",) if self.revisable_band else ()

    def init(self, canvas: Canvas) -> TideState:
        zero = torch.zeros_like(canvas.tokens)
        return TideState(first(canvas.masked, self.size), zero, canvas.known)

    def step(self, view: View, state: TideState) -> Decision:
        view = view._replace(progress=self._remaining_progress(view.progress))
        front = state.front
        commit, candidates = self.selector.select(view, front, view.masked), front
        order = best_first(view.score)
        if self.cascade_rounds:
            cascade = _CascadeOrder(order, view.stats.logp)
            allowed = self._within_horizon(state)
            for _ in range(self.cascade_rounds):
                next_front, more = self._cascade(view, commit, allowed, cascade=cascade)
                commit, candidates = commit | more, candidates | next_front
        remask = self._remask(view, state, commit)
        masked = (view.masked & ~commit) | remask
        near_known = masked & self._near(~masked & (view.known | commit))
        grown = top(view.score, near_known, self.size, order=order)
        moved = commit.any(-1, keepdim=True)  # a zero quota leaves the front as it is
        remasks = state.remasks + remask
        settled = (distance(masked) > self.revisable_band) | (remasks >= self.max_remasks)
        final = state.final | (~masked & (view.known | commit) & settled)
        after = TideState(torch.where(moved, grown, state.front), remasks, final)
        return Decision(
            commit, candidates, after, *((remask, final) if self.revisable_band else ())
        )

    def _remaining_progress(self, progress: RowProgress) -> RowProgress:
        """Return the progress with the quota divided over the remaining masked positions."""
        if not self.revisable_band:
            return progress
        share = -(-progress.left // (progress.steps - progress.step).clamp(min=1))
        # step and steps stay the same: they seed the noise.
        return progress._replace(length=share * progress.steps, block=None)

    def _near(self, known: Tensor) -> Tensor:
        """Return (B, L) bool: the positions within the radius."""
        return distance(known) <= self.radius

    def _within_horizon(self, state: TideState) -> Tensor:
        """Return (B, L) bool: the positions up to the horizon; all without one."""
        here = positions(state.front)
        edge = torch.where(state.front, here, -FAR).amax(-1, keepdim=True)
        return (here <= edge + self.horizon) | (self.horizon == 0)

    def _cascade(
        self, view: View, commit: Tensor, allowed: Tensor, *, cascade: _CascadeOrder
    ) -> tuple[Tensor, Tensor]:
        """Return (B, L) bool twice: the front after `commit`, and what to commit from it."""
        assert isinstance(self.selector, Adaptive)
        grown = view.masked & ~commit & self._near(view.known | commit) & allowed
        scored = grown & (view.score > float("-inf"))
        front = top(view.score, scored, self.size, order=cascade.by_score)
        accepted = front & self.selector.accept(view, front)
        spent = torch.where(commit, cascade.error, 0.0).sum(-1, keepdim=True)
        return front, accepted & (spent + cascade.added_error(accepted) <= self.risk)

    def _remask(self, view: View, state: TideState, commit: Tensor) -> Tensor:
        """Return (B, L) bool: the tokens to remask, the least probable first."""
        logp = view.stats.current_logp
        if not self.revisable_band or logp is None:
            return torch.zeros_like(commit)
        revisable = view.known & (view.slot >= 0) & ~state.final
        fewer = (commit.sum(-1) - 1).clamp(min=0)
        return top(-logp, revisable & (logp.exp() < self.remask_below), fewer)

    def candidates(self, canvas: Canvas, state: TideState, progress: RowProgress) -> Tensor:
        far = self.radius * (self.cascade_rounds + 1)  # a round moves the front by the radius
        near = canvas.masked & (distance(canvas.known | state.front) <= far)
        short = state.front.sum(-1) < self.selector.min_commits(self._remaining_progress(progress))
        readable = torch.where(short[:, None], canvas.masked, state.front | near)
        if self.revisable_band:
            readable = readable | (canvas.known & (canvas.slot >= 0) & ~state.final)
        return readable

    def attended(self, canvas: Canvas, state: TideState) -> Tensor | None:
        """Return (B, L) bool: known tokens, and masks up to the horizon; None without one."""
        if not self.horizon:
            return None
        return canvas.known | (canvas.masked & self._within_horizon(state))

    def hides(self, length: int) -> bool:
        # The front is never empty before the end, and nothing is farther ahead than the length.
        return 0 < self.horizon < length

    def front(self, state: TideState) -> Tensor:
        return state.front

    def validate(self, length: int, steps: int) -> None:
        Wavefront(self.size, selector=self.selector).validate(length, steps)

    def width(self, length: int, steps: int) -> int:
        if steps < length and self.selector.planned:
            return length
        return self.size + 10 * self.radius * (self.cascade_rounds + 1) + 2 * self.revisable_band
