"""Strategies that decode like `wavefront` until they fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wavefront.core.strategy import Decision, RowProgress, State, View
from wavefront.strategies.wavefront import Wavefront


def _fail(manner: str, board: Tensor) -> None:
    if manner == "error":
        raise RuntimeError("this strategy fails")
    if manner == "nan":  # no position has the number of a NaN
        board.gather(-1, (board.float() * float("nan")).long())
    if manner == "huge":  # no tensor holds this number
        board.floor_divide(10**31)
    if manner == "memory":
        raise MemoryError


@dataclass(frozen=True)
class Failing(Wavefront):
    """Fails in a method at step `at`, in one of several manners."""

    at: int = 0
    method: str = "step"
    manner: str = "error"

    def _check(self, method: str, board: Tensor, step: Tensor) -> None:
        if method == self.method and bool((step >= self.at).any()):
            _fail(self.manner, board)

    def init(self, canvas: Any) -> State:
        if self.method == "init":
            _fail(self.manner, canvas.tokens)
        return super().init(canvas)

    def candidates(self, canvas: Any, state: State, progress: RowProgress) -> Tensor:
        self._check("candidates", canvas.tokens, progress.step)
        return super().candidates(canvas, state, progress)

    def step(self, view: View, state: State) -> Decision:
        self._check("step", view.proposal, view.progress.step)
        return super().step(view, state)
