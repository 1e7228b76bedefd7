"""The step: run one forward pass, score the positions, let the strategy decide, and commit.

A step is a pure function of tensors. It never waits for the device, and no shape depends on data,
so the same code runs eagerly, compiled, or captured as a CUDA graph. Rows never influence each
other. Rows with different options form groups, one per `Config`, and share the forward pass.
A step with constraints is an exception: the host works between its three parts.

Read `take_step`: it plans which positions to read and compute, runs the model, and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core import noise
from wavefront.core.cache_policy import Cache, StoredInputs, mean_probability
from wavefront.core.canvas import Canvas, is_any
from wavefront.core.constraint import (
    AllowedTokens,
    TokenClasses,
    Writes,
    allowed_tokens,
    best_answers,
    fitting_writes,
)
from wavefront.core.masks import smallest, to_mask, write_at
from wavefront.core.reading import (
    LAST,
    Reading,
    add_bias,
    priority_score,
    read,
    read_allowed,
)
from wavefront.core.state import (
    Config,
    DecodeState,
    Step,
    TopAlternatives,
    candidates,
    decide_and_write,
)
from wavefront.core.strategy import Decision, Stats
from wavefront.core.tree import map_tree, replace_fields, scatter_rows
from wavefront.engine.cuda_graphs import Borrowed, Call, HostCopy, run_eagerly
from wavefront.engine.layout import whole_blocks
from wavefront.engine.window import attended_positions, choose_window, limit_columns, must_compute
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.protocol import KV, Model


class StepShape(NamedTuple):
    """The fixed sizes of a step.

    Together with the configs they identify a compiled or captured step.
    """

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
    stored: StoredInputs | None = None  # what the cached keys and values were computed from
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
    needs_refresh: bool  # the cache policy needs an early full forward pass
    idle: bool  # the step left every position as it was, although some were masked
    steps: int  # steps the row took, at least 1; speculation takes several per forward pass
    bad_step: int  # 1 + the first step whose logits were NaN or infinite, or an idle step; 0: none
    need: int  # positions that the next step must compute, if tracked

    @classmethod
    def unpack(cls, packed: int, need: int) -> RowFlags:
        """Decode the flags of a row from the two integers that store them."""
        done, overflow, held, refresh, idle = (bool(packed >> bit & 1) for bit in range(5))
        steps, bad_step = packed >> 5 & 127, packed >> 12
        return cls(done, overflow, held, refresh, idle, steps, bad_step, need)


class StepPlan(NamedTuple):
    """Which positions a step reads and which it computes."""

    canvas: Canvas  # of all groups together
    attended: Tensor | None  # (R, L) bool: the positions the model may attend to; None: all
    read_masks: tuple[Tensor, ...]  # (R, L) bool per group
    read_index: Tensor  # (R, width) long: the positions read; the rest is filler
    overflow: Tensor  # (R,) bool
    window: Tensor | None = None  # (R, size) long: the positions computed; None: all
    window_overflow: Tensor | None = None  # (R,) bool
    copies: Tensor | None = None  # (R, width) bool: positions read at a masked copy; None: none


class StepResult(NamedTuple):
    """The batch after a step, the step of each group, and the flags for the host."""

    batch: BatchState
    steps: tuple[tuple[Step, ...], ...]  # per group; several with speculation
    flags: Tensor  # (2, R) long: see RowFlags
    check: WriteCheck | None = None  # what is left to do, if the step was taken with `later`


# Waits for the writes of a step, and returns the step anew if they contradict each other.
WriteCheck = Callable[[], StepResult | None]
# Makes the check of the step before, and returns the batch if that has changed it.
BatchCheck = Callable[[], BatchState | None]


def take_step(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    shape: StepShape,
    kv: KV | None = None,
    policy: Cache | None = None,
    call: Call = run_eagerly,
    later: BatchCheck | None = None,
) -> StepResult:
    """Take one step of every row, or of `batch.rows`. Only `kv` is written in place.

    With a constraint, the host works between the parts of a step, and `call` runs each part.
    Otherwise `call` is not needed: the step is captured as a whole. With `later`, a constrained
    step of all rows may leave the check of its writes in its result, and it makes the check of the
    step before, `later`, once its own plan is launched. So the device need not wait for the host.
    """
    if batch.rows is not None:
        return _step_selected_rows(model, configs, batch, shape=shape, kv=kv, policy=policy)
    if is_constrained(configs):
        given: dict[str, Any] = {"kv": kv, "policy": policy, "call": call, "later": later}
        return _constrained_step(model, configs, batch, shape=shape, **given)
    plan = plan_step(model, configs, batch, shape=shape, policy=policy)
    hidden = _hidden_of(model, configs, batch.limits, plan=plan, kv=kv)
    return _compiled_commit(
        model, configs, batch, plan=plan, hidden=hidden, shape=shape, policy=policy
    )


def _hidden_of(
    model: Model,
    configs: Sequence[Config],
    limits: RowLimits | None,
    *,
    plan: StepPlan,
    kv: KV | None,
) -> Tensor:
    """Run the forward pass of a step."""
    hidden = forward(model, plan, guided=configs[0].cfg_scale > 0, kv=kv)
    if plan.copies is None or limits is None:
        return hidden
    # Columns beyond the limit repeat the first one, but without its masked copy.
    column = torch.arange(hidden.shape[2], device=hidden.device)
    own = (column < limits.width[:, None])[None, ..., None]
    return torch.where(own, hidden, hidden[:, :, :1])


def _constrained_step(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    shape: StepShape,
    kv: KV | None,
    policy: Cache | None,
    call: Call,
    later: BatchCheck | None,
) -> StepResult:
    """Take a step with constraints: three parts, between which the host looks at the answers.

    A captured last part assumes that all writes of the step fit together, which the host then
    checks. If they do not, the groups decide again, together with the host. The last part of a step
    that must complete an answer is not captured.
    """
    # No automaton is part of a key or of captured code, so none outlives its requests.
    free = tuple(replace(config, constraint=None) for config in configs)
    limited = tuple(config.constraint is not None for config in configs)
    key = free, limited, shape, batch.limits is None, batch.stored is None

    def plan_and_ask(batch: BatchState) -> tuple[BatchState, Any]:
        plan = plan_step(model, free, batch, shape=shape, policy=policy)
        asked = tuple(
            constraint_inputs(config, state, plan.read_index) if one else None
            for config, state, one in zip(free, batch.groups, limited, strict=True)
        )
        return batch, Borrowed((plan, asked))

    _, (plan, asked) = _borrow(call(("plan", *key), plan_and_ask, batch))
    # The copy starts before the forward pass, so that the host reads it while the pass runs.
    on_host = HostCopy(asked)
    changed = None if later is None else later()
    if changed is not None:
        batch = changed
        _, (plan, asked) = _borrow(call(("plan", *key), plan_and_ask, batch))
        on_host = HostCopy(asked)
    key = *key, tuple(part is None for part in plan)

    def run_forward(tree: Any) -> tuple[Any, Any]:
        limits, plan = tree
        return tree, Borrowed(_hidden_of(model, free, limits, plan=plan, kv=kv))

    _, hidden = _borrow(call(("forward", *key), run_forward, (batch.limits, plan)))
    rules = tuple(
        None if one is None else group_rules(config, one, hidden.device)
        for config, one in zip(configs, on_host.read(), strict=True)
    )
    given: dict[str, Any] = {"shape": shape, "policy": policy}
    if call is run_eagerly or any(one is not None and one.completes for one in rules):
        # The plan may lie in the buffers of a graph, and the result refers to it.
        plan = map_tree(plan, torch.clone) if call is not run_eagerly else plan
        readings = read_groups(model, configs, batch, plan=plan, hidden=hidden, rules=rules)
        return decide_groups(model, configs, batch, plan=plan, readings=readings, **given)

    def commit(tree: Any) -> tuple[Any, Any]:
        batch, plan, hidden, tables = tree
        some = tuple(None if one is None else one.rules() for one in tables)
        readings = read_groups(model, free, batch, plan=plan, hidden=hidden, rules=some)
        made = decide_groups(model, free, batch, plan=plan, readings=readings, **given)
        pairs = zip(batch.groups, made.steps, readings, limited, strict=True)
        writes = tuple(
            _writes_of(state, steps[0].decision, reading) if one else None
            for state, steps, reading, one in pairs
        )
        return tree, (made, readings, writes)

    tables = tuple(None if one is None else AllowedTables.of(one) for one in rules)
    tree = batch, plan, hidden, tables
    tree, (made, readings, writes) = call(("commit", *key), commit, tree)
    sent, kept = HostCopy(writes), tree[1]  # the next plan overwrites the buffers of this one

    def check() -> StepResult | None:
        pairs = zip(configs, sent.read(), strict=True)
        if all(one is None or _all_fit(config, one) for config, one in pairs):
            return None
        return _decide_again(model, configs, batch, plan=kept, readings=readings, **given)

    if later is not None:
        return made._replace(check=check)
    return check() or made


def _decide_again(
    model: Model, configs: Sequence[Config], batch: BatchState, *, plan: StepPlan, **given: Any
) -> StepResult:
    """Let the groups decide with the host, after their writes have contradicted each other."""
    # The plan may lie in the buffers of a graph, and the result refers to it.
    return decide_groups(model, configs, batch, plan=map_tree(plan, torch.clone), **given)


def _borrow(result: tuple[Any, Borrowed]) -> tuple[Any, Any]:
    """Return the result of a call without the mark on its output."""
    tree, output = result
    return tree, output.value


def _writes_of(state: DecodeState, decision: Decision, reading: GroupReading) -> Writes:
    """Return what the host must know about the writes of a step."""
    tokens, masked = state.canvas[:2]
    return Writes(tokens, masked, state.answer, decision.written, reading.proposal, reading.score)


def _all_fit(config: Config, writes: Writes) -> bool:
    """Return whether all writes of a step leave the answers completable."""
    assert config.constraint is not None
    return fitting_writes(config.constraint, writes) is None


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
        copies = copies_at(configs, groups, index, limits=limits)
        index = _own_columns(limits, index)
        return StepPlan(canvas, attended, masks, index, overflow, copies=copies)
    needed, extra = must_compute(canvas, attended, read_mask), torch.zeros_like(read_mask)
    if shape.reuse:
        assert policy is not None
        assert batch.stored is not None
        if policy.exact:
            needed = changed_blocks(model, canvas, needed, stored=batch.stored)
        else:
            needed = needed & (canvas.tokens != batch.stored.tokens)
        asked = [
            policy.positions_to_refresh(state, mask, batch.stored)
            for state, mask in zip(groups, masks, strict=True)
        ]
        extra = asked[0] if len(asked) == 1 else torch.stack(asked).any(0)
    window = choose_window(read_mask, needed, extra, real=canvas.real, size=shape.size)
    count = (read_mask | needed).sum(-1)
    too_many = count > shape.size
    if shape.reuse and policy is not None and policy.exact:
        # The rest of the window repeats a position: all others are stored as they are, and in a
        # mixture of experts they would need more experts. Masked copies must not be repeated.
        copied = any(config.strategy.reads_copies for config in configs)
        window = limit_columns(window, count.clamp(min=shape.width if copied else 1))
    if limits is not None and shape.reuse:
        window = limit_columns(window, limits.size)
        too_many = (count > limits.size) | (limits.size == 0)
    copies = copies_at(configs, groups, window[:, : shape.width], limits=limits)
    index = _own_columns(limits, window[:, : shape.width])
    return StepPlan(canvas, attended, masks, index, overflow, window, too_many, copies)


def copies_at(
    configs: Sequence[Config],
    groups: Sequence[DecodeState],
    index: Tensor,
    *,
    limits: RowLimits | None = None,
) -> Tensor | None:
    """Return (R, Q) bool: the positions `index` that have a masked copy; None if no row has one."""
    found = None
    for config, state in zip(configs, groups, strict=True):
        mask = config.strategy.copied(state.canvas, state.state)
        if mask is not None:
            mask = mask & state.canvas.real & ~state.done[:, None]
            found = mask if found is None else found | mask
    if found is None:
        return None
    copies = found.gather(1, index)
    if limits is None:
        return copies
    # Columns beyond the limit repeat the first one, which has only one copy.
    column = torch.arange(index.shape[1], device=index.device)
    return copies & (column < limits.width[:, None])


def changed_blocks(model: Model, canvas: Canvas, needed: Tensor, *, stored: StoredInputs) -> Tensor:
    """Return (R, L) bool: every block with a needed position that has changed since it was stored.

    Positions of a block attend to one another, so a new token changes the keys of all of them.
    """
    return whole_blocks(model, canvas, needed & (canvas.tokens != stored.tokens))


def read_first(mask: Tensor, width: int) -> Tensor:
    """Return (R, width) long: the positions of the mask from the left, then filler."""
    return smallest((~mask).to(torch.uint8), width)


def _own_columns(limits: RowLimits | None, index: Tensor) -> Tensor:
    return index if limits is None else limit_columns(index, limits.width)


def join_canvases(groups: Sequence[DecodeState]) -> Canvas:
    """Return one canvas for all groups. Each row belongs to at most one group."""
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
    """Return (G, R, Q, D), the hidden states of the positions read; G is 2 under guidance.

    Guidance runs every row twice in one forward pass: unchanged, and with the prompt masked.
    """
    canvas, window, attended = plan.canvas, plan.window, plan.attended
    copies = {} if plan.copies is None else {"copies": plan.copies}
    if not guided:
        index = plan.read_index
        return model.hidden(canvas.tokens, attended, index, window=window, kv=kv, **copies)[None]
    blind = torch.where(canvas.slot >= 0, canvas.tokens, model.mask_id)
    tokens, index = torch.cat([canvas.tokens, blind]), torch.cat([plan.read_index] * 2)
    attended = None if attended is None else torch.cat([attended, attended])
    window = None if window is None else torch.cat([window, window])
    copies = {name: torch.cat([mask, mask]) for name, mask in copies.items()}
    hidden = model.hidden(tokens, attended, index, window=window, kv=kv, **copies)
    return hidden.unflatten(0, (2, -1))


def count_computed(
    configs: Sequence[Config],
    canvas: Canvas,
    size: int | None = None,
    *,
    copies: Tensor | None = None,
) -> int:
    """Return how many positions a forward pass computes; guidance computes each twice."""
    rows, length = canvas.tokens.shape
    width = (length if size is None else size) + (0 if copies is None else copies.shape[1])
    return rows * width * (2 if configs[0].cfg_scale > 0 else 1)


def is_constrained(configs: Sequence[Config]) -> bool:
    """Return whether any group has a constraint: the host then works between parts of a step."""
    return any(config.constraint is not None for config in configs)


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
    readings = read_groups(model, configs, batch, plan=plan, hidden=hidden)
    given: dict[str, Any] = {"shape": shape, "policy": policy}
    return decide_groups(model, configs, batch, plan=plan, readings=readings, **given)


class GroupReading(NamedTuple):
    """What a step has read for a group. The first three fields are those of its state."""

    proposal: Tensor
    stats: Stats
    score: Tensor
    bad: Tensor  # (R,) bool: a logit of the row is NaN, or none is finite
    others: TopAlternatives | None  # the likeliest tokens, if the config keeps some


def read_groups(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    plan: StepPlan,
    hidden: Tensor,
    rules: Sequence[GroupRules | None] = (),
) -> tuple[GroupReading, ...]:
    """Read the hidden states for every group, under the rules of its constraint."""
    found, index = [], plan.read_index
    for config, state, mask, rule in zip(
        configs, batch.groups, plan.read_masks, rules or (None,) * len(configs), strict=True
    ):
        reading = score_positions(model, config, state, index=index, hidden=hidden, rules=rule)
        bad = (reading.bad & mask.gather(-1, index)).any(-1)
        after = store_readings(config, state, index=index, reading=reading)
        others = top_alternatives(index, reading, state.canvas)
        found.append(GroupReading(after.proposal, after.stats, after.score, bad, others))
    return tuple(found)


def decide_groups(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    plan: StepPlan,
    readings: Sequence[GroupReading],
    shape: StepShape,
    policy: Cache | None,
) -> StepResult:
    """Let every group decide on what it has read, write the canvases, update the cache.

    A config without its constraint keeps writes that contradict each other.
    """
    void = plan.overflow
    if plan.window_overflow is not None:
        void = void | plan.window_overflow
    cost = count_computed(configs, plan.canvas, shape.size, copies=plan.copies)
    states, steps, idle = [], [], []
    for config, state, reading in zip(configs, batch.groups, readings, strict=True):
        proposal, stats, score, bad, others = reading
        before = replace_fields(state, proposal=proposal, stats=stats, score=score)
        state, view, decision = decide_and_write(config, before, model.mask_id, bad=bad, void=void)
        waits = before.done | bad | void | (before.step >= before.steps)
        idle.append(is_idle(before, state, decision) & ~waits)
        step = Step(0, 1, cost, view, decision, state.canvas, state.final, state.done, others)
        states.append(state)
        steps.append((step,))
    stored, stale = batch.stored, 0
    if policy is not None:
        stored, stale = _update_stored(policy, batch, states, plan=plan, reuse=shape.reuse)
    held = 0 if plan.window_overflow is None else plan.window_overflow.long()
    flags = []
    for config, before, state, still in zip(configs, batch.groups, states, idle, strict=True):
        need = None
        if shape.track_need:
            attended = config.strategy.attended(state.canvas, state.state)
            read_mask = candidates(config, state)
            needed = must_compute(state.canvas, attended, read_mask)
            if policy is not None and policy.exact and stored is not None:
                needed = changed_blocks(model, state.canvas, needed, stored=stored) | read_mask
            need = needed.sum(-1)
        one = pack_flags(
            state,
            overflow=plan.overflow,
            window_overflow=held,
            needs_refresh=stale,
            need=need,
            idle_step=torch.where(still, before.step + 1, 0),
        )
        flags.append(one if len(configs) == 1 else only_occupied(one, state))
    after = BatchState(tuple(states), stored, batch.limits, batch.rows)
    return StepResult(after, tuple(steps), sum_groups(flags))


_compiled_commit = compiled_with_model(commit_step)


def pack_flags(
    state: DecodeState,
    *,
    overflow: Tensor,
    steps: Tensor | int = 1,
    window_overflow: Tensor | int = 0,
    needs_refresh: Tensor | int = 0,
    need: Tensor | None = None,
    idle_step: Tensor | int = 0,
) -> Tensor:
    """Return (2, R) long: the flags of a group's rows; see RowFlags.

    `idle_step` is 1 + the step of an idle row, and 0 for the others.
    """
    packed = state.done + 2 * overflow.long() + 4 * window_overflow + 8 * needs_refresh
    # A row with a bad step has ended, so its step is not idle.
    packed = packed + 16 * (idle_step > 0) + 32 * steps + 4096 * (state.bad_step + 1 + idle_step)
    return torch.stack([packed, torch.zeros_like(packed) if need is None else need])


def is_idle(before: DecodeState, after: DecodeState, decision: Decision) -> Tensor:
    """Return (R,) bool: rows with masked positions, of which the step decided none."""
    moved = decision.commit | (after.final & ~before.final)
    # One maximum over the positions, so that a compiled step needs no further kernel.
    return torch.where(moved, 2, before.canvas.masked.long()).amax(-1) == 1


def sum_groups(parts: Sequence[Tensor]) -> Tensor:
    """Add up the groups' reports; a row is occupied in one group and 0 in the others."""
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
) -> tuple[StoredInputs, Tensor]:
    """Return what the cache now holds, and (R,) long: 1 for rows that need a refresh."""
    tokens = plan.canvas.tokens
    sure = [
        mean_probability(state.stats.logp, mask)
        for state, mask in zip(states, plan.read_masks, strict=True)
    ]
    began = [state.step for state in batch.groups]
    if len(states) > 1:  # a row counts only in the group of its request
        occupied = [state.occupied for state in states]
        sure = [torch.where(here, part, 0) for here, part in zip(occupied, sure, strict=True)]
        began = [torch.where(here, part, 0) for here, part in zip(occupied, began, strict=True)]
    sure, began = sum_groups(sure), sum_groups(began)
    done = states[0].done
    for state in states[1:]:
        done = done & state.done
    if plan.window is not None:
        computed = to_mask(plan.window, tokens.shape[1])
        if policy.exact and plan.attended is not None:
            # Keys of hidden positions were computed without the text that comes before them.
            computed = computed & plan.attended
        # A position that was never computed has no token, so it counts as changed when needed.
        reused = batch.stored.tokens if reuse and batch.stored is not None else -1
        tokens = torch.where(computed, tokens, reused)
    elif policy.exact and plan.attended is not None:
        tokens = torch.where(plan.attended, tokens, -1)
    if reuse and batch.stored is not None:
        stored = replace_fields(batch.stored, tokens=tokens)
    else:
        stored = StoredInputs(tokens, began, sure)
    return stored, (policy.needs_refresh(sure, stored) & ~done).long()


def kv_rows(rows: Tensor, count: int, *, guided: bool) -> Tensor:
    """Return which rows of the keys and values belong to `rows` (K,) of a batch of `count` rows.

    Guidance computes every row twice, so it stores a second row for each.
    """
    return torch.cat([rows, rows + count]) if guided else rows


def _step_selected_rows(
    model: Model,
    configs: Sequence[Config],
    batch: BatchState,
    *,
    shape: StepShape,
    kv: KV | None,
    policy: Cache | None,
) -> StepResult:
    """Take a step of only `batch.rows` in separate buffers, and copy the rows back."""
    rows = batch.rows
    assert rows is not None
    count, length = batch.groups[0].canvas.tokens.shape
    part = map_tree(batch._replace(rows=None), lambda leaf: leaf.index_select(0, rows))
    guided = configs[0].cfg_scale > 0
    own, index = None, kv_rows(rows, count, guided=guided)
    if kv is not None and shape.reuse:
        own = map_tree(kv, lambda leaf: leaf.index_select(0, index))
    elif kv is not None:
        own = model.new_kv(len(index), length)
    result = take_step(model, configs, part, shape=shape, kv=own, policy=policy)
    if kv is not None and own is not None:
        for buffers, parts in zip(kv, own, strict=True):
            for buffer, fresh in zip(buffers, parts, strict=True):
                buffer.index_copy_(0, index, fresh)
    pairs = zip(batch.groups, result.batch.groups, strict=True)
    groups = tuple(scatter_rows(old, rows, new) for old, new in pairs)
    stored = batch.stored
    if stored is not None:
        stored = scatter_rows(stored, rows, result.batch.stored)
    return StepResult(BatchState(groups, stored, batch.limits, rows), result.steps, result.flags)


class ConstraintInputs(NamedTuple):
    """What a constraint must know about a group, to be read on the host."""

    canvas: Canvas
    answer: Tensor  # (R, L) bool
    rows: Tensor  # (R,) bool: the rows that are decoded
    read_index: Tensor  # (R, Q) long: the positions that the step reads
    fill: Tensor  # (R, L) bool: the positions that the step commits in any case


class GroupRules(NamedTuple):
    """The constraint of a group in a step: the tokens that it allows."""

    allowed: AllowedTokens
    inputs: ConstraintInputs | None  # on the host; None: the step need not complete an answer

    @property
    def completes(self) -> bool:
        """Whether the step commits positions in any case, which must be an answer together."""
        return self.inputs is not None and bool(self.inputs.fill.any())


class AllowedTables(NamedTuple):
    """The tensors of the tokens that a constraint allows."""

    table: Tensor  # see AllowedTokens
    which: Tensor
    of_token: Tensor  # (V,) long: the class of each token

    @classmethod
    def of(cls, rules: GroupRules) -> AllowedTables:
        """Return the tables of some rules."""
        allowed = rules.allowed
        return cls(allowed.table, allowed.which, allowed.classes.of_token)

    def rules(self) -> GroupRules:
        """Return the rules of a step that completes no answer."""
        classes = TokenClasses(self.of_token, self.of_token, [])
        return GroupRules(AllowedTokens(self.table, self.which, classes), None)


def group_rules(config: Config, inputs: ConstraintInputs, device: torch.device) -> GroupRules:
    """Find the tokens that a constraint allows, from inputs on the host."""
    assert config.constraint is not None
    allowed = allowed_tokens(
        config.constraint,
        inputs.canvas,
        inputs.answer,
        rows=inputs.rows,
        index=inputs.read_index,
        device=device,
    )
    return GroupRules(allowed, inputs)


def constraint_inputs(config: Config, state: DecodeState, index: Tensor) -> ConstraintInputs:
    """Return what the constraint of a group must know for a step that reads `index` (R, Q)."""
    rows = state.occupied & ~state.done
    fill = _positions_to_complete(config, state, index, rows=rows)
    return ConstraintInputs(state.canvas, state.answer, rows, index, fill)


def score_positions(
    model: Model,
    config: Config,
    state: DecodeState,
    *,
    index: Tensor,
    hidden: Tensor,
    rules: GroupRules | None = None,
) -> Reading:
    """Read the hidden states of the positions `index` (R, Q), one chunk of logits at a time.

    `rules` are those of the group's constraint, if it has one.
    """
    flat, bias = hidden.flatten(1, 2), state.bias

    def logits_of(chunk: slice) -> Tensor:
        logits = model.head(flat[0, chunk])
        if len(flat) > 1:
            blind = model.head(flat[1, chunk])
            logits = blind + (config.cfg_scale + 1) * (logits - blind)
        if bias is None:
            return logits
        stop = min(chunk.stop, index.numel())
        row = torch.arange(chunk.start, stop, device=index.device) // index.shape[1]
        return add_bias(logits, bias.tokens[row], bias.values[row])

    keys = None
    if config.sampling.temperature > 0:
        slot = state.canvas.slot.gather(-1, index)
        keys = noise.key(state.seed, state.step, slot, stream=noise.TOKEN)
    current = state.canvas.tokens.gather(-1, index)
    options: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "mask_id": model.mask_id,
        "sampling": config.sampling,
        "needs": config.needs,
        "alternatives": config.alternatives,
    }
    if rules is None:
        return read(logits_of, keys, current, **options)
    reading, classes = read_allowed(
        logits_of, keys, current, allowed=rules.allowed, score_classes=rules.completes, **options
    )
    inputs = rules.inputs
    if classes is None or inputs is None or config.constraint is None:
        return reading
    # The step commits all of them. Their most probable tokens need not be an answer together.
    bad = reading.bad.cpu() & inputs.fill.gather(-1, inputs.read_index)
    best = best_answers(
        config.constraint,
        inputs.canvas,
        inputs.answer,
        fill=inputs.fill & ~bad.any(-1, keepdim=True),
        index=inputs.read_index,
        scores=classes,
    )
    return reading._replace(
        proposal=torch.where(best.filled, best.token, reading.proposal),
        logp=torch.where(best.filled, best.logp, reading.logp),
    )


def _positions_to_complete(
    config: Config, state: DecodeState, index: Tensor, *, rows: Tensor
) -> Tensor:
    """Return (R, L) bool: the positions that the step commits in any case, if it reads them all.

    `rows` (R,) bool are those that are decoded.
    """
    masked = state.canvas.masked
    fill = masked & state.last[:, None]
    forced = config.strategy.forced(state.canvas, state.state, state.progress)
    if forced is not None:
        fill = fill | (forced & masked)
    missed = fill & ~to_mask(index, masked.shape[1])
    return fill & (rows & ~missed.any(-1))[:, None]


def store_readings(
    config: Config, state: DecodeState, *, index: Tensor, reading: Reading
) -> DecodeState:
    """Write a reading into the state at `index`, with the scores that follow from it."""
    fresh = Stats(reading.logp, reading.margin, reading.entropy, reading.current_logp)
    score = score_by_priority(config, state, state.canvas.slot.gather(-1, index), stats=fresh)
    if config.priority == "entropy":
        # A model that is certain of the mask token is not certain of any token to write.
        score = score.masked_fill(reading.prefers_mask, float("-inf"))
    if config.sampling.eos in LAST:
        ends = is_any(reading.proposal, config.sampling.stop_ids)
        score = score.masked_fill(ends, float("-inf"))  # committed only if nothing else is left
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
    """Return the likeliest tokens of the positions `index`; elsewhere their probability is 0."""
    tokens, logp = reading.alternatives, reading.alternatives_logp
    if tokens is None or logp is None:
        return None
    where = index[..., None].expand_as(tokens)
    board = tokens.new_zeros((*canvas.tokens.shape, tokens.shape[-1]))
    never = torch.full_like(board, float("-inf"), dtype=logp.dtype)
    return TopAlternatives(board.scatter(1, where, tokens), never.scatter(1, where, logp))


def score_by_priority(config: Config, state: DecodeState, slot: Tensor, *, stats: Stats) -> Tensor:
    """Return (R, Q) float32: the priority of the positions in `slot`, including order noise."""
    if config.priority == "random":
        score = noise.uniform(noise.key(state.seed, state.step, slot, stream=noise.PRIORITY))
    else:
        score = priority_score(config.priority, stats)
    if config.order_noise > 0:
        order = noise.key(state.seed, state.step, slot, stream=noise.ORDER)
        score = score + config.order_noise * noise.gumbel(order)
    return score
