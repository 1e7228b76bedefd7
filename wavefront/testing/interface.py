"""What a strategy has to be before a law can be tried on it; said first, and in a sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavefront.core.state import Config, start
from wavefront.core.strategy import Decision, Selector, Strategy, View
from wavefront.testing.laws import require
from wavefront.testing.simulation import board, budgets, fill


def has_the_form(strategy: Any) -> None:
    """A `Strategy` with a take, whose `step` answers a view with boards of its shape."""
    name = type(strategy).__name__
    if isinstance(strategy, type):
        raise TypeError(f"check wants a strategy, not its class: check({strategy.__name__}()).")
    require(isinstance(strategy, Strategy), f"{name} is not a wavefront.Strategy.")
    require(
        isinstance(getattr(strategy, "selector", None), Selector),
        f"{name} has no take, which says how many places are committed: give it the field "
        "`take: wavefront.Take = field(default=Quota(), repr=False)`.",
    )
    require(type(strategy).step is not Strategy.step, f"{name} has no method step(view, state).")
    for steps in budgets(strategy)[:1]:
        canvas = board(0)
        config, count = Config(strategy=strategy, fixed_budget=True), canvas.tokens.shape[0]
        rows = start(canvas, config, [steps] * count, range(count))
        rows = fill(rows, torch.full(canvas.tokens.shape, 0.5))
        seen = (rows.score, rows.stats, rows.proposal, *canvas[1:], rows.progress)
        _decides(strategy, View(*seen), rows.state)


def _decides(strategy: Strategy, view: View, state: Any) -> None:
    said: Any = strategy.step(view, state)
    require(
        isinstance(said, Decision),
        f"{strategy!r}: step returns a {type(said).__name__}, not a wavefront.Decision.",
    )
    for field in ("commit", "scope", "remask", "final"):
        part = getattr(said, field)
        if part is None and field in {"remask", "final"}:
            continue
        require(
            isinstance(part, Tensor)
            and part.dtype == torch.bool
            and part.shape == view.masked.shape,
            f"{strategy!r}: the {field} of a decision is a bool tensor of shape (rows, places), "
            f"here {tuple(view.masked.shape)}, not {_what(part)}.",
        )


def _what(part: Any) -> str:
    if not isinstance(part, Tensor):
        return f"a {type(part).__name__}"
    return f"{str(part.dtype).removeprefix('torch.')} of shape {tuple(part.shape)}"
