"""Check the interface of a strategy before any law, so that simple mistakes get clear errors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavefront.core.errors import SpecError, StrategyError
from wavefront.core.spec import check_frozen
from wavefront.core.state import Config, start
from wavefront.core.strategy import Strategy, View, check_decision, check_selector
from wavefront.testing.laws import LawBroken, require
from wavefront.testing.simulation import budgets, fill, random_canvas


def check_interface(strategy: Any) -> None:
    """Raise unless this is a `Strategy` with a selector whose `step` returns a valid decision."""
    name = type(strategy).__name__
    if isinstance(strategy, type):
        raise TypeError(f"check needs a strategy, not its class: check({strategy.__name__}()).")
    require(isinstance(strategy, Strategy), f"{name} is not a wavefront.Strategy.")
    try:
        check_frozen(type(strategy))
        check_selector(strategy)
    except (SpecError, StrategyError) as error:
        raise LawBroken(str(error)) from error
    require(type(strategy).step is not Strategy.step, f"{name} has no method step(view, state).")
    for steps in budgets(strategy)[:1]:
        canvas = random_canvas(0)
        config, count = Config(strategy=strategy, fixed_budget=True), canvas.tokens.shape[0]
        rows = start(canvas, config, [steps] * count, seeds=range(count))
        rows = fill(rows, torch.full(canvas.tokens.shape, 0.5))
        view = View(
            rows.score, rows.stats, rows.proposal, *canvas[1:], rows.progress, canvas.tokens
        )
        _check_decision(strategy, view, rows.state)


def _check_decision(strategy: Strategy, view: View, state: Any) -> None:
    """Raise unless `step` returns a decision whose tensors have the right dtype and shape."""
    decision: Any = strategy.step(view, state)
    try:
        check_decision(strategy, decision)
    except StrategyError as error:
        raise LawBroken(str(error)) from error
    for field in ("commit", "candidates", "remask", "final", "edit"):
        part = getattr(decision, field)
        if part is None and field in {"remask", "final", "edit"}:
            continue
        require(
            isinstance(part, Tensor)
            and part.dtype == torch.bool
            and part.shape == view.masked.shape,
            f"{strategy!r}: the {field} of a decision must be a bool tensor of shape (rows, "
            f"positions), here {tuple(view.masked.shape)}, not {_describe(part)}.",
        )


def _describe(part: Any) -> str:
    """Return the type, dtype and shape of a value, for a message."""
    if not isinstance(part, Tensor):
        return f"a {type(part).__name__}"
    return f"{str(part.dtype).removeprefix('torch.')} of shape {tuple(part.shape)}"
