"""Floors: the least time that a step can take on a machine, from what its configuration needs.

A full step multiplies every place with every layer: it is bound by arithmetic. A step that computes
a window reads all weights and all stored keys and values for few places: it is bound by memory. The
floor of either is the larger of the two times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from wavefront.bench.machine import Limits
from wavefront.models.architecture import Architecture


class Need(NamedTuple):
    """What a step cannot do without."""

    flops: float
    bytes: float

    def floor(self, limits: Limits) -> float:
        """Seconds."""
        return max(self.flops / limits.flops, self.bytes / limits.bandwidth)


def layer_weights(arch: Architecture) -> int:
    """Entries of the matrices of all blocks."""
    project = arch.width * (arch.heads + 2 * arch.kv_heads) * arch.head_dim
    return arch.layers * (project + arch.width**2 + 3 * arch.width * arch.mlp_width)


def full(arch: Architecture, length: int, *, read: int, rows: int = 1, dtype: torch.dtype) -> Need:
    """Every place computed, the head on the `read` places of each row."""
    weights, head = layer_weights(arch), arch.width * arch.vocab_size
    attention = 4 * length**2 * arch.width * arch.layers
    flops = rows * (2 * weights * length + attention + 2 * head * read)
    return Need(flops, dtype.itemsize * (weights + head))


def window(
    arch: Architecture, length: int, *, size: int, read: int, rows: int = 1, dtype: torch.dtype
) -> Need:
    """`size` places of each row computed against the stored keys and values of all."""
    weights, head = layer_weights(arch), arch.width * arch.vocab_size
    attention = 4 * length * size * arch.width * arch.layers
    stored = 2 * arch.layers * rows * length * arch.kv_heads * arch.head_dim
    flops = rows * (2 * weights * size + attention + 2 * head * read)
    return Need(flops, dtype.itemsize * (weights + head + stored))
