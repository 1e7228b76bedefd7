"""Roofline: the least time that a step can take on a machine, from the model's configuration.

A full step multiplies every position with every layer, so arithmetic limits it. A step that
computes a window reads all weights, keys and values for few positions, so memory limits it. The
floor of either is the larger of the two times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from wavefront.bench.machine import Limits
from wavefront.models.architecture import Architecture


class StepCost(NamedTuple):
    """The arithmetic and the memory traffic that a step needs at least."""

    flops: float
    bytes: float

    def floor(self, limits: Limits) -> float:
        """Return the least time in seconds."""
        return max(self.flops / limits.flops, self.bytes / limits.bandwidth)


def layer_weights(arch: Architecture) -> int:
    """Return the number of matrix entries of all layers."""
    project = arch.width * (arch.heads + 2 * arch.kv_heads) * arch.head_dim
    return arch.layers * (project + arch.width**2 + 3 * arch.width * arch.mlp_width)


def full_step(
    arch: Architecture, length: int, *, read: int, rows: int = 1, dtype: torch.dtype
) -> StepCost:
    """Return the cost of computing every position, with the head on `read` positions of a row."""
    weights, head = layer_weights(arch), arch.width * arch.vocab_size
    attention = 4 * length**2 * arch.width * arch.layers
    flops = rows * (2 * weights * length + attention + 2 * head * read)
    return StepCost(flops, dtype.itemsize * (weights + head))


def window_step(
    arch: Architecture, length: int, *, size: int, read: int, rows: int = 1, dtype: torch.dtype
) -> StepCost:
    """Return the cost of computing `size` positions of a row against all keys and values."""
    weights, head = layer_weights(arch), arch.width * arch.vocab_size
    attention = 4 * length * size * arch.width * arch.layers
    stored = 2 * arch.layers * rows * length * arch.kv_heads * arch.head_dim
    flops = rows * (2 * weights * size + attention + 2 * head * read)
    return StepCost(flops, dtype.itemsize * (weights + head + stored))
