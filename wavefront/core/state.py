"""The decode state: everything that changes in a decode, and how a decision is written into it.

`Config` is what stays constant. `decide_and_write` computes the next state: it calls the strategy,
applies the rules to its decision, and writes the canvas. It is pure and calls no model. So a test
can pass it any scores, and speculation can run it ahead of a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, is_complete
from wavefront.core.errors import check_choice, check_float
from wavefront.core.reading import ENDING, PRIORITIES, PRIORITY_NEEDS, Sampling
from wavefront.core.spec import check_frozen
from wavefront.core.strategy import (
    Decision,
    RowProgress,
    State,
    Stats,
    Strategy,
    View,
    required_stats,
)
from wavefront.core.tree import choose, replace_fields


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is constant in a decode. Rows with equal configs can be decoded in one batch."""

    strategy: Strategy
    priority: str = "confidence"
    sampling: Sampling = field(default_factory=Sampling)
    cfg_scale: float = 0.0
    order_noise: float = 0.0
    fixed_budget: bool = False  # run all T forward passes, even those that commit nothing
    read_all_masked: bool = False  # read every masked position, and its entropy; for traces
    alternatives: int = 0  # how many of the likeliest tokens per position to keep; for traces

    def __post_init__(self) -> None:
        check_frozen(type(self.strategy))
        check_choice("priority", self.priority, PRIORITIES)
        check_float("cfg_scale", self.cfg_scale, 0)
        check_float("order_noise", self.order_noise, 0)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional statistics to compute."""
        needs = {*required_stats(self.strategy), *PRIORITY_NEEDS.get(self.priority, ())}
        return tuple(sorted(needs | {"entropy"} if self.read_all_masked else needs))


class DecodeState(NamedTuple):
    """Everything that changes in a decode. Rows never interact, so a row can be replaced."""

    canvas: Canvas
    state: State
    proposal: Tensor  # (B, L) long, as last read
    stats: Stats  # (B, L) float32, as last read
    score: Tensor  # (B, L) float32, as last read
    final: Tensor  # (B, L) bool: decided and never remasked
    committed_at: Tensor  # (B, L) long: the step of the commit; -1 before it
    length: Tensor  # (B,) long: the number of positions to fill
    steps: Tensor  # (B,) long: the step budget
    step: Tensor  # (B,) long: the next step
    seed: Tensor  # (B,) long
    next_active_step: Tensor  # (B, T + 2) long: see `next_active_steps`
    done: Tensor  # (B,) bool
    bad_step: Tensor  # (B,) long: the first step whose logits were NaN; -1 if there is none

    @property
    def occupied(self) -> Tensor:
        """(B,) bool: rows that hold a request; the others are empty."""
        return self.canvas.real.any(-1)

    @property
    def last(self) -> Tensor:
        """(B,) bool: the next step is the last one that can commit."""
        return self.following >= self.steps

    @property
    def following(self) -> Tensor:
        """(B,) long: the step after the next one."""
        return self.next_active_step.gather(-1, self.step[:, None] + 1)[:, 0]

    @property
    def progress(self) -> RowProgress:
        """The progress of each row, as a strategy sees it."""
        return RowProgress(
            self.length, self.steps, self.step, self.canvas.masked.sum(-1), self.seed
        )


class TopAlternatives(NamedTuple):
    """The K likeliest tokens at every position, best first; both fields are (B, L, K)."""

    tokens: Tensor  # long
    logp: Tensor  # float32


class Step(NamedTuple):
    """What a consumer receives for one step: tensors on the device, and three counts."""

    number: int  # the step of the decode, from 0; a row's own step is view.progress.step
    forwards: int  # forward passes launched so far
    token_forwards: int  # positions computed so far; guidance computes each of them twice
    view: View
    decision: Decision  # as applied
    canvas: Canvas  # after the decision
    final: Tensor  # (B, L) bool
    done: Tensor  # (B,) bool
    others: TopAlternatives | None = None  # if Config.alternatives is not 0


def start(
    canvas: Canvas, config: Config, steps: Sequence[int], seeds: Sequence[int]
) -> DecodeState:
    """Return the state before the first step."""
    zeros = torch.zeros_like(canvas.tokens, dtype=torch.float32)
    column = torch.zeros_like(canvas.tokens[:, 0])
    length = (canvas.slot >= 0).sum(-1)
    table = next_active_steps(config, length.tolist(), steps)
    next_active_step = column[:, None] + torch.tensor(table, device=column.device)
    return DecodeState(
        canvas=canvas,
        state=config.strategy.init(canvas),
        proposal=canvas.tokens,
        stats=Stats(logp=zeros, **dict.fromkeys(config.needs, zeros)),
        score=zeros,
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


def next_active_steps(
    config: Config, lengths: Sequence[int], steps: Sequence[int]
) -> list[list[int]]:
    """Return [row][s], the first step from s on that may commit, or T if there is none.

    Zero quotas are known in advance, so each row skips them without a forward pass. The progress
    that its strategy sees is the same as if the step had run.
    """
    width = max(steps) + 2
    table = []
    for length, budget in zip(lengths, steps, strict=True):
        active = [budget] * width
        for step in reversed(range(budget if length else 0)):  # an empty row has nothing to do
            skip = not config.fixed_budget and config.strategy.is_noop_step(length, budget, step)
            active[step] = active[step + 1] if skip else step
        table.append(active)
    return table


def candidates(config: Config, rows: DecodeState) -> Tensor:
    """Return (B, L) bool: the positions the next step may read; the last step reads all masked."""
    positions = config.strategy.candidates(rows.canvas, rows.state, rows.progress)
    if config.read_all_masked:
        positions = positions | rows.canvas.masked
    return (positions | (rows.canvas.masked & rows.last[:, None])) & ~rows.done[:, None]


def decide_and_write(
    config: Config, rows: DecodeState, mask_id: int, *, bad: Tensor, void: Tensor
) -> tuple[DecodeState, View, Decision]:
    """Let the strategy decide, and write its decision.

    Rows in `bad` or `void`, (B,) bool, do not change; void rows repeat their step.
    """
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
    decision = _apply_rules(config.strategy.step(view, rows.state), rows, active[:, None])
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


def _apply_rules(decision: Decision, rows: DecodeState, active: Tensor) -> Decision:
    """Return the decision as applied: within the rules, and complete at the last step."""
    canvas, last = rows.canvas, rows.last[:, None]
    commit = (decision.commit | last) & canvas.masked & active
    if decision.remask is None:
        return replace_fields(decision, commit=commit)
    free = (canvas.slot >= 0) & ~rows.final & (canvas.known | commit)
    return replace_fields(decision, commit=commit, remask=decision.remask & free & active & ~last)


def _write(
    config: Config, rows: DecodeState, decision: Decision, active: Tensor, mask_id: int
) -> DecodeState:
    """Return the state after the decision; inactive rows do not change."""
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
        complete = is_complete(canvas, final, config.sampling.stop_ids)
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
