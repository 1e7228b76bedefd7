"""Laws of a strategy that need a model: a seeded toy decodes for real."""

from __future__ import annotations

from typing import Any

import torch

from wavefront.canvas import Canvas, blank
from wavefront.engine import advance, decode
from wavefront.models.toy import toy
from wavefront.rows import Config, Step
from wavefront.schedule import Schedule
from wavefront.stats import Sampling
from wavefront.testing.laws import require
from wavefront.testing.simulate import PLACES, budgets
from wavefront.text import visible
from wavefront.trace import Recorder


def _model_and_canvas() -> tuple[Any, Canvas]:
    model = toy(seed=3)
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    return model, blank(prompts, PLACES, mask_id=model.mask_id, pad_id=model.pad_id)


def _decode(
    schedule: Schedule, sampling: Sampling, steps: int, *, wide: bool = False
) -> tuple[list[Step], Recorder]:
    """A decode of two rows, recorded; `wide` scores every place whatever the strategy reaches."""

    def everywhere(model: Any, config: Config, rows: Any, width: int, padded: bool) -> Any:
        return advance(model, config, rows, PLACES, padded)

    model, canvas = _model_and_canvas()
    config = Config(schedule=schedule, sampling=sampling)
    run = everywhere if wide else advance
    found = decode(model, canvas, config, steps=[steps] * 2, seeds=[0, 1], run=run)
    recorder = Recorder(canvas, model.mask_id)
    return list(recorder.watch(found)), recorder


def scoring_reach_is_enough(schedule: Schedule) -> None:
    """Scoring only the places in reach commits what scoring every place commits."""
    for steps in budgets(schedule):
        narrow, _ = _decode(schedule, Sampling(), steps)
        whole, _ = _decode(schedule, Sampling(), steps, wide=True)
        pairs = zip(narrow, whole, strict=True)
        require(
            all(torch.equal(a.canvas.tokens, b.canvas.tokens) for a, b in pairs),
            f"{schedule!r} commits other tokens when only its reach is scored.",
        )


def a_trace_replays(schedule: Schedule) -> None:
    """A recorded decode, replayed, gives the same canvas after every step."""
    for steps in budgets(schedule):
        found, recorder = _decode(schedule, Sampling(), steps)
        for step, canvas in zip(found, recorder.trace().replay(), strict=True):
            require(
                all(torch.equal(a, b) for a, b in zip(step.canvas, canvas, strict=True)),
                f"{schedule!r}: the replay of step {step.number} differs from the decode.",
            )


def stop_keeps_the_text(schedule: Schedule) -> None:
    """`eos="stop"` gives the visible text of `keep`, sooner."""
    slot = _model_and_canvas()[1].slot
    for steps in budgets(schedule):
        kept, _ = _decode(schedule, Sampling(), steps)
        answer = kept[-1].canvas.tokens
        # A token that this decode does produce, so that stopping has something to act on.
        stop_ids = (int(answer[slot >= 0].mode().values),)
        stopped, _ = _decode(schedule, Sampling(eos="stop", stop_ids=stop_ids), steps)
        for row in range(2):
            texts = [
                visible(run[-1].canvas.tokens[row][slot[row] >= 0].tolist(), stop_ids)
                for run in (kept, stopped)
            ]
            require(texts[0] == texts[1], f"{schedule!r}: stopping early changes the text.")
