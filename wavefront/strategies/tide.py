"""Tide: our own wave. Wavefront with six options, each off by default, that compose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError, check_float, check_int
from wavefront.core.masks import FAR, density, distance, first, positions, top
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors._adaptive import Adaptive, turn
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.wavefront import Wavefront


class TideState(NamedTuple):
    """What a tide carries from step to step."""

    front: Tensor  # (B, L) bool
    waited: Tensor  # (B,) long: how often the leftmost masked place was passed over
    max_remasks: Tensor  # (B, L) long: how often a place was taken back
    final: Tensor  # (B, L) bool: decided for good


@dataclass(frozen=True)
class Tide(Strategy):
    """The wavefront, with options of our own; without any of them it is wavefront.

    `rounds` (with an adaptive take): what a step commits moves the front on within the step, and
    its take is asked again on the same forward, while the expected number of wrong tokens of the
    step stays within `risk`. With a radius of 2 nothing else lets a wave commit many at once.
    `horizon`: masks further than so many places ahead of the front are hidden from the model, so
    that a long canvas looks like a short one.
    `soft`: no radius; confidence times the density of the known, a Gaussian of so many places.
    `patience`: a leftmost place passed over for so many steps goes next, whatever its score.
    `band`: tokens within so many places of a mask stay provisional; one whose probability in place
    falls below `doubt` is taken back, at most `flips` times, fewer in a step than are committed.
    `temper`: a confidence may mean less far from the known; its logit is divided by a temperature
    by distance, the first for distance 1, the last for all beyond (see runs/calibrate.py).
    """

    example: ClassVar[str] = "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.98))"

    size: int = 8  # F
    radius: int = 2  # R
    cascade_rounds: int = field(default=0, repr=False)
    risk: float = field(default=0.5, repr=False)
    horizon: int = field(default=0, repr=False)
    density_sigma: float = field(default=0.0, repr=False)
    patience: int = field(default=0, repr=False)
    revisable_band: int = field(default=0, repr=False)
    remask_below: float = field(default=0.1, repr=False)
    max_remasks: int = field(default=2, repr=False)
    distance_temperatures: tuple[float, ...] = field(default=(), repr=False)
    selector: Selector = field(default=Quota(), repr=False)

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)
        check_int("radius", self.radius, 1)
        for name in ("cascade_rounds", "horizon", "patience", "revisable_band", "max_remasks"):
            check_int(name, getattr(self, name), 0)
        check_float("risk", self.risk, 0)
        check_float("density_sigma", self.density_sigma, 0, 100)  # more would only fill memory
        check_float("remask_below", self.remask_below, 0, 1)
        if not isinstance(self.distance_temperatures, tuple):
            raise OptionError(
                f"distance_temperatures lists temperatures, as (1.0, 1.2), not {self.distance_temperatures!r}."
            )
        for temperature in self.distance_temperatures:
            check_float("a temperature of temper", temperature, 1e-3)
        if self.cascade_rounds and not isinstance(self.selector, Adaptive):
            raise OptionError(
                "cascade_rounds asks its take again within a step, and the quota is spent by then: "
                "give an adaptive one, as in tide(cascade_rounds=4, selector=threshold(tau=0.9))."
            )

    # Both follow from `band`: only then is anything taken back, and judged by its own probability.
    @property
    def revises(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.revisable_band > 0

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("current_logp",) if self.revisable_band else ()

    def init(self, canvas: Canvas) -> TideState:
        zero = torch.zeros_like(canvas.tokens)
        return TideState(first(canvas.masked, self.size), zero[:, 0], zero, canvas.known)

    def step(self, view: View, state: TideState) -> Decision:
        view = self._judged(view)._replace(progress=self._paced(view.progress))
        front = state.front
        if self.patience:
            due = self._due(view.masked, state)
            view = view._replace(score=view.score.masked_fill(due, float("inf")))
            # One that no rule would accept goes alone; a quota gives the rest to the front.
            alone = due.any(-1, keepdim=True) & isinstance(self.selector, Adaptive)
            front = torch.where(alone, due, front | due)
        commit, scope = self.selector.select(view, front, view.masked), front
        for _ in range(self.cascade_rounds):
            asked, more = self._more(view, commit, self._ahead(state))
            commit, scope = commit | more, scope | asked
        remask = self._doubted(view, state, commit)
        masked = (view.masked & ~commit) | remask
        grown = top(view.score, masked & self._near(~masked & (view.known | commit)), self.size)
        moved = commit.any(-1, keepdim=True)  # a zero quota leaves the front as it is
        max_remasks = state.max_remasks + remask
        calm = (distance(masked) > self.revisable_band) | (max_remasks >= self.max_remasks)
        final = state.final | (~masked & (view.known | commit) & calm)
        still = (first(view.masked, 1) & first(masked, 1)).any(-1)
        waited = torch.where(still, state.waited + moved[:, 0], 0)
        after = TideState(torch.where(moved, grown, state.front), waited, max_remasks, final)
        return Decision(commit, scope, after, *((remask, final) if self.revisable_band else ()))

    def _judged(self, view: View) -> View:
        """Confidences by distance, and scores by density: both change a log-confidence."""
        score, stats = view.score, view.stats
        if self.distance_temperatures:
            away, scale = (
                distance(view.known),
                torch.full_like(score, self.distance_temperatures[-1]),
            )
            for number in range(len(self.distance_temperatures), 0, -1):
                scale = scale.masked_fill(away <= number, self.distance_temperatures[number - 1])
            odds = stats.logp - torch.log(-torch.expm1(stats.logp))  # infinite at p = 1, and stays
            judged = F.logsigmoid(odds / scale)
            score = score + torch.where(view.masked, judged - stats.logp, 0.0).nan_to_num(0.0)
            stats = stats._replace(logp=torch.where(view.masked, judged, stats.logp))
        if self.density_sigma:
            # What lies before the text counts as known.
            before = (view.known | view.masked).long().cumsum(-1) == 0
            score = score + density(view.known | before, self.density_sigma).log()
        return view._replace(score=score, stats=stats)

    def _paced(self, progress: RowProgress) -> RowProgress:
        """What was taken back is filled again, so the quota is shared over what is left."""
        if not self.revisable_band:
            return progress
        share = -(-progress.left // (progress.steps - progress.step).clamp(min=1))
        return progress._replace(
            length=share * progress.steps
        )  # step and steps stay: they seed noise

    def _near(self, known: Tensor) -> Tensor:
        return torch.ones_like(known) if self.density_sigma else distance(known) <= self.radius

    def _due(self, masked: Tensor, state: TideState) -> Tensor:
        """(B, L) bool: the leftmost place, where it was passed over long enough."""
        return first(masked, 1) & (state.waited >= self.patience)[:, None]

    def _ahead(self, state: TideState) -> Tensor:
        """(B, L) bool: the places up to the horizon; all without one."""
        place = positions(state.front)
        edge = torch.where(state.front, place, -FAR).amax(-1, keepdim=True)
        return (place <= edge + self.horizon) | (self.horizon == 0)

    def _more(self, view: View, commit: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L) bool twice: the front moved on over `commit`, and what it lets go too."""
        assert isinstance(self.selector, Adaptive)
        grown = view.masked & ~commit & self._near(view.known | commit) & among
        asked = top(view.score, grown & (view.score > float("-inf")), self.size)
        sure = asked & self.selector.accept(view, asked)
        remask_below = -torch.expm1(view.stats.logp)
        when = turn(view, sure, remask_below)
        spent = torch.where(commit, remask_below, 0.0).sum(-1, keepdim=True)
        owed = torch.where(sure, remask_below, 0.0).gather(-1, when.argsort(-1)).cumsum(-1)
        return asked, sure & (spent + owed.gather(-1, when) <= self.risk)

    def _doubted(self, view: View, state: TideState, commit: Tensor) -> Tensor:
        """(B, L) bool: what is taken back, the least probable first, and fewer than committed."""
        own = view.stats.current_logp
        if not self.revisable_band or own is None:
            return torch.zeros_like(commit)
        open_ = view.known & (view.slot >= 0) & ~state.final
        return top(-own, open_ & (own.exp() < self.remask_below), (commit.sum(-1) - 1).clamp(min=0))

    def candidates(self, canvas: Canvas, state: TideState, progress: RowProgress) -> Tensor:
        if self.density_sigma:
            wanted = canvas.masked
        else:
            start = state.front | self._due(canvas.masked, state) if self.patience else state.front
            far = self.radius * (
                self.cascade_rounds + 1
            )  # each round moves the front by the radius
            near = canvas.masked & (distance(canvas.known | start) <= far)
            short = state.front.sum(-1) < self.selector.min_commits(self._paced(progress))
            wanted = torch.where(short[:, None], canvas.masked, start | near)
        if self.revisable_band:
            wanted = wanted | (canvas.known & (canvas.slot >= 0) & ~state.final)
        return wanted

    def attended(self, canvas: Canvas, state: TideState) -> Tensor | None:
        """(B, L) bool: what is known, and masks up to the horizon; None without one."""
        return canvas.known | (canvas.masked & self._ahead(state)) if self.horizon else None

    def front(self, state: TideState) -> Tensor:
        return state.front

    def validate(self, length: int, steps: int) -> None:
        Wavefront(self.size, selector=self.selector).validate(length, steps)

    def width(self, length: int, steps: int) -> int:
        if self.density_sigma or (steps < length and self.selector.planned):
            return length
        return self.size + 10 * self.radius * (self.cascade_rounds + 1) + 2 * self.revisable_band
