"""One pure step of one group, for tests that look inside the engine."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from wavefront.core.state import Config, DecodeState, Step
from wavefront.engine.step import BatchState, StepShape, take_step
from wavefront.models.protocol import Model


def advance(
    model: Model, config: Config, state: DecodeState, width: int, padded: bool
) -> tuple[DecodeState, Sequence[Step], Tensor]:
    """Take one step that computes every position and reads at most `width` of each row."""
    shape = StepShape(width, padded=padded)
    made = take_step(model, (config,), BatchState((state,)), shape=shape)
    return made.batch.groups[0], made.steps[0], made.flags
