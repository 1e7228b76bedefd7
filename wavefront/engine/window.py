"""Window: which places of every row a step computes, a fixed number of them, and how many.

Places that a strategy hides from the model (a horizon) are no keys, so they need not be computed.
How many are in sight is told a step late and rounded up to a bucket, so shapes are few and nobody
waits.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.masks import distance, ordered
from wavefront.core.state import Config, DecodeState, candidates
from wavefront.engine.step import AsyncHostCopy, StepPlan, flag_lag
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.loader import Model

BUCKET = 64


def hides(config: Config, canvas: Canvas, model: Model) -> bool:
    """Whether the strategy hides places of this canvas, and the model can leave them out."""
    strategy = config.strategy
    able = getattr(model, "windows", True)
    return able and strategy.attended(canvas, strategy.init(canvas)) is not None


def inside(config: Config, rows: DecodeState, wanted: Tensor) -> Tensor:
    """(B, L) bool: what a step must compute: all that is in sight, and all that is wanted."""
    seen = config.strategy.attended(rows.canvas, rows.state)
    board = rows.canvas.real if seen is None else seen & rows.canvas.real
    return board | wanted


def needed(config: Config, rows: DecodeState) -> Tensor:
    """Scalar long: how many places the next step of these rows must compute, at most."""
    return inside(config, rows, candidates(config, rows)).sum(-1).max()


@compiled_with_model
def narrowed(model: Model, config: Config, rows: DecodeState, width: int, size: int) -> StepPlan:
    """A step that computes `size` places of every row, which hold all that is in sight."""
    wanted = candidates(config, rows)
    within = inside(config, rows, wanted)
    window = choose_window(wanted, within, torch.zeros_like(wanted), size)  # what is read first
    overflow, held = wanted.sum(-1) > width, within.sum(-1) > size
    return StepPlan(wanted, window[:, :width], overflow, window, held)


class WindowSizer:
    """How many places of a row to compute, learnt from steps as late as flags are read."""

    def __init__(self, length: int) -> None:
        self.length, self._told = length, deque[AsyncHostCopy]()
        self._size = 0

    def size(self, config: Config, rows: DecodeState) -> int:
        """Enough for the next step as far as the host knows; the first step is asked for."""
        late = flag_lag(rows.canvas)
        if not self._size:
            self._size = self._bucket(int(needed(config, rows)), late)
        while len(self._told) > late:
            self._size = self._bucket(self._told.popleft().read()[0], late)
        return self._size

    def tell(self, need: Tensor) -> None:
        """What the step `told`: how many places the next one needs."""
        self._told.append(AsyncHostCopy(need))

    def forget(self) -> None:
        self._size = 0
        self._told.clear()

    def _bucket(self, need: int, late: int) -> int:
        room = need + late * BUCKET // 4  # it grows while the count is on its way
        return min(self.length, -(-room // BUCKET) * BUCKET)


def choose_window(wanted: Tensor, changed: Tensor, asked: Tensor, size: int) -> Tensor:
    """(B, size) long: the wanted, the changed, the asked for, then the nearest to the wanted."""
    length = wanted.shape[-1]
    order = distance(wanted).clamp(max=length).int() + 3 * length
    order = torch.where(asked, order - length, order)
    order = torch.where(changed, order * 0 + length, order)
    order = torch.where(wanted, 0, order)
    return ordered(order, size)
