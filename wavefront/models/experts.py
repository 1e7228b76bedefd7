"""Mixture of experts: a router chooses a few of many small MLPs for every position.

Several functions compute the chosen experts, and all return the same. For a few positions on a GPU
our own kernels read each chosen expert once. For more positions, recent GPUs use one grouped
product per matrix. The others exist for GPUs without it, for fixed shapes and for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.kernels import cpu_product, small_batch_ops
from wavefront.models.architecture import ExpertLayout

# torch's grouped product; older versions have it under a private name, or not at all.
grouped_product: Any = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
FIXED_ROWS = 64  # rows that `all_experts` computes at once
ROW_TILE = 8  # rows of a product on a CPU


class Router(nn.Module):
    """Choose the experts of every position, and their weights, in float32."""

    def __init__(self, width: int, layout: ExpertLayout) -> None:
        super().__init__()
        self.layout = layout
        self.weight = nn.Parameter(torch.empty(layout.count, width))
        # Added to the scores for the choice only. It is a buffer, because it gets no gradient.
        bias = torch.zeros(layout.count) if layout.router == "grouped_sigmoid" else None
        self.register_buffer("expert_bias", bias)
        self.expert_bias: Tensor | None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        """Move to a device or dtype, but keep the bias in float32, as it is published."""
        before = self.expert_bias
        super()._apply(fn, recurse)
        after = self.expert_bias
        if before is not None and after is not None and after.dtype != before.dtype:
            self.expert_bias = before.to(after.device)
        return self

    def forward(self, x: Tensor, use_small_batch_ops: bool = False) -> tuple[Tensor, Tensor]:
        """Return the weights (T, K) float32 and the experts (T, K) long of x (T, D)."""
        layout, grouped = self.layout, self.layout.router == "grouped_sigmoid"
        if use_small_batch_ops and small_batch_ops.router_product_fits(x[None], self.weight):
            parts = small_batch_ops.product(x[None], self.weight)[:, 0]  # sums are in float32
        else:
            dtype = torch.promote_types(x.dtype, torch.float32)
            parts = F.linear(x.to(dtype), self.weight.to(dtype)).to(dtype)[None]
        if use_small_batch_ops and small_batch_ops.route_fits(parts, layout.groups):
            return small_batch_ops.route(
                parts,
                self.expert_bias,
                count=layout.per_token,
                groups=layout.groups,
                kept_groups=layout.kept_groups,
                normalized=layout.router != "softmax" and not (grouped and layout.per_token == 1),
                scale=layout.scale,
            )
        logits = parts[0] if len(parts) == 1 else parts.sum(0)
        if grouped:
            return self._grouped_sigmoid(logits)
        weights, chosen = logits.softmax(-1).topk(layout.per_token)
        if layout.router == "normalized_softmax":
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * layout.scale, chosen

    def _grouped_sigmoid(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose within the best groups of experts. A group scores the sum of its two best."""
        layout = self.layout
        assert self.expert_bias is not None
        scores = logits.sigmoid()
        biased = scores + self.expert_bias
        groups = biased.unflatten(-1, (layout.groups, -1))
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool)
        kept = kept.scatter(-1, best.topk(layout.kept_groups).indices, True)
        allowed = groups.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
        chosen = allowed.topk(layout.per_token).indices
        weights = scores.gather(-1, chosen)
        if layout.per_token > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * layout.scale, chosen


class ExpertWeights(nn.Module):
    """The matrices of all experts of a layer. Gate and up projections are one, gate first."""

    def __init__(self, width: int, layout: ExpertLayout) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(layout.count, 2 * layout.width, width))
        self.down = nn.Parameter(torch.empty(layout.count, width, layout.width))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return (T, K, D): the output of every chosen expert (T, K) for x (T, D)."""
        if can_group(x, self.gate_up):
            return grouped_experts(self, x, chosen)
        if _needs_fixed_shapes(x) or (x.is_cuda and len(x) <= FIXED_ROWS):
            return all_experts(self, x, chosen)
        return padded_experts(self, x, chosen) if x.is_cuda else looped_experts(self, x, chosen)


def can_group(x: Tensor, weight: Tensor) -> bool:
    """Return whether the grouped product runs here without waiting for the device.

    Below compute capability 9.0, and in other dtypes, torch falls back to a loop over the experts.
    """
    if grouped_product is None or not x.is_cuda or x.dtype != torch.bfloat16:
        return False
    aligned = weight.shape[1] % 16 == 0 and weight.shape[2] % 8 == 0  # rows of 16 bytes
    # Not get_device_capability: torch 2.11 cannot compile it, and would split every layer there.
    return aligned and torch.cuda.get_device_properties(x.device).major >= 9


def _needs_fixed_shapes(x: Tensor) -> bool:
    """Return whether no shape may depend on data: while compiling, capturing or without data."""
    if torch.compiler.is_compiling() or x.device.type == "meta":
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def sort_by_expert(chosen: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the choices (T, K) by expert.

    Returns:
        The sorted order of the flat choices (T·K,), the expert of each in that order (T·K,), and
        the index where each expert's choices end (E,) int32.
    """
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    expert = flat[order]
    every = torch.arange(count, device=flat.device)
    return order, expert, torch.searchsorted(expert, every, right=True).int()


def _unsort(rows: Tensor, order: Tensor, chosen: Tensor) -> Tensor:
    """Return sorted rows (T·K, D) in the order of the choices, as (T, K, D)."""
    back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    return rows[back].unflatten(0, chosen.shape)


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def grouped_experts(weights: ExpertWeights, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute the chosen experts with two grouped products. Nothing waits for the device."""
    order, _, ends = sort_by_expert(chosen, len(weights.gate_up))
    rows = x[order // chosen.shape[1]]
    inner = _gated(grouped_product(rows, weights.gate_up.transpose(1, 2), offs=ends))
    return _unsort(grouped_product(inner, weights.down.transpose(1, 2), offs=ends), order, chosen)


def all_experts(weights: ExpertWeights, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute every expert for every position, and pick the chosen ones.

    All shapes are fixed. With few positions, reading the weights takes most of the time, and the
    other functions read most of them too.
    """
    count, width = len(weights.gate_up), weights.gate_up.shape[2]
    parts: list[Tensor] = []
    for rows, wanted in zip(x.split(FIXED_ROWS), chosen.split(FIXED_ROWS), strict=True):
        inner = _gated((rows @ weights.gate_up.reshape(-1, width).T).unflatten(-1, (count, -1)))
        outputs = torch.bmm(inner.transpose(0, 1), weights.down.transpose(1, 2))  # (E, T, D)
        parts.append(outputs[wanted, torch.arange(len(rows), device=x.device)[:, None]])
    return torch.cat(parts)


def padded_experts(weights: ExpertWeights, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute the chosen experts in batched products, padded to the busiest expert.

    This waits for the device once, to learn how many positions the busiest expert has.
    """
    order, expert, ends = sort_by_expert(chosen, len(weights.gate_up))
    starts = F.pad(ends[:-1], (1, 0)).long()
    slot = torch.arange(len(order), device=x.device) - starts[expert]
    room = int(slot.max()) + 1
    padded = x.new_zeros((len(weights.gate_up), room, x.shape[1]))
    padded = padded.index_put((expert, slot), x[order // chosen.shape[1]])
    inner = _gated(torch.bmm(padded, weights.gate_up.transpose(1, 2)))
    outputs = torch.bmm(inner, weights.down.transpose(1, 2))
    return _unsort(outputs[expert, slot], order, chosen)


def looped_experts(weights: ExpertWeights, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute the chosen experts one after the other: the fastest way on a CPU.

    Each expert's rows are padded to a multiple of `ROW_TILE`. Libraries compute one or a few rows
    with other kernels, so without padding the choices of one row could change the bits of another.
    """
    order, _, ends = sort_by_expert(chosen, len(weights.gate_up))
    rows, first = x[order // chosen.shape[1]], 0
    parts: list[Tensor] = []
    for expert, last in enumerate(ends.tolist()):
        if last > first:
            tile = F.pad(rows[first:last], (0, 0, 0, (first - last) % ROW_TILE))
            inner = _gated(cpu_product.linear(tile, weights.gate_up[expert]))
            parts.append(cpu_product.linear(inner, weights.down[expert])[: last - first])
        first = last
    return _unsort(torch.cat(parts), order, chosen)
