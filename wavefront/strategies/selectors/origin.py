"""Origin: Dream's `alg="origin"`, each place settled by chance, whatever its confidence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wavefront.core import budget, noise
from wavefront.core.errors import real
from wavefront.core.strategy import Clock, Selector, View


@dataclass(frozen=True)
class Origin(Selector):
    """Every place of the scope with probability 1 - t_{i+1} / t_i, all of them at the last step."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        real("eps", self.eps, 1e-12, 0.999)

    def __call__(self, view: View, among: Tensor, reserve: Tensor) -> Tensor:
        clock = view.clock
        share = budget.dream_fraction(clock.steps, clock.step, self.eps)
        draw = noise.uniform(noise.key(clock.seed, clock.step, view.slot, noise.ACCEPT))
        return among & (draw < share[:, None])

    def least(self, clock: Clock) -> Tensor:
        return clock.left * 0  # chance may settle nothing, so it insists on nothing
