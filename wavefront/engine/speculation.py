"""Speculation: several steps per forward pass, with the same result as one step per pass.

The strategy runs ahead on the last readings. This gives a draft: a chain of canvases of which only
the first is certain. One forward pass reads all of them. The true steps then follow the chain, each
with the reading of its own canvas, for as long as the draft matches. This is self-speculative
decoding (arXiv 2510.04147) with a chain instead of a tree.

The quality of the draft affects only the number of steps per forward pass, which is at least one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wavefront.core.masks import to_mask
from wavefront.core.reading import Reading
from wavefront.core.state import Config, DecodeState, Step, candidates, decide_and_write
from wavefront.core.tree import choose, join
from wavefront.engine.step import (
    BatchState,
    StepPlan,
    StepResult,
    StepShape,
    copies_at,
    count_computed,
    forward,
    join_canvases,
    only_occupied,
    pack_flags,
    score_by_priority,
    score_positions,
    store_readings,
    sum_groups,
    top_alternatives,
)
from wavefront.engine.window import attended_positions
from wavefront.models.protocol import Model


def speculative_step(
    model: Model, configs: Sequence[Config], batch: BatchState, *, shape: StepShape, depth: int
) -> StepResult:
    """Compute `depth` canvases in one forward pass and take up to `depth` steps of every row.

    `shape.width` positions of each canvas are read. It must cover every position to fill, because a
    position that was never read cannot be drafted.
    """
    drafts = [
        _draft(config, state, mask_id=model.mask_id, depth=depth)
        for config, state in zip(configs, batch.groups, strict=True)
    ]
    index = _positions_to_read(configs, batch.groups, shape.width)
    indices = index.repeat(depth, 1)
    plans = []
    for nodes in zip(*drafts, strict=True):
        canvas = join_canvases(nodes)
        attended = attended_positions(configs, nodes, canvas)
        if attended is None and shape.padded:
            attended = canvas.real
        plans.append((canvas, attended, copies_at(configs, nodes, index)))
    canvas = join([canvas for canvas, _, _ in plans])
    attended = None if plans[0][1] is None else torch.cat([mask for _, mask, _ in plans])
    copies = None if plans[0][2] is None else torch.cat([mask for _, _, mask in plans])
    no = torch.zeros(canvas.tokens.shape[0], dtype=torch.bool, device=index.device)
    hidden = forward(
        model,
        StepPlan(canvas, attended, (), indices, no, copies=copies),
        guided=configs[0].cfg_scale > 0,
    )
    cost = count_computed(configs, canvas, copies=copies)
    states, steps, flags = [], [], []
    for config, state, nodes in zip(configs, batch.groups, drafts, strict=True):
        reading = score_positions(model, config, join(nodes), index=indices, hidden=hidden)
        readings = _split(reading, depth)
        taken = _true_steps(
            model, config, state, nodes=nodes, readings=readings, index=index, cost=cost
        )
        states.append(taken[0])
        steps.append(tuple(taken[1]))
        flags.append(taken[2] if len(configs) == 1 else only_occupied(taken[2], taken[0]))
    after = BatchState(tuple(states), batch.stored, batch.limits, batch.rows)
    return StepResult(after, tuple(steps), sum_groups(flags))


def _true_steps(
    model: Model,
    config: Config,
    state: DecodeState,
    *,
    nodes: Sequence[DecodeState],
    readings: Sequence[Reading],
    index: Tensor,
    cost: int,
) -> tuple[DecodeState, list[Step], Tensor]:
    """Take the true steps of a group while its draft matches, for each row separately."""
    was_read = to_mask(index, state.canvas.tokens.shape[1])
    right = torch.ones_like(state.done)  # rows whose draft matches so far
    overflow, made = ~right, torch.zeros_like(state.step)
    steps = []
    for node, reading in zip(nodes, readings, strict=True):
        right = right & _same_forward(node, state) & _same_attention(config, node, state)
        right = right & _same_copies(config, node, state)
        made = made + (right & ~state.done)
        mask = candidates(config, state)
        missed = (mask & ~was_read).any(-1)
        bad = (reading.bad & mask.gather(-1, index)).any(-1)
        overflow = overflow | (missed & right)
        # A row whose draft was wrong does not change, and drafts again from its last true reading.
        read = store_readings(config, state, index=index, reading=reading)
        state, view, decision = decide_and_write(
            config, choose(right, read, state), model.mask_id, bad=bad, void=missed | ~right
        )
        others = top_alternatives(index, reading, state.canvas)
        steps.append(
            Step(0, 1, cost, view, decision, state.canvas, state.final, state.done, others)
        )
    return state, steps, pack_flags(state, overflow=overflow, steps=made.clamp(min=1))


def _draft(config: Config, state: DecodeState, *, mask_id: int, depth: int) -> list[DecodeState]:
    """Return the current state, and the state after each step drafted from its last reading."""
    no = torch.zeros_like(state.done)
    nodes = [state]
    for _ in range(depth - 1):
        ahead = nodes[-1]
        if config.order_noise > 0 or config.priority == "random":
            # The noise of a later step is known; postponed positions stay postponed.
            score = score_by_priority(config, ahead, ahead.canvas.slot, stats=ahead.stats)
            ahead = ahead._replace(score=torch.where(ahead.score.isneginf(), ahead.score, score))
        nodes.append(decide_and_write(config, ahead, mask_id, bad=no, void=no)[0])
    return nodes


def _positions_to_read(
    configs: Sequence[Config], groups: Sequence[DecodeState], width: int
) -> Tensor:
    """(R, width) long, the same for every canvas: candidates, then all positions to fill."""
    slot = join_canvases(groups).slot
    mask = torch.stack([candidates(*pair) for pair in zip(configs, groups, strict=True)]).any(0)
    order = ((slot < 0).to(torch.uint8) + 1).masked_fill(mask, 0)
    return order.argsort(dim=-1, stable=True)[:, :width]


def _same_forward(node: DecodeState, state: DecodeState) -> Tensor:
    """Return (R,) bool: whether a reading of `node` is valid for `state`.

    A reading depends on the tokens and, through its noise, on the step. It also depends on the
    positions that the strategy hides, but on nothing else in the strategy's state.
    """
    return (node.canvas.tokens == state.canvas.tokens).all(-1) & (node.step == state.step)


def _same_attention(config: Config, node: DecodeState, state: DecodeState) -> Tensor:
    """Return (R,) bool: whether the model attended to the same positions in both."""
    drafted = config.strategy.attended(node.canvas, node.state)
    true = config.strategy.attended(state.canvas, state.state)
    if drafted is None or true is None:
        return torch.ones_like(state.done)
    return (drafted == true).all(-1)


def _same_copies(config: Config, node: DecodeState, state: DecodeState) -> Tensor:
    """Return (R,) bool: whether the same positions had masked copies in both."""
    drafted, true = (config.strategy.copied(one.canvas, one.state) for one in (node, state))
    if drafted is None or true is None:
        return torch.ones_like(state.done)
    return (drafted == true).all(-1)


def _split(reading: Reading, count: int) -> list[Reading]:
    """Return the reading of each of `count` canvases."""
    columns = [(None,) * count if c is None else c.chunk(count) for c in reading]
    return [Reading(*column) for column in zip(*columns, strict=True)]  # pyright: ignore[reportArgumentType]
