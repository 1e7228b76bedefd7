"""Windows: which positions of every row a step computes, and how many.

A strategy with a horizon hides positions from the model. Hidden positions are not attended to, so
they need not be computed. A cached step computes a window and reads the rest from stored keys and
values. The number of positions is rounded up to a multiple of BUCKET, so there are few shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.masks import distance, smallest
from wavefront.core.state import Config, DecodeState

BUCKET = 64


def attended_positions(
    configs: Sequence[Config], groups: Sequence[DecodeState], canvas: Canvas
) -> Tensor | None:
    """Return (R, L) bool: the positions the model may attend to; None if no strategy hides any."""
    shown = [
        config.strategy.attended(state.canvas, state.state)
        for config, state in zip(configs, groups, strict=True)
    ]
    if len(shown) == 1:
        return None if shown[0] is None else shown[0] & canvas.real
    if all(mask is None for mask in shown):
        return None
    attended = canvas.real
    for mask, state in zip(shown, groups, strict=True):
        if mask is not None:
            attended = torch.where(state.occupied[:, None], mask & attended, attended)
    return attended


def must_compute(canvas: Canvas, attended: Tensor | None, read_mask: Tensor) -> Tensor:
    """Return (R, L) bool: the positions to compute, which are those attended to or read."""
    return (canvas.real if attended is None else attended & canvas.real) | read_mask


def bucket_size(need: int, length: int, *, lag: int = 0) -> int:
    """Return how many positions to compute if the last report needed `need`.

    The report is `lag` steps old and the number may have grown since, so this adds a margin.
    """
    room = need + lag * BUCKET // 4
    return min(length, -(-room // BUCKET) * BUCKET)


def choose_window(
    read_mask: Tensor, needed: Tensor, asked: Tensor, *, real: Tensor, size: int
) -> Tensor:
    """Return (R, size) long: the positions to compute.

    The order is: positions read, needed, requested by the cache policy, and nearest to those read.
    Padding comes last, so the choice does not depend on the length of the batch.
    """
    length = read_mask.shape[-1]
    order = distance(read_mask).clamp(max=length).int() + 3 * length
    order = torch.where(real, order, order + 3 * length)
    order = torch.where(asked, order - length, order)
    order = torch.where(needed, order * 0 + length, order)
    order = torch.where(read_mask, 0, order)
    return smallest(order, size)


def limit_columns(index: Tensor, count: Tensor) -> Tensor:
    """Keep the first `count` (R,) columns of each row of `index`; the others repeat the first."""
    column = torch.arange(index.shape[1], device=index.device)
    return torch.where(column < count[:, None], index, index[:, :1])
