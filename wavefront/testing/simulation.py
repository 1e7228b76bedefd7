"""A decode without a model: any scores, one decision after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, blank, infill
from wavefront.core.state import Config, DecodeState, decide_and_write, start
from wavefront.core.strategy import Decision, Stats, Strategy, View

MASK, PAD = 1, 0
PLACES = 12
Scores = Callable[[int, Canvas], Tensor]


def board(seed: int, *, rows: int = 4, holes: bool = False, places: int = PLACES) -> Canvas:
    """Prompts of unequal length before `places` masked ones, or texts with holes anywhere."""
    source = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 9, (rows,), generator=source).tolist()
    if not holes:
        prompts = [[5] * n for n in sizes]
        return blank(prompts, places, mask_id=MASK, pad_id=PAD)
    texts = [[5] * (places + 8) for _ in range(rows)]
    marks = []
    for _ in range(rows):
        chosen = torch.randperm(places + 8, generator=source)[:places].tolist()
        marks.append([i in chosen for i in range(places + 8)])
    return infill(texts, marks, mask_id=MASK, pad_id=PAD)


def tied_scores(seed: int, levels: int) -> Scores:
    """Scores from a few levels, drawn per (step, slot): ties dominate, and padding changes none."""
    values = torch.rand(512, 1024, generator=torch.Generator().manual_seed(seed))
    values = (values * levels).floor() / levels

    def at(step: int, canvas: Canvas) -> Tensor:
        row = torch.arange(canvas.slot.shape[0], device=canvas.slot.device)[:, None]
        picked = (canvas.slot.clamp(min=0) * 31 + row * 7) % 1024
        return values.to(canvas.slot.device)[step % 512][picked]

    return at


def of_row(scores: Scores, row: int) -> Scores:
    """The scores that a row gets in a batch, for a batch of that row alone."""

    def at(step: int, canvas: Canvas) -> Tensor:
        company = Canvas(*(t.expand(row + 1, -1) for t in canvas))
        return scores(step, company)[row:]

    return at


def fill(rows: DecodeState, score: Tensor) -> DecodeState:
    """Rows as if a forward had given `score` (in (0, 1)) everywhere."""
    logp = torch.log(score.clamp(1e-6, 1.0))
    stats = Stats(
        logp,
        None if rows.stats.margin is None else score,
        None if rows.stats.entropy is None else 1 - score,
        None if rows.stats.current_logp is None else logp,
    )
    return rows._replace(score=score, stats=stats, proposal=torch.full_like(rows.proposal, 7))


def simulate(
    strategy: Strategy, canvas: Canvas, scores: Scores, steps: int, *, first_seed: int = 0
) -> Iterator[tuple[DecodeState, View, Decision, DecodeState]]:
    """Every step of a decode whose scores are given: rows before, view, decision, rows after."""
    count = canvas.tokens.shape[0]
    # Every step runs, also the idle ones, so that what is seen is numbered like the budget.
    config = Config(strategy=strategy, fixed_budget=True)
    rows = start(canvas, config, [steps] * count, range(first_seed, first_seed + count))
    no = torch.zeros(count, dtype=torch.bool, device=canvas.tokens.device)
    for index in range(steps):
        before = fill(rows, scores(index, rows.canvas))
        rows, view, decision = decide_and_write(config, before, MASK, bad=no, void=no)
        yield before, view, decision, rows


def decisions(
    strategy: Strategy, canvas: Canvas, scores: Scores, steps: int, *, first_seed: int = 0
) -> list[Decision]:
    """The decisions of `simulate` alone."""
    runs = simulate(strategy, canvas, scores, steps, first_seed=first_seed)
    return [decision for _, _, decision, _ in runs]


def budgets(strategy: Strategy) -> list[int]:
    """Step counts worth trying, less those that the strategy refuses."""
    fitting = []
    for steps in (PLACES, PLACES // 4, PLACES + 5):
        try:
            strategy.validate(PLACES, steps)
            fitting.append(steps)
        except ValueError:
            continue
    return fitting


def each_run(strategy: Strategy) -> Iterator[tuple[Canvas, Scores, int]]:
    for seed, levels in enumerate((2, 5, 1 << 20)):
        for steps in budgets(strategy):
            yield board(seed, holes=seed == 1), tied_scores(seed, levels), steps


def to_meta(value: Any) -> Any:
    """A nest of tensors on the meta device, where there is no data to wait for or branch on."""
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, tuple):
        parts = [to_meta(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
