"""What a strategy has to be before a law can be tried on it; said first, and in a sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavefront.core.state import Config, start
from wavefront.core.strategy import Decision, Schedule, Take, View
from wavefront.testing.laws import require
from wavefront.testing.simulation import board, budgets, fill


def has_the_form(schedule: Any) -> None:
    """A `Schedule` with a take, whose `step` answers a view with boards of its shape."""
    name = type(schedule).__name__
    if isinstance(schedule, type):
        raise TypeError(f"check wants a strategy, not its class: check({schedule.__name__}()).")
    require(isinstance(schedule, Schedule), f"{name} is not a wavefront.Schedule.")
    require(
        isinstance(getattr(schedule, "take", None), Take),
        f"{name} has no take, which says how many places are committed: give it the field "
        "`take: wavefront.Take = field(default=Quota(), repr=False)`.",
    )
    require(type(schedule).step is not Schedule.step, f"{name} has no method step(view, state).")
    for steps in budgets(schedule)[:1]:
        canvas = board(0)
        config, count = Config(schedule=schedule, fixed_budget=True), canvas.tokens.shape[0]
        rows = start(canvas, config, [steps] * count, range(count))
        rows = fill(rows, torch.full(canvas.tokens.shape, 0.5))
        seen = (rows.score, rows.stats, rows.proposal, *canvas[1:], rows.clock)
        _decides(schedule, View(*seen), rows.state)


def _decides(schedule: Schedule, view: View, state: Any) -> None:
    said: Any = schedule.step(view, state)
    require(
        isinstance(said, Decision),
        f"{schedule!r}: step returns a {type(said).__name__}, not a wavefront.Decision.",
    )
    for field in ("commit", "scope", "remask", "final"):
        part = getattr(said, field)
        if part is None and field in {"remask", "final"}:
            continue
        require(
            isinstance(part, Tensor)
            and part.dtype == torch.bool
            and part.shape == view.masked.shape,
            f"{schedule!r}: the {field} of a decision is a bool tensor of shape (rows, places), "
            f"here {tuple(view.masked.shape)}, not {_what(part)}.",
        )


def _what(part: Any) -> str:
    if not isinstance(part, Tensor):
        return f"a {type(part).__name__}"
    return f"{str(part.dtype).removeprefix('torch.')} of shape {tuple(part.shape)}"
