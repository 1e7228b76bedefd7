"""Simulate a decode without a model, from given scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, blank, infill
from wavefront.core.state import Config, DecodeState, decide_and_write, start
from wavefront.core.strategy import Decision, Stats, Strategy, View
from wavefront.core.tree import map_tree

MASK, PAD = 1, 0
LENGTH = 12
Scores = Callable[[int, Canvas], Tensor]


def random_canvas(seed: int, *, rows: int = 4, holes: bool = False, length: int = LENGTH) -> Canvas:
    """Return prompts of unequal length before `length` masked positions, or texts with holes."""
    source = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 9, (rows,), generator=source).tolist()
    if not holes:
        prompts = [[5] * n for n in sizes]
        return blank(prompts, length, mask_id=MASK, pad_id=PAD)
    texts = [[5] * (length + 8) for _ in range(rows)]
    marks = []
    for _ in range(rows):
        chosen = torch.randperm(length + 8, generator=source)[:length].tolist()
        marks.append([i in chosen for i in range(length + 8)])
    return infill(texts, marks, mask_id=MASK, pad_id=PAD)


def tied_scores(seed: int, levels: int) -> Scores:
    """Return scores from a few levels, drawn per (step, slot), with many ties."""
    values = torch.rand(512, 1024, generator=torch.Generator().manual_seed(seed))
    values = (values * levels).floor() / levels

    def at(step: int, canvas: Canvas) -> Tensor:
        row = torch.arange(canvas.slot.shape[0], device=canvas.slot.device)[:, None]
        picked = (canvas.slot.clamp(min=0) * 31 + row * 7) % 1024
        return values.to(canvas.slot.device)[step % 512][picked]

    return at


def row_scores(scores: Scores, row: int) -> Scores:
    """Return the scores that a row has in a batch, for a batch of that row alone."""

    def at(step: int, canvas: Canvas) -> Tensor:
        batch = Canvas(*(t.expand(row + 1, -1) for t in canvas))
        return scores(step, batch)[row:]

    return at


def fill(rows: DecodeState, score: Tensor) -> DecodeState:
    """Return the state as if a forward pass gave `score`, in (0, 1), at every position."""
    logp = torch.log(score.clamp(1e-6, 1.0))
    stats = Stats(
        logp,
        None if rows.stats.margin is None else score,
        None if rows.stats.entropy is None else 1 - score,
        None if rows.stats.current_logp is None else logp,
    )
    return rows._replace(score=score, stats=stats, proposal=torch.full_like(rows.proposal, 7))


def simulate(
    strategy: Strategy, canvas: Canvas, scores: Scores, *, steps: int, first_seed: int = 0
) -> Iterator[tuple[DecodeState, View, Decision, DecodeState]]:
    """Yield (state before, view, decision, state after) for every step with the given scores."""
    count = canvas.tokens.shape[0]
    # Run every step, even those that commit nothing, so that steps are numbered like the budget.
    config = Config(strategy=strategy, fixed_budget=True)
    rows = start(canvas, config, [steps] * count, seeds=range(first_seed, first_seed + count))
    no = torch.zeros(count, dtype=torch.bool, device=canvas.tokens.device)
    for index in range(steps):
        before = fill(rows, scores(index, rows.canvas))
        rows, view, decision = decide_and_write(config, before, MASK, bad=no, void=no)
        yield before, view, decision, rows


def decisions(
    strategy: Strategy, canvas: Canvas, scores: Scores, *, steps: int, first_seed: int = 0
) -> list[Decision]:
    """Return only the decisions of `simulate`."""
    found = simulate(strategy, canvas, scores, steps=steps, first_seed=first_seed)
    return [decision for _, _, decision, _ in found]


def budgets(strategy: Strategy) -> list[int]:
    """Return step budgets to try, except those that the strategy rejects."""
    fitting = []
    for steps in (LENGTH, LENGTH // 4, LENGTH + 5):
        try:
            strategy.validate(LENGTH, steps)
            fitting.append(steps)
        except ValueError:
            continue
    return fitting


def runs(strategy: Strategy) -> Iterator[tuple[Canvas, Scores, int]]:
    """Yield (canvas, scores, steps) for every run that a law is checked on."""
    for seed, levels in enumerate((2, 5, 1 << 20)):
        for steps in budgets(strategy):
            yield random_canvas(seed, holes=seed == 1), tied_scores(seed, levels), steps


def to_meta(value: Any) -> Any:
    """Return a tree of tensors on the meta device, which has no data to wait for."""
    return map_tree(value, lambda tensor: tensor.to("meta"))
