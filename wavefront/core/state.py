"""The decode state: everything that changes in a decode, and how a decision is written into it.

`Config` is what stays constant. `decide_and_write` computes the next state: it calls the strategy,
applies the rules to its decision, and writes the canvas. It is pure and calls no model, so a test
can pass it any scores, and speculation can run it ahead of a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core.bounds import check_option
from wavefront.core.canvas import Canvas, is_any, is_complete
from wavefront.core.constraint import TokenAutomaton, check_room, compatible_writes
from wavefront.core.errors import check_choice
from wavefront.core.reading import ENDING, PRIORITIES, PRIORITY_NEEDS, Sampling
from wavefront.core.spec import check_frozen
from wavefront.core.strategy import (
    Decision,
    RowProgress,
    State,
    Stats,
    Strategy,
    View,
    check_decision,
    check_selector,
    required_stats,
)
from wavefront.core.tree import choose, count_true, plural, replace_fields, short_repr

MAX_OFFERS = 4  # how often a strategy chooses in a step if its commits contradict each other


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
    alternatives: int = 0  # how many of the likeliest tokens per position to keep
    constraint: TokenAutomaton | None = None  # the language of the answers
    bias_width: int = 0  # room for the logit bias of a row; 0: no row has one

    def __post_init__(self) -> None:
        check_frozen(type(self.strategy))
        check_selector(self.strategy)
        check_choice("priority", self.priority, PRIORITIES)
        check_option("cfg_scale", self.cfg_scale)
        check_option("order_noise", self.order_noise)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional statistics to compute."""
        needs = {*required_stats(self.strategy), *PRIORITY_NEEDS.get(self.priority, ())}
        return tuple(sorted(needs | {"entropy"} if self.read_all_masked else needs))


class LogitBias(NamedTuple):
    """What each row adds to the logits before anything reads them; both fields are (B, K).

    It is a part of the state, so that rows with different biases share a group.
    """

    tokens: Tensor  # long; unused entries are token 0 with the value 0
    values: Tensor  # float32


class DecodeState(NamedTuple):
    """Everything that changes in a decode. Rows never interact, so a row can be replaced."""

    canvas: Canvas
    state: State
    proposal: Tensor  # (B, L) long, as last read
    stats: Stats  # (B, L) float32, as last read
    score: Tensor  # (B, L) float32, as last read
    final: Tensor  # (B, L) bool: decided and never remasked
    committed_at: Tensor  # (B, L) long: the step of the commit; -1 before it
    length: Tensor  # (B,) long: the number of positions to fill, at least 1
    steps: Tensor  # (B,) long: the step budget
    step: Tensor  # (B,) long: the next step
    seed: Tensor  # (B,) long
    next_active_step: Tensor  # (B, T + 2) long: see `next_active_steps`
    done: Tensor  # (B,) bool
    bad_step: Tensor  # (B,) long: the first step whose logits were NaN; -1 if there is none
    answer: Tensor  # (B, L) bool: the positions of the answer, which a constraint applies to
    bias: LogitBias | None = None  # if Config.bias_width is not 0

    def __repr__(self) -> str:
        rows, length = self.canvas.masked.shape
        counts = f"{count_true(self.canvas.masked)} masked, {count_true(self.done)} done"
        return f"DecodeState({plural(rows, 'row')} of {plural(length, 'position')}, {counts})"

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

    def __repr__(self) -> str:
        return short_repr(self)


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

    def __repr__(self) -> str:
        ended = count_true(self.done)
        rows = plural(ended, "row") if isinstance(ended, int) else f"{ended} rows"
        done = f"{count_true(self.decision.commit)} committed, {rows} done"
        passes = plural(self.forwards, "forward pass")
        return f"Step({self.number}: {done}, {passes}, {self.canvas!r})"


def start(
    canvas: Canvas,
    config: Config,
    steps: Sequence[int],
    *,
    seeds: Sequence[int],
    answer: Tensor | None = None,
    logit_bias: Sequence[tuple[int, float]] = (),
) -> DecodeState:
    """Return the state before the first step.

    `answer` (B, L) bool says which positions belong to the answer, if some of them are given.
    All rows get the same logit bias.

    Raises:
        OptionError: No answer on this canvas can satisfy the constraint.
    """
    answer = canvas.slot >= 0 if answer is None else answer
    if config.constraint is not None:
        check_room(config.constraint, canvas, answer)
    zeros = torch.zeros_like(canvas.tokens, dtype=torch.float32)
    stats = Stats(logp=zeros, **dict.fromkeys(config.needs, zeros))
    score = zeros
    if config.read_all_masked:  # a trace must not show blocks that were not read yet as certain
        score = zeros - float("inf")
        stats = stats._replace(logp=score, entropy=zeros + float("inf"))
    column = torch.zeros_like(canvas.tokens[:, 0])
    length = (canvas.slot >= 0).sum(-1)
    table = next_active_steps(config, length.tolist(), steps)
    next_active_step = column[:, None] + torch.tensor(table, device=column.device)
    return DecodeState(
        canvas=canvas,
        state=config.strategy.init(canvas),
        proposal=canvas.tokens,
        stats=stats,
        score=score,
        final=canvas.known,
        committed_at=torch.full_like(canvas.tokens, -1),
        length=length.clamp(min=1),  # strategies divide by it, also in a row with nothing to fill
        steps=column + torch.tensor(list(steps), device=column.device),
        step=next_active_step[:, 0],
        seed=column + torch.tensor(list(seeds), device=column.device),
        next_active_step=next_active_step,
        done=length == 0,
        bad_step=column - 1,
        answer=answer,
        bias=_bias(logit_bias, config.bias_width, column),
    )


def _bias(pairs: Sequence[tuple[int, float]], width: int, column: Tensor) -> LogitBias | None:
    """Return a logit bias for the rows of `column`, (B,) zeros, filled up to `width` entries."""
    if not width:
        return None
    filled = [*pairs, *[(0, 0.0)] * (width - len(pairs))]
    tokens, values = (
        torch.tensor(part, device=column.device) for part in zip(*filled, strict=True)
    )
    return LogitBias(column[:, None] + tokens, column[:, None].float() + values.float())


def next_active_steps(
    config: Config, lengths: Sequence[int], steps: Sequence[int]
) -> list[list[int]]:
    """Return [row][s], the first step from s on that may commit, or T if there is none.

    Steps with a quota of zero are known in advance, so each row skips them without a forward pass.
    The progress that its strategy sees is the same as if the step had run.
    """
    width = max(steps) + 2
    table = []
    for length, budget in zip(lengths, steps, strict=True):
        active = [budget] * width
        for step in reversed(range(budget if length else 0)):  # an empty row has nothing to do
            skip = not config.fixed_budget and config.strategy.is_noop_step(length, budget, step)
            if config.constraint is not None and step == budget - 1:
                skip = False  # commits that contradicted others may be left for the last step
            active[step] = active[step + 1] if skip else step
        if length and active[0] == budget:  # the last step commits whatever is left
            active[:budget] = [budget - 1] * budget
        table.append(active)
    return table


def candidates(config: Config, rows: DecodeState) -> Tensor:
    """Return (B, L) bool: the positions the next step may read; the last step reads all masked."""
    positions = config.strategy.candidates(rows.canvas, rows.state, rows.progress)
    if config.read_all_masked:
        positions = positions | config.strategy.readable(rows.canvas, rows.state)
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
        canvas.tokens,
    )
    active = ~(rows.done | bad | void | (rows.step >= rows.steps))
    made = config.strategy.step(view, rows.state)
    check_decision(config.strategy, made)
    decision = _apply_rules(made, rows, active[:, None])
    if config.constraint is not None:
        decision = _keep_compatible(config, rows, view, decision=decision, active=active)
    after = _write(config, rows, decision, active=active, mask_id=mask_id)
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
    """Return the decision limited to legal positions; the last step commits everything."""
    canvas, last = rows.canvas, rows.last[:, None]
    commit = (decision.commit | last) & canvas.masked & active
    remask, edit = decision.remask, decision.edit
    free = (canvas.slot >= 0) & ~rows.final & active
    if remask is not None:
        remask = remask & free & (canvas.known | commit) & ~last
    if edit is not None:
        # An edit that writes the same token again changes nothing, so it is not an edit.
        edit = edit & free & canvas.known & (rows.proposal != canvas.tokens)
        edit = edit if remask is None else edit & ~remask
    return replace_fields(decision, commit=commit, remask=remask, edit=edit)


def _keep_compatible(
    config: Config, rows: DecodeState, view: View, *, decision: Decision, active: Tensor
) -> Decision:
    """Return a decision whose commits and edits leave every answer completable.

    If they contradict each other, those with lower scores are dropped. The strategy then
    chooses again with their scores at -inf, so that it can choose others instead.
    """
    assert config.constraint is not None
    found: Decision | None = None
    for _ in range(MAX_OFFERS):
        write = decision.commit if decision.edit is None else decision.commit | decision.edit
        keep = compatible_writes(
            config.constraint,
            rows.canvas,
            rows.answer,
            write=write,
            proposal=rows.proposal,
            score=rows.score,
        )
        limited, dropped = decision, write & ~keep
        if keep is not write:
            limited = config.strategy.without(decision, dropped, view=view, state=rows.state)
            limited = _apply_rules(limited, rows, active[:, None])
        # A row without a commit keeps what an earlier choice has found.
        found = limited if found is None else choose(keep.any(-1), limited, found)
        if keep is write:
            break
        never = float("-inf")
        stats = replace_fields(view.stats, logp=view.stats.logp.masked_fill(dropped, never))
        view = replace_fields(view, score=view.score.masked_fill(dropped, never), stats=stats)
        decision = _apply_rules(config.strategy.step(view, rows.state), rows, active[:, None])
    assert found is not None
    return found


def _write(
    config: Config, rows: DecodeState, decision: Decision, *, active: Tensor, mask_id: int
) -> DecodeState:
    """Return the state after the decision; inactive rows do not change."""
    written = decision.written
    canvas = rows.canvas.commit(written, rows.proposal)
    committed_at = torch.where(written, rows.step[:, None], rows.committed_at)
    if decision.remask is not None:
        canvas = canvas.take_back(decision.remask, mask_id)
        committed_at = committed_at.masked_fill(decision.remask, -1)
    final = canvas.known
    if decision.final is not None:
        final = canvas.known & (rows.final | decision.final | rows.last[:, None])
    final = torch.where(active[:, None], final, rows.final)
    if config.sampling.eos == "stop-block":
        complete = _block_ends(config, rows, canvas, final=final)
    elif config.sampling.eos in ENDING:
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


def _block_ends(config: Config, rows: DecodeState, canvas: Canvas, *, final: Tensor) -> Tensor:
    """Return (B,) bool: the current block is final, and the answer has a stop token or its end."""
    answer = canvas.slot >= 0
    shown = config.strategy.attended(canvas, rows.state)
    if shown is None:  # the blocks to come are not hidden, but no step reads them
        shown = ~rows.canvas.masked | config.strategy.readable(rows.canvas, rows.state)
    current = answer & shown
    stop = answer & final & is_any(canvas.tokens, config.sampling.stop_ids)
    ended = (final | ~current).all(-1) & stop.any(-1)
    return ended | (final | ~answer).all(-1)
