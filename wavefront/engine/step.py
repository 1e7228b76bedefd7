"""The step: one forward pass, the scores of what is read, the strategy's decision, the commit.

A step is a pure function of tensors. It never waits for the device, and no shape depends on data,
so the same code runs eagerly, compiled, or captured as a CUDA graph. Rows never influence each
other. Rows with different options form groups, one per `Config`, and share the forward pass.

Read `take_step`: it plans which positions to read and compute, runs the model, and commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core import noise
from wavefront.core.cache_policy import Cache, Stored, mean_probability
from wavefront.core.canvas import Canvas, is_any
from wavefront.core.masks import smallest, to_mask, write_at
from wavefront.core.reading import LAST, Reading, priority_score, read
from wavefront.core.state import (
    Config,
    DecodeState,
    Step,
    TopAlternatives,
    candidates,
    decide_and_write,
)
from wavefront.core.strategy import Stats
from wavefront.core.tree import map_tree, replace_fields, scatter_rows
from wavefront.engine.window import attended_positions, choose_window, limit_columns, must_compute
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.protocol import KV, Model


class StepShape(NamedTuple):
    """What is fixed about a step. With the configs it identifies a compiled or captured step."""

    width: int  # positions read in each row, at most
    size: int | None = None  # positions computed in each row; None: every position
    padded: bool = True  # some positions of the canvas are padding
    reuse: bool = False  # keys and values of all other positions come from the cache
    track_need: bool = False  # report how many positions the next step must compute


class RowLimits(NamedTuple):
    """Each row's own limits, (R,) long, when rows differ. A size of 0 makes the row wait."""

    width: Tensor
    size: Tensor


class BatchState(NamedTuple):
    """Everything that evolves in a batch. Each group's state has every row of the batch."""

    groups: tuple[DecodeState, ...]  # one per config; rows of other groups are empty in it
    stored: Stored | None = None  # what the cached keys and values were computed from
    limits: RowLimits | None = None
    rows: Tensor | None = None  # (K,) long: the rows that take part; None: all


class RowFlags(NamedTuple):
    """What the host needs to know about one row after a step.

    On the device the flags are (2, R) long: `need`, and the others packed into one number, so that
    a compiled step computes them in few kernels. `pack_flags` packs them.
    """

    done: bool
    overflow: bool  # the strategy has more candidates than were read: the step is void
    window_overflow: bool  # more positions must be computed than fit: the step is void
    needs_refresh: bool  # the cache policy asks for a full forward pass before its time
    steps: int  # steps the row took, at least 1; speculation takes several per forward pass
    bad_step: int  # 1 + the first step whose logits were NaN or infinite; 0: none
    need: int  # positions that the next step must compute, if tracked

    @classmethod
    def unpack(cls, packed: int, need: int) -> RowFlags:
        """Return the flags of a row from its two numbers."""
        done, overflow, window_overflow, refresh = (bool(packed >> bit & 1) for bit in range(4))
        steps, bad_step = packed >> 4 & 127, packed >> 11
        return cls(done, overflow, window_overflow, refresh, steps, bad_step, need)


class StepPlan(NamedTuple):
    """Which positions a step reads and which it computes."""

    canvas: Canvas  # of all groups together
    attended: Tensor | None  # (R, L) bool: the positions the model may attend to; None: all
    read_masks: tuple[Tensor, ...]  # (R, L) bool per group
    read_index: Tensor  # (R, width) long: the positions read; those beyond the mask fill up
    overflow: Tensor  # (R,) bool
    window: Tensor | None = None  # (R, size) long: the positions computed; None: all
    window_overflow: Tensor | None = None  # (R,) bool


class StepResult(NamedTuple):
    """The batch after a step, the step of each group, and the flags for the host."""

    batch: BatchState
    steps: tuple[tuple[Step, ...], ...]  # per group; several with speculation
    flags: Tensor  # (2, R) long: see RowFlags


def take_step(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    shape: StepShape,
    kv: KV | None = None,
    policy: Cache | None = None,
) -> StepResult:
    """Take one step of every row, or of `batch.rows`. Only `kv` is written in place."""
    if batch.rows is not None:
        return _step_selected_rows(model, configs, batch, shape=shape, kv=kv, policy=policy)
    plan = plan_step(model, configs, batch, shape=shape, policy=policy)
    guided = configs[0].cfg_scale > 0
    hidden = forward(model, plan, guided=guided, kv=kv)
    return commit_step(model, configs, batch, plan=plan, hidden=hidden, shape=shape, policy=policy)


@compiled_with_model
def plan_step(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    shape: StepShape,
    policy: Cache | None,
) -> StepPlan:
    """Choose what the step reads and computes, for all groups together."""
    groups, limits = batch.groups, batch.limits
    masks = tuple(candidates(*pair) for pair in zip(configs, groups, strict=True))
    read_mask = masks[0] if len(masks) == 1 else torch.stack(masks).any(0)
    canvas = join_canvases(groups)
    attended = attended_positions(configs, groups, canvas)
    overflow = read_mask.sum(-1) > (shape.width if limits is None else limits.width)
    if attended is None and shape.padded:
        attended = canvas.real
    if shape.size is None:
        index = read_first(read_mask, shape.width)
        return StepPlan(canvas, attended, masks, _own_columns(limits, index), overflow)
    needed, extra = must_compute(canvas, attended, read_mask), torch.zeros_like(read_mask)
    if shape.reuse:
        assert policy is not None
        assert batch.stored is not None
        needed = needed & (canvas.tokens != batch.stored.tokens)
        asked = [
            policy.positions_to_refresh(state, mask, batch.stored)
            for state, mask in zip(groups, masks, strict=True)
        ]
        extra = asked[0] if len(asked) == 1 else torch.stack(asked).any(0)
    window = choose_window(read_mask, needed, extra, real=canvas.real, size=shape.size)
    too_many = (read_mask | needed).sum(-1) > shape.size
    if limits is not None and shape.reuse:
        window = limit_columns(window, limits.size)
        too_many = ((read_mask | needed).sum(-1) > limits.size) | (limits.size == 0)
    index = _own_columns(limits, window[:, : shape.width])
    return StepPlan(canvas, attended, masks, index, overflow, window, too_many)


def read_first(mask: Tensor, width: int) -> Tensor:
    """(R, width) long: the positions of the mask from the left; what follows only fills up."""
    return smallest((~mask).to(torch.uint8), width)


def _own_columns(limits: RowLimits | None, index: Tensor) -> Tensor:
    return index if limits is None else limit_columns(index, limits.width)


def join_canvases(groups: Sequence[DecodeState]) -> Canvas:
    """Return the canvas of all groups: a row is real in at most one of them."""
    if len(groups) == 1:
        return groups[0].canvas
    tokens = groups[0].canvas.tokens
    for state in groups[1:]:
        tokens = torch.where(state.occupied[:, None], state.canvas.tokens, tokens)
    masked = torch.stack([state.canvas.masked for state in groups]).any(0)
    known = torch.stack([state.canvas.known for state in groups]).any(0)
    slot = torch.stack([state.canvas.slot for state in groups]).amax(0)
    return Canvas(tokens, masked, known, slot)


def forward(model: Model, plan: StepPlan, *, guided: bool, kv: KV | None = None) -> Tensor:
    """(G, R, Q, D) hidden states of the positions read; under guidance G is 2: with and without.

    Guidance runs every row twice in one forward pass: as it is, and with the prompt masked.
    """
    canvas, window, attended = plan.canvas, plan.window, plan.attended
    if not guided:
        return model.hidden(canvas.tokens, attended, plan.read_index, window=window, kv=kv)[None]
    blind = torch.where(canvas.slot >= 0, canvas.tokens, model.mask_id)
    tokens, index = torch.cat([canvas.tokens, blind]), torch.cat([plan.read_index] * 2)
    attended = None if attended is None else torch.cat([attended, attended])
    window = None if window is None else torch.cat([window, window])
    return model.hidden(tokens, attended, index, window=window, kv=kv).unflatten(0, (2, -1))


def count_computed(configs: Sequence[Config], canvas: Canvas, size: int | None = None) -> int:
    """Return how many positions a forward pass computes; guidance computes each twice."""
    rows, length = canvas.tokens.shape
    return rows * (length if size is None else size) * (2 if configs[0].cfg_scale > 0 else 1)


@compiled_with_model
def commit_step(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    plan: StepPlan,
    hidden: Tensor,
    shape: StepShape,
    policy: Cache | None,
) -> StepResult:
    """Read the hidden states, let every group decide, write the canvases, update the cache."""
    void = plan.overflow
    if plan.window_overflow is not None:
        void = void | plan.window_overflow
    cost = count_computed(configs, plan.canvas, shape.size)
    states, steps, index = [], [], plan.read_index
    for config, state, mask in zip(configs, batch.groups, plan.read_masks, strict=True):
        reading = score_positions(model, config, state, index=index, hidden=hidden)
        bad = (reading.bad & mask.gather(-1, index)).any(-1)
        state = store_readings(config, state, index=index, reading=reading)
        state, view, decision = decide_and_write(config, state, model.mask_id, bad=bad, void=void)
        others = top_alternatives(index, reading, state.canvas)
        step = Step(0, 1, cost, view, decision, state.canvas, state.final, state.done, others)
        states.append(state)
        steps.append((step,))
    stored, stale = batch.stored, 0
    if policy is not None:
        stored, stale = _update_stored(policy, batch, states, plan=plan, reuse=shape.reuse)
    held = 0 if plan.window_overflow is None else plan.window_overflow.long()
    flags = []
    for config, state in zip(configs, states, strict=True):
        need = None
        if shape.track_need:
            attended = config.strategy.attended(state.canvas, state.state)
            need = must_compute(state.canvas, attended, candidates(config, state)).sum(-1)
        one = pack_flags(
            state,
            overflow=plan.overflow,
            window_overflow=held,
            needs_refresh=stale,
            need=need,
        )
        flags.append(one if len(configs) == 1 else only_occupied(one, state))
    after = BatchState(tuple(states), stored, batch.limits, batch.rows)
    return StepResult(after, tuple(steps), sum_groups(flags))


def pack_flags(
    state: DecodeState,
    *,
    overflow: Tensor,
    steps: Tensor | int = 1,
    window_overflow: Tensor | int = 0,
    needs_refresh: Tensor | int = 0,
    need: Tensor | None = None,
) -> Tensor:
    """(2, R) long: the flags of a group's rows; see RowFlags."""
    packed = state.done + 2 * overflow.long() + 4 * window_overflow + 8 * needs_refresh
    packed = packed + 16 * steps + 2048 * (state.bad_step + 1)
    return torch.stack([packed, torch.zeros_like(packed) if need is None else need])


def sum_groups(parts: Sequence[Tensor]) -> Tensor:
    """Combine what each group reports; every row is occupied in one group and 0 in the others."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def only_occupied(flags: Tensor, state: DecodeState) -> Tensor:
    """Set the flags of rows that belong to other groups to 0."""
    return flags * state.occupied


def _update_stored(
    policy: Cache,
    batch: BatchState,
    states: Sequence[DecodeState],
    *,
    plan: StepPlan,
    reuse: bool,
) -> tuple[Stored, Tensor]:
    """Return what the cache now holds, and (R,) long: 1 for rows that ask for a refresh."""
    tokens = plan.canvas.tokens
    sure, began, done = None, None, None
    for before, after, mask in zip(batch.groups, states, plan.read_masks, strict=True):
        row_sure, row_began = mean_probability(after.stats.logp, mask), before.step
        if len(states) > 1:
            row_sure = torch.where(after.occupied, row_sure, 0)
            row_began = torch.where(after.occupied, row_began, 0)
        sure = row_sure if sure is None else sure + row_sure
        began = row_began if began is None else began + row_began
        done = after.done if done is None else done & after.done
    assert sure is not None
    assert began is not None
    assert done is not None
    if plan.window is not None:
        # A position that was never computed has no token, so it counts as changed when needed.
        reused = batch.stored.tokens if reuse and batch.stored is not None else -1
        tokens = torch.where(to_mask(plan.window, tokens.shape[1]), tokens, reused)
    if reuse and batch.stored is not None:
        stored = replace_fields(batch.stored, tokens=tokens)
    else:
        stored = Stored(tokens, began, sure)
    return stored, (policy.needs_refresh(sure, stored) & ~done).long()


def _step_selected_rows(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    shape: StepShape,
    kv: KV | None,
    policy: Cache | None,
) -> StepResult:
    """Take a step of `batch.rows` alone, in buffers of their own, and put the rows back."""
    rows = batch.rows
    assert rows is not None
    count, length = batch.groups[0].canvas.tokens.shape
    part = map_tree(batch._replace(rows=None), lambda leaf: leaf.index_select(0, rows))
    copies = 2 if configs[0].cfg_scale > 0 else 1  # guidance keeps two rows per row
    own = None if kv is None else model.new_kv(copies * len(rows), length)
    result = take_step(model, configs, part, shape=shape, kv=own, policy=policy)
    if kv is not None and own is not None:
        index = torch.cat([rows + copy * count for copy in range(copies)])
        for buffers, parts in zip(kv, own, strict=True):
            for buffer, fresh in zip(buffers, parts, strict=True):
                buffer.index_copy_(0, index, fresh)
    pairs = zip(batch.groups, result.batch.groups, strict=True)
    groups = tuple(scatter_rows(old, rows, new) for old, new in pairs)
    stored = batch.stored
    if stored is not None:
        stored = scatter_rows(stored, rows, result.batch.stored)
    return StepResult(BatchState(groups, stored, batch.limits, rows), result.steps, result.flags)


def score_positions(
    model: Model, config: Config, state: DecodeState, *, index: Tensor, hidden: Tensor
) -> Reading:
    """Read the hidden states of the positions `index` (R, Q); logits exist one chunk at a time."""
    flat = hidden.flatten(1, 2)

    def logits_of(chunk: slice) -> Tensor:
        seen = model.head(flat[0, chunk])
        if len(flat) == 1:
            return seen
        blind = model.head(flat[1, chunk])
        return blind + (config.cfg_scale + 1) * (seen - blind)

    keys = None
    if config.sampling.temperature > 0:
        slot = state.canvas.slot.gather(-1, index)
        keys = noise.key(state.seed, state.step, slot, noise.TOKEN)
    return read(
        logits_of,
        keys,
        state.canvas.tokens.gather(-1, index),
        vocab_size=model.vocab_size,
        mask_id=model.mask_id,
        sampling=config.sampling,
        needs=config.needs,
        alternatives=config.alternatives,
    )


def store_readings(
    config: Config, state: DecodeState, *, index: Tensor, reading: Reading
) -> DecodeState:
    """Write a reading into the state at `index`, with the scores that follow from it."""
    fresh = Stats(reading.logp, reading.margin, reading.entropy, reading.current_logp)
    score = score_by_priority(config, state, state.canvas.slot.gather(-1, index), fresh)
    if config.priority == "entropy":
        # Certain of the mask token is not certain of anything that could be written.
        score = score.masked_fill(reading.prefers_mask, float("-inf"))
    if config.sampling.eos in LAST:
        ends = is_any(reading.proposal, config.sampling.stop_ids)
        score = score.masked_fill(ends, float("-inf"))  # only when nothing else is left
    stats = Stats(
        *(
            None if new is None or old is None else write_at(old, index, new)
            for old, new in zip(state.stats, fresh, strict=True)
        )  # pyright: ignore[reportArgumentType]
    )
    return replace_fields(
        state,
        proposal=write_at(state.proposal, index, reading.proposal),
        stats=stats,
        score=write_at(state.score, index, score),
    )


def top_alternatives(index: Tensor, reading: Reading, canvas: Canvas) -> TopAlternatives | None:
    """Return the likeliest tokens of the positions `index`, spread over the canvas; else zeros."""
    tokens, logp = reading.alternatives, reading.alternatives_logp
    if tokens is None or logp is None:
        return None
    where = index[..., None].expand_as(tokens)
    board = tokens.new_zeros((*canvas.tokens.shape, tokens.shape[-1]))
    return TopAlternatives(
        board.scatter(1, where, tokens), board.to(logp.dtype).scatter(1, where, logp)
    )


def score_by_priority(config: Config, state: DecodeState, slot: Tensor, stats: Stats) -> Tensor:
    """(R, Q) float32: the priority of the positions in `slot`, with the noise of the row's step."""
    if config.priority == "random":
        score = noise.uniform(noise.key(state.seed, state.step, slot, noise.PRIORITY))
    else:
        score = priority_score(config.priority, stats)
    if config.order_noise > 0:
        order = noise.key(state.seed, state.step, slot, noise.ORDER)
        score = score + config.order_noise * noise.gumbel(order)
    return score
