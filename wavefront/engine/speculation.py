"""Speculation: several steps per forward pass, the same steps as one per forward pass would take.

From the last readings, the strategy's own steps run ahead. That gives a draft: a chain of canvases
of which only the first is certain. One forward pass reads all of them. Then the true steps are
taken one after another, each from the reading of its own canvas, for as long as the draft matches
(self-speculative decoding, arXiv 2510.04147, with a chain as its tree).

The quality of the draft only changes how many steps a forward pass yields, at least one.
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

    `shape.width` positions of each canvas are read. Read every position to fill: a position that
    was never read cannot be drafted.
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
        plans.append((canvas, attended))
    canvas = join([canvas for canvas, _ in plans])
    attended = None if plans[0][1] is None else torch.cat([one for _, one in plans])
    no = torch.zeros(canvas.tokens.shape[0], dtype=torch.bool, device=index.device)
    hidden = forward(
        model,
        StepPlan(canvas, attended, (), indices, no),
        guided=configs[0].cfg_scale > 0,
    )
    cost = count_computed(configs, canvas)
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
    """Take the true steps of a group for as long as its draft matches, each row by itself."""
    was_read = to_mask(index, state.canvas.tokens.shape[1])
    right = torch.ones_like(state.done)  # rows whose draft matches so far
    overflow, made = ~right, torch.zeros_like(state.step)
    steps = []
    for node, reading in zip(nodes, readings, strict=True):
        right = right & _same_forward(node, state) & _same_attention(config, node, state)
        made = made + (right & ~state.done)
        mask = candidates(config, state)
        missed = (mask & ~was_read).any(-1)
        bad = (reading.bad & mask.gather(-1, index)).any(-1)
        overflow = overflow | (missed & right)
        # A row whose draft was wrong stands still, and keeps its last true reading to draft from.
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
    """Return the state as it is, and after each step that its last reading would take."""
    no = torch.zeros_like(state.done)
    nodes = [state]
    for _ in range(depth - 1):
        ahead = nodes[-1]
        if config.order_noise > 0 or config.priority == "random":
            # The noise of a later step is known; positions held back stay held back.
            score = score_by_priority(config, ahead, ahead.canvas.slot, ahead.stats)
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
    """(R,) bool: the reading of `node` is that of `state`.

    A reading depends on the tokens, and through its noise on the step. The rest of a strategy's
    state may be drafted wrong: it is carried on truly, and only matters for what it hides.
    """
    return (node.canvas.tokens == state.canvas.tokens).all(-1) & (node.step == state.step)


def _same_attention(config: Config, node: DecodeState, state: DecodeState) -> Tensor:
    """(R,) bool: the model attended to the same positions in both."""
    drafted = config.strategy.attended(node.canvas, node.state)
    true = config.strategy.attended(state.canvas, state.state)
    if drafted is None or true is None:
        return torch.ones_like(state.done)
    return (drafted == true).all(-1)


def _split(reading: Reading, count: int) -> list[Reading]:
    """Return the reading of each of `count` canvases."""
    columns = [(None,) * count if c is None else c.chunk(count) for c in reading]
    return [Reading(*column) for column in zip(*columns, strict=True)]  # pyright: ignore[reportArgumentType]
