"""Speculate: several steps a forward, and the very ones that a step a forward would have made.

From what the last forward said, the strategy's own steps are run ahead: that is a draft, a chain of
canvases of which only the first is certain. One forward reads them all. Then the true steps are
made one after another, each from the reading of its own canvas, for as long as the draft had
foreseen that canvas (self-speculative decoding, 2510.04147, with the chain as its tree).

Nothing depends on how good the draft is but the number of steps a forward makes, at least one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavefront.core.errors import check_int
from wavefront.core.masks import marked
from wavefront.core.reading import Reading
from wavefront.core.state import Config, DecodeState, Step, candidates, decide_and_write
from wavefront.core.tree import choose, join
from wavefront.engine.step import (
    StepFn,
    alternatives,
    computed,
    forward,
    pack_flags,
    score_positions,
    scored,
    store_readings,
)
from wavefront.models.loader import Model


def speculate(draft: int, places: int = 0) -> StepFn:
    """A `StepFn` that computes `draft` canvases a forward and makes up to so many steps.

    Of each canvas `places` places are read, or as many as the loop asks for if that is more. Give
    all there are to fill: what was never read is never foreseen.
    """
    check_int("draft", draft, 1)

    def run(
        model: Model, config: Config, rows: DecodeState, width: int, padded: bool
    ) -> tuple[DecodeState, list[Step], Tensor]:
        nodes = _foreseen(config, rows, model.mask_id, draft)
        at = _places(config, rows, max(width, places))
        joined = join(nodes)
        states = forward(model, config, joined, at.repeat(draft, 1), padded)
        reading = score_positions(model, config, joined, at.repeat(draft, 1), states)
        cost = computed(config, joined.canvas)

        read = marked(at, rows.canvas.tokens.shape[1])
        right = torch.ones_like(rows.done)  # the rows whose draft is right so far
        steps, busy, overflow = [], [], ~right
        for node, one in zip(nodes, _apart(reading, draft), strict=True):
            right = right & _same_forward(node, rows) & _same_sight(config, node, rows)
            busy.append((right & ~rows.done).any())
            wanted = candidates(config, rows)
            missed = (wanted & ~read).any(-1)
            bad = (one.bad & wanted.gather(-1, at)).any(-1)
            overflow = overflow | (missed & right)
            # A row whose draft was wrong stands still, and keeps its last true reading to draft by.
            rows = choose(right, store_readings(config, rows, at, one), rows)
            rows, view, decision = decide_and_write(
                config, rows, model.mask_id, bad=bad, void=missed | ~right
            )
            others = alternatives(at, one, rows.canvas)
            steps.append(
                Step(0, 1, cost, view, decision, rows.canvas, rows.final, rows.done, others)
            )
        made = torch.stack(busy).sum().clamp(min=1)
        bad = (rows.bad_step >= 0).any()
        never = torch.zeros_like(bad)
        return rows, steps, pack_flags(rows.done.all(), overflow.any(), bad, made, never)

    return run


def _foreseen(config: Config, rows: DecodeState, mask_id: int, count: int) -> list[DecodeState]:
    """The rows as they are, and after each of the steps that their last reading would make."""
    no = torch.zeros_like(rows.done)
    nodes = [rows]
    for _ in range(count - 1):
        ahead = nodes[-1]
        if config.order_noise > 0 or config.priority == "random":
            # The noise of a step to come is known; what was held back stays so.
            score = scored(config, ahead, ahead.canvas.slot, ahead.stats)
            ahead = ahead._replace(score=torch.where(ahead.score.isneginf(), ahead.score, score))
        nodes.append(decide_and_write(config, ahead, mask_id, bad=no, void=no)[0])
    return nodes


def _places(config: Config, rows: DecodeState, width: int) -> Tensor:
    """(B, width) long: what to read, the same of every node: reach first, then all to be filled."""
    outside = (rows.canvas.slot < 0).to(torch.uint8) + 1
    order = outside.masked_fill(candidates(config, rows), 0)
    return order.argsort(dim=-1, stable=True)[:, :width]


def _same_forward(node: DecodeState, rows: DecodeState) -> Tensor:
    """(B,) bool: the reading of `node` is that of `rows`.

    A reading comes of the tokens, and of the step by its noise. What else a strategy keeps may be
    drafted wrong: it is carried on truly, and has no part in a forward but by what it hides.
    """
    return (node.canvas.tokens == rows.canvas.tokens).all(-1) & (node.step == rows.step)


def _same_sight(config: Config, node: DecodeState, rows: DecodeState) -> Tensor:
    """(B,) bool: the model was shown the same places. A strategy may choose them by its state."""
    drafted = config.strategy.attended(node.canvas, node.state)
    true = config.strategy.attended(rows.canvas, rows.state)
    if drafted is None or true is None:
        return torch.ones_like(rows.done)
    return (drafted == true).all(-1)


def _apart(reading: Reading, count: int) -> list[Reading]:
    """The reading of each of `count` nodes."""
    columns = [(None,) * count if c is None else c.chunk(count) for c in reading]
    return [Reading(*column) for column in zip(*columns, strict=True)]  # pyright: ignore[reportArgumentType]
