"""Narrow: what a strategy with a horizon hides from the model is not computed.

Hidden places are no keys, so leaving them out changes no number; a long canvas then costs what a
short one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from wavefront.core.state import Config, DecodeState, Step
from wavefront.engine.cuda_graphs import Call, eagerly
from wavefront.engine.step import commit_step, computed, forward, pack_flags
from wavefront.engine.window import WindowSizer, narrowed, needed
from wavefront.models.loader import Model


class Narrow:
    """A `StepFn` that computes only what is in sight."""

    def __init__(self, length: int, call: Call = eagerly) -> None:
        self._span, self._call = WindowSizer(length), call

    def __call__(
        self, model: Model, config: Config, rows: DecodeState, width: int, padded: bool
    ) -> tuple[DecodeState, Sequence[Step], Tensor]:
        size = self._span.size(config, rows)

        def step(tree: DecodeState) -> tuple[Any, Any]:
            made = narrow_step(model, config, tree, width, size)
            return made[0], (made[1], made[2], pack_flags(needed(config, made[0])))

        rows, (steps, flags, need) = self._call((config, width, size), step, rows)
        self._span.tell(need)
        return rows, steps, flags

    def restart(self) -> None:
        """Another decode begins."""
        self._span.forget()


def narrow_step(
    model: Model, config: Config, rows: DecodeState, width: int, size: int
) -> tuple[DecodeState, Sequence[Step], Tensor]:
    """One step that computes `size` places of every row and reads at most `width`. Pure."""
    aim = narrowed(model, config, rows, width, size)
    states = forward(model, config, rows, aim.at, padded=True, window=aim.window)
    cost = computed(config, rows.canvas) * size // rows.canvas.tokens.shape[1]
    return commit_step(model, config, rows, aim, states, cost)
