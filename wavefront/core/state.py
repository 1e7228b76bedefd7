"""Rows: everything that evolves in a decode, and how a decision is written into it.

`Config` is what stays constant. `settle` turns what was read into the next rows: it calls the
strategy, holds its decision to the rules, and writes the canvas. It is pure and knows no model, so
a test can feed it any scores, and a speculative step can run it ahead of a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, finished
from wavefront.core.errors import check_choice, check_float
from wavefront.core.reading import ENDING, PRIORITIES, PRIORITY_NEEDS, Sampling
from wavefront.core.strategy import Decision, RowProgress, State, Stats, Strategy, View, every_stat
from wavefront.core.tree import choose, replace_fields


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is constant in a decode. Rows of equal Config may share one `advance`."""

    strategy: Strategy
    priority: str = "confidence"
    sampling: Sampling = field(default_factory=Sampling)
    cfg_scale: float = 0.0
    order_noise: float = 0.0
    fixed_budget: bool = False  # run every one of the T forwards, also those that commit nothing
    read_all_masked: bool = (
        False  # read every masked place, entropy too, also what no strategy asked for
    )
    alternatives: int = 0  # how many of the likeliest tokens of a place to keep, for traces

    def __post_init__(self) -> None:
        check_choice("priority", self.priority, PRIORITIES)
        check_float("cfg_scale", self.cfg_scale, 0)
        check_float("order_noise", self.order_noise, 0)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional statistics to compute."""
        wanted = {*every_stat(self.strategy), *PRIORITY_NEEDS.get(self.priority, ())}
        return tuple(sorted(wanted | {"entropy"} if self.read_all_masked else wanted))


class DecodeState(NamedTuple):
    """Everything that evolves. A row can be replaced at any step: rows never interact."""

    canvas: Canvas
    state: State
    proposal: Tensor  # (B, L) long, as last read
    stats: Stats  # (B, L) float32, as last read
    score: Tensor  # (B, L) float32, as last read
    final: Tensor  # (B, L) bool: decided and never taken back
    committed_at: Tensor  # (B, L) long: the step of the commit; -1 before it
    length: Tensor  # (B,) long, as the rest
    steps: Tensor
    step: Tensor
    seed: Tensor
    next_active_step: (
        Tensor  # (B, T + 2) long: see timetable; steps sure to commit nothing are passed over
    )
    done: Tensor  # (B,) bool
    bad_step: Tensor  # (B,) long: the first step whose logits were NaN; -1 while none was

    @property
    def occupied(self) -> Tensor:
        """(B,) bool: rows that hold a request; the others are empty."""
        return self.canvas.real.any(-1)

    @property
    def last(self) -> Tensor:
        """(B,) bool: the next step is the last that can commit."""
        return self.following >= self.steps

    @property
    def following(self) -> Tensor:
        """(B,) long: the step after the next one."""
        return self.next_active_step.gather(-1, self.step[:, None] + 1)[:, 0]

    @property
    def progress(self) -> RowProgress:
        return RowProgress(
            self.length, self.steps, self.step, self.canvas.masked.sum(-1), self.seed
        )


class TopAlternatives(NamedTuple):
    """The likeliest tokens of every place, best first: (B, L, K)."""

    tokens: Tensor  # long
    logp: Tensor  # float32


class Step(NamedTuple):
    """What a consumer receives of one step: tensors on the device, and three counts."""

    number: int  # of the steps, from 0; the row's own is view.clock.step
    forwards: int  # launched so far, surplus ones included
    token_forwards: int  # places computed so far; guidance computes each twice
    view: View
    decision: Decision  # as applied
    canvas: Canvas  # after it
    final: Tensor
    done: Tensor  # (B,) bool
    others: TopAlternatives | None = None  # on request


def start(
    canvas: Canvas, config: Config, steps: Sequence[int], seeds: Sequence[int]
) -> DecodeState:
    """The rows before the first step."""
    board = torch.zeros_like(canvas.tokens, dtype=torch.float32)
    column = torch.zeros_like(canvas.tokens[:, 0])
    length = (canvas.slot >= 0).sum(-1)
    next_active_step = column[:, None] + torch.tensor(
        timetable(config, length.tolist(), steps), device=column.device
    )
    return DecodeState(
        canvas=canvas,
        state=config.strategy.init(canvas),
        proposal=canvas.tokens,
        stats=Stats(logp=board, **dict.fromkeys(config.needs, board)),
        score=board,
        final=canvas.known,
        committed_at=torch.full_like(canvas.tokens, -1),
        length=length,
        steps=column + torch.tensor(list(steps), device=column.device),
        step=next_active_step[:, 0],
        seed=column + torch.tensor(list(seeds), device=column.device),
        next_active_step=next_active_step,
        done=length == 0,
        bad_step=column - 1,
    )


def timetable(config: Config, lengths: Sequence[int], steps: Sequence[int]) -> list[list[int]]:
    """[row][s]: the first step from s on that may commit; T (and beyond) when there is none.

    Zero quotas are known in advance, so a row passes over them without a forward, each row for
    itself, and the clock that its strategy sees is the same as if it had waited.
    """
    width = max(steps) + 2
    table = []
    for length, budget in zip(lengths, steps, strict=True):
        follows = [budget] * width
        for step in reversed(range(budget if length else 0)):  # an empty row has nothing to do
            is_noop_step = not config.fixed_budget and config.strategy.is_noop_step(
                length, budget, step
            )
            follows[step] = follows[step + 1] if is_noop_step else step
        table.append(follows)
    return table


def candidates(config: Config, rows: DecodeState) -> Tensor:
    """(B, L) bool: what the next step may read; everything undecided when it is the last one."""
    wanted = config.strategy.candidates(rows.canvas, rows.state, rows.progress)
    if config.read_all_masked:
        wanted = wanted | rows.canvas.masked
    return (wanted | (rows.canvas.masked & rows.last[:, None])) & ~rows.done[:, None]


def decide_and_write(
    config: Config, rows: DecodeState, mask_id: int, *, bad: Tensor, void: Tensor
) -> tuple[DecodeState, View, Decision]:
    """Decide and write. Rows in `bad` or `void`, (B,) bool, stand still; void ones try again."""
    canvas = rows.canvas
    view = View(
        rows.score,
        rows.stats,
        rows.proposal,
        canvas.masked,
        canvas.known,
        canvas.slot,
        rows.progress,
    )
    active = ~(rows.done | bad | void | (rows.step >= rows.steps))
    decision = _applied(config.strategy.step(view, rows.state), rows, active[:, None])
    after = _write(config, rows, decision, active, mask_id)
    step = torch.where(void, rows.step, rows.following)
    first_bad = bad & ~void & ~rows.done & (rows.bad_step < 0)
    after = replace_fields(
        after,
        step=step,
        done=after.done | (step >= rows.steps),
        bad_step=torch.where(first_bad, rows.step, rows.bad_step),
    )
    return after, view, decision


def _applied(decision: Decision, rows: DecodeState, active: Tensor) -> Decision:
    """The decision as carried out: inside the rules, and complete at the last step."""
    canvas, last = rows.canvas, rows.last[:, None]
    commit = (decision.commit | last) & canvas.masked & active
    if decision.remask is None:
        return replace_fields(decision, commit=commit)
    free = (canvas.slot >= 0) & ~rows.final & (canvas.known | commit)
    return replace_fields(decision, commit=commit, remask=decision.remask & free & active & ~last)


def _write(
    config: Config, rows: DecodeState, decision: Decision, active: Tensor, mask_id: int
) -> DecodeState:
    """Rows after the decision; those that are not active keep what they have."""
    canvas = rows.canvas.commit(decision.commit, rows.proposal)
    committed_at = torch.where(decision.commit, rows.step[:, None], rows.committed_at)
    if decision.remask is not None:
        canvas = canvas.take_back(decision.remask, mask_id)
        committed_at = committed_at.masked_fill(decision.remask, -1)
    final = canvas.known
    if decision.final is not None:
        final = canvas.known & (rows.final | decision.final | rows.last[:, None])
    final = torch.where(active[:, None], final, rows.final)
    if config.sampling.eos in ENDING:
        complete = finished(canvas, final, config.sampling.stop_ids)
    else:
        complete = (final | (canvas.slot < 0)).all(-1)
    state = choose(active, decision.state, rows.state)
    return replace_fields(
        rows,
        canvas=canvas,
        state=state,
        final=final,
        committed_at=committed_at,
        done=rows.done | complete,
    )
