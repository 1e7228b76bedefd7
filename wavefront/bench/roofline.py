"""Roofline: the minimum time of a step on a machine, computed from the model's configuration.

A full step multiplies every position with every layer, so arithmetic limits it. A step that
computes a window reads all weights, keys and values for few positions, so memory limits it. The
floor of either is the larger of the two times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from wavefront.bench.machine import DeviceLimits
from wavefront.models.architecture import Architecture


class StepCost(NamedTuple):
    """The minimum arithmetic and memory traffic of a step."""

    flops: float
    bytes: float

    def floor(self, limits: DeviceLimits) -> float:
        """Return the minimum time in seconds."""
        return max(self.flops / limits.flops, self.bytes / limits.bandwidth)


# Bytes per weight of the layers and of the head, by quantisation; the head of int4 is int8.
WEIGHT_BYTES = {"int8": (1.0, 1.0), "fp8": (1.0, 1.0), "int4": (4.5 / 8, 1.0)}


def layer_weights(arch: Architecture, positions: int = 1, *, experts: float | None = None) -> int:
    """Return the number of matrix entries of all layers that this many positions use together.

    A mixture of experts uses more of them with more positions. `experts` is the counted number of
    a layer. Without it, the number is the expected one if positions choose their experts
    independently, which is too large for positions with similar inputs.
    """
    used, layout = experts, arch.experts
    if used is None and layout is not None and positions > 1:
        used = layout.count * (1 - (1 - layout.per_token / layout.count) ** positions)
    project = arch.width * (2 * arch.heads + 2 * arch.kv_heads) * arch.head_dim
    return sum(project + arch.mlp_weights(layer, used) for layer in range(arch.layers))


def full_step(
    arch: Architecture, length: int, *, read: int, rows: int = 1, dtype: torch.dtype
) -> StepCost:
    """Return the cost of computing every position, with the head on `read` positions of a row."""
    weights, head = layer_weights(arch), arch.width * arch.vocab_size
    attention = 4 * length**2 * arch.heads * arch.head_dim * arch.layers
    flops = rows * (2 * weights * length + attention + 2 * head * read)
    return StepCost(flops, dtype.itemsize * (layer_weights(arch, rows * length) + head))


def window_step(
    arch: Architecture,
    length: int,
    *,
    size: int,
    read: int,
    rows: int = 1,
    dtype: torch.dtype,
    quantized: str | None = None,
    experts: float | None = None,
) -> StepCost:
    """Return the cost of computing `size` positions of a row against all keys and values.

    `experts` is the counted number of different experts that a layer uses; see `layer_weights`.
    """
    weights, head = layer_weights(arch), arch.width * arch.vocab_size
    attention = 4 * length * size * arch.heads * arch.head_dim * arch.layers
    stored = 2 * arch.layers * rows * length * arch.kv_heads * arch.head_dim
    flops = rows * (2 * weights * size + attention + 2 * head * read)
    used = layer_weights(arch, rows * size, experts=experts)
    of_layer, of_head = WEIGHT_BYTES.get(quantized or "", (dtype.itemsize, dtype.itemsize))
    return StepCost(flops, of_layer * used + of_head * head + dtype.itemsize * stored)


def fp8_step(
    arch: Architecture, length: int, *, read: int, limits: DeviceLimits, fp8_flops: float
) -> float:
    """Return the minimum seconds of a step over a whole canvas whose layers multiply in fp8.

    Attention and the few rows of the head are computed in the model's dtype.
    """
    attention = 4 * length**2 * arch.heads * arch.head_dim * arch.layers
    head = 2 * arch.width * arch.vocab_size * read
    return 2 * layer_weights(arch) * length / fp8_flops + (attention + head) / limits.flops
