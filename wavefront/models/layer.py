"""One layer of the transformer: pre-norm, rotary, grouped heads, SwiGLU or experts.

Nothing here reads data on the host or has a shape that depends on data, so it can be compiled and
captured in a CUDA graph. Only this module writes stored keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.kernels import cpu_product, small_batch_ops
from wavefront.models.architecture import Architecture, ExpertLayout
from wavefront.models.experts import ExpertWeights, Router
from wavefront.models.quantize import QuantizedLinear

# Row, head and position indices of every computed key; they broadcast to (B, Hkv, S).
StoreIndex = tuple[Tensor, Tensor, Tensor]


class PassInputs(NamedTuple):
    """What all layers of one forward pass share."""

    # (S, 1, rotary_dim/2), or (B, S, 1, rotary_dim/2) when rows compute different positions
    cosine: Tensor
    sine: Tensor
    # bool: the keys to attend to; None = all. (B, 1, 1, L) if they are the same for every query,
    # (B, 1, S, L) if they depend on the query's position
    attended: Tensor | None
    store_index: StoreIndex | None  # where computed keys are stored; None = the whole buffer
    # int32 zeros: counters for `small_batch_ops.attend`; None = it is not used
    counters: Tensor | None = None
    copies: int = 0  # masked copies at the end of S, whose keys and values are not stored


class RMSNorm(nn.Module):
    """Divide by the root mean square. The weight multiplies after the cast back, as published."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        # One kernel on CUDA, in float32 at least. Autocast would return float32, so cast back.
        return F.rms_norm(x, x.shape[-1:], None, self.eps).to(x.dtype) * self.weight


def make_norm(arch: Architecture) -> RMSNorm | nn.LayerNorm:
    """Return an empty norm of the residual stream."""
    if arch.layer_norm:
        return nn.LayerNorm(arch.width, arch.eps)
    return RMSNorm(arch.width, arch.eps)


class Linear(nn.Linear):
    """A linear layer that uses the fastest library of a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return cpu_product.linear(input, self.weight, self.bias)


def make_linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Return an empty linear layer. All linear layers of the transformer are made here."""
    return Linear(inputs, outputs, bias=bias)


class MLP(nn.Module):
    """SwiGLU. Gate and up projections are one matrix, gate first."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = make_linear(width, 2 * inner)
        self.down = make_linear(inner, width)

    def forward(self, x: Tensor, use_small_batch_ops: bool) -> Tensor:
        """Return (P, B, S, D): P partial sums, to be added up."""
        plain = isinstance(self.gate_up, nn.Linear)
        if (
            use_small_batch_ops
            and plain
            and small_batch_ops.gated_product_fits(x, self.gate_up.weight)
        ):
            inner = small_batch_ops.gated_product(x, self.gate_up.weight)
        else:
            both = add_parts(product(self.gate_up, x, use_small_batch_ops), x.dtype)
            gate, up = both.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        return product(self.down, inner, use_small_batch_ops)


class MixtureOfExperts(nn.Module):
    """A few of many MLPs for every position, and one MLP for all positions if there is one."""

    def __init__(self, width: int, layout: ExpertLayout) -> None:
        super().__init__()
        self.router = Router(width, layout)
        self.experts = ExpertWeights(width, layout)
        self.shared = MLP(width, layout.shared_width) if layout.shared_width else None

    def forward(self, x: Tensor, use_small_batch_ops: bool) -> Tensor:
        """Return (P, B, S, D): P partial sums, to be added up."""
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows, use_small_batch_ops)
        gate_up, down = self.experts.gate_up, self.experts.down
        if use_small_batch_ops and small_batch_ops.experts_fit(rows, gate_up, down):
            own = self._shared_weights()
            parts = small_batch_ops.experts(rows, chosen, weights, gate_up, down, *own)
            parts = parts.unflatten(1, x.shape[:2])
            if self.shared is None or own:
                return parts
            mixed = add_parts(parts, x.dtype)[None]
        else:
            outputs = self.experts(rows, chosen).to(weights.dtype)
            mixed = (outputs * weights[..., None]).sum(1).to(x.dtype).view_as(x)[None]
        if self.shared is None:
            return mixed
        common = add_parts(self.shared(x, use_small_batch_ops), x.dtype)
        return mixed + common

    def _shared_weights(self) -> tuple[Tensor, ...]:
        """Return the two matrices of the shared MLP, or nothing unless they are an expert's."""
        if self.shared is None:
            return ()
        gate_up, down = self.shared.gate_up, self.shared.down
        if isinstance(gate_up, QuantizedLinear) or isinstance(down, QuantizedLinear):
            return ()
        fits = down.weight.shape == self.experts.down.shape[1:]
        return (gate_up.weight, down.weight) if fits else ()


class Layer(nn.Module):
    """Attention, then MLP, each added to the residual stream. Query, key and value are one matrix.

    The MLP's output is passed on separately from the residual stream and added where the next norm
    reads it. Layers are compiled one by one, so an addition at the end of a layer would cost a
    kernel.
    """

    use_small_batch_ops = False  # set by `Transformer` when it moves to a device

    def __init__(self, arch: Architecture, number: int = 0) -> None:
        """Build the layer with this number; the first layers may differ from the others."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = arch.heads, arch.kv_heads, arch.head_dim
        self.rotary_float32 = arch.rotary_float32
        rows = (arch.heads + 2 * arch.kv_heads) * arch.head_dim
        self.attention_norm = make_norm(arch)
        self.qkv = make_linear(arch.width, rows, bias=arch.qkv_bias)
        self.query_norm = RMSNorm(arch.head_dim, arch.eps) if arch.qk_norm else None
        self.key_norm = RMSNorm(arch.head_dim, arch.eps) if arch.qk_norm else None
        self.attention_out = make_linear(arch.heads * arch.head_dim, arch.width)
        self.mlp_norm = make_norm(arch)
        self.mlp: MLP | MixtureOfExperts
        if arch.experts is None or number < arch.experts.dense_layers:
            self.mlp = MLP(arch.width, arch.mlp_width)
        else:
            self.mlp = MixtureOfExperts(arch.width, arch.experts)

    def forward(
        self,
        x: Tensor,
        added: Tensor,
        shared: PassInputs,
        *,
        store: tuple[Tensor, Tensor] | None = None,
        picked: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream and its pending addition after this layer.

        Args:
            x: (B, S, D), the residual stream.
            added: (P, B, S, D), partial sums that are still to be added to `x`.
            shared: What all layers of the pass share.
            store: The layer's stored keys and values, which are updated in place.
            picked: (B, Q) long, indices into S; only these are returned. None returns all.
        """
        x = x + add_parts(added, x.dtype)
        small = self.use_small_batch_ops and not torch.is_grad_enabled()  # they have no gradient
        query, key, value = self.project(self.attention_norm(x), shared, small)
        if store is not None:
            key = write_without_copies(store[0], key, shared)
            value = write_without_copies(store[1], value, shared)
        if picked is not None:
            query, x = gather_positions(query, picked), gather_positions(x, picked)
            shared = shared._replace(attended=pick_queries(shared.attended, picked))
        mixed = self.attend(query, key, value, shared=shared, use_small_batch_ops=small)
        x = x + add_parts(product(self.attention_out, mixed, small), x.dtype)
        return x, self.mlp(self.mlp_norm(x), small)

    def project(
        self, x: Tensor, shared: PassInputs, use_small_batch_ops: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries (B, S, H, d), and rotated keys and values (B, Hkv, S, d)."""
        projected = add_parts(product(self.qkv, x, use_small_batch_ops), x.dtype)
        heads = projected.unflatten(-1, (-1, self.head_dim))
        unrotated, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = unrotated.split((self.heads, self.kv_heads), dim=2)
            unrotated = torch.cat((self.query_norm(query), self.key_norm(key)), dim=2)
        dtype = heads.dtype
        if self.rotary_float32:
            dtype = torch.promote_types(dtype, torch.float32)
        rotated = rotate(unrotated.to(dtype), shared.cosine.to(dtype), shared.sine.to(dtype))
        query, key = rotated.to(heads.dtype).split((self.heads, self.kv_heads), dim=2)
        return query, key.transpose(1, 2), value.transpose(1, 2)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        shared: PassInputs,
        use_small_batch_ops: bool,
    ) -> Tensor:
        """Return (B, Q, D): every query attends to its attended keys.

        For library kernels, the query heads that share a key head are laid out as additional
        queries, so grouped heads work with any of them and without copies. Only a mask that depends
        on the query is repeated.
        """
        counters, heads = shared.counters, query.transpose(1, 2)
        if use_small_batch_ops and counters is not None and small_batch_ops.attention_fits(heads):
            mixed = small_batch_ops.attend(heads, key, value, shared.attended, counters)
            return mixed.transpose(1, 2).flatten(2)
        queries = query.shape[1]
        grouped = query.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        attended = shared.attended
        if attended is not None and attended.shape[2] > 1:
            attended = attended.repeat(1, 1, self.heads // self.kv_heads, 1)
        mixed = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attended)
        return mixed.unflatten(2, (-1, queries)).permute(0, 3, 1, 2, 4).flatten(2)


def product(linear: nn.Linear | QuantizedLinear, x: Tensor, use_small_batch_ops: bool) -> Tensor:
    """Return linear(x) as (P, B, S, D): P partial sums, to be added up."""
    if isinstance(linear, QuantizedLinear):
        return linear.parts(x)
    if not use_small_batch_ops or not small_batch_ops.fits(x, linear.weight):
        return linear(x)[None]
    if not torch.compiler.is_compiling() and small_batch_ops.part_count(*linear.weight.shape) > 1:
        return linear(x)[None]  # adding up the parts would take two more kernels
    parts = small_batch_ops.product(x, linear.weight)
    return parts if linear.bias is None else (add_parts(parts, x.dtype) + linear.bias)[None]


def add_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (B, S, D), the sum of P partial sums (P, B, S, D)."""
    if len(parts) == 1:
        return parts[0]
    if not torch.compiler.is_compiling():
        return parts.sum(0).to(dtype)
    # The compiler makes a kernel of its own of a sum over eight parts or more.
    total = parts[0].to(torch.promote_types(parts.dtype, torch.float32))
    for part in parts[1:]:
        total = total + part
    return total.to(dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate (..., H, d) by the angles of each position. Dimension i is paired with i + d/2.

    With k < d/2 angles, i is paired with i + k, and only the first 2k dimensions are rotated.
    """
    half = cosine.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat((*rotated, rest) if rest.shape[-1] else rotated, dim=-1)


def gather_positions(x: Tensor, index: Tensor) -> Tensor:
    """Return (B, Q, ...): x (B, S, ...) at index (B, Q) of its second dimension."""
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[rows, index]


def index_in_window(at: Tensor, window: Tensor, length: int) -> Tensor:
    """Return (B, Q) long: the index in `window` of each position of `at`, or of one duplicate."""
    if torch.compiler.is_compiling():  # one kernel; in eager mode this needs (B, Q, S) memory
        return (at[:, :, None] == window[:, None, :]).to(torch.uint8).argmax(-1)
    order = torch.arange(window.shape[1], device=window.device).expand_as(window)
    where = window.new_zeros((window.shape[0], length)).scatter(1, window, order)
    return where.gather(1, at)


def store_index(window: Tensor, heads: int) -> StoreIndex:
    """Return where in the stored keys a window (B, S) long of positions belongs."""
    count = torch.arange(max(len(window), heads), device=window.device)  # one kernel for both
    return count[: len(window), None, None], count[:heads, None], window[:, None, :]


def write(buffer: Tensor, fresh: Tensor, where: StoreIndex | None) -> Tensor:
    """Store fresh keys or values (B, Hkv, S, d) and return the tensor that attention reads.

    A position that is in the window twice is written twice with the same numbers.
    """
    if where is None:
        buffer.copy_(fresh)
        return fresh
    # Not scatter_: its compiled code copies the whole buffer out and back.
    return buffer.index_put_(where, fresh)


def write_without_copies(buffer: Tensor, fresh: Tensor, shared: PassInputs) -> Tensor:
    """Store all but the masked copies, and return what attention reads, the copies last."""
    if not shared.copies:
        return write(buffer, fresh, shared.store_index)
    own, copied = fresh.split((fresh.shape[2] - shared.copies, shared.copies), dim=2)
    return torch.cat((write(buffer, own, shared.store_index), copied), dim=2)


def pick_queries(attended: Tensor | None, picked: Tensor) -> Tensor | None:
    """Return the mask of the picked queries (B, Q); a mask for all queries is unchanged."""
    if attended is None or attended.shape[2] == 1:
        return attended
    rows = attended.expand(len(picked), -1, -1, -1)
    return gather_positions(rows[:, 0], picked)[:, None]


def block_mask(queries: Tensor, keys: Tensor, block_size: int) -> Tensor:
    """Return (B, 1, S, L) bool: each query attends to its own block and to all earlier ones.

    Args:
        queries: (S,) or (B, S) long, the positions of the queries.
        keys: (L,) or (B, L) long, the positions of the keys.
        block_size: The number of positions in a block; 1 is plain causal attention.
    """
    rows, columns = (torch.atleast_2d(positions) // block_size for positions in (queries, keys))
    return (columns[:, None, :] <= rows[:, :, None])[:, None]


def with_copies(
    attended: Tensor | None,
    queries: Tensor,
    keys: Tensor,
    *,
    at: Tensor,
    copies: Tensor,
    blocks: Tensor | None,
) -> Tensor:
    """Return (B, 1, S, L + Q) bool: the keys to attend to, with Q masked copies at the end.

    Args:
        attended: The mask without copies, for all S queries; None means everything.
        queries: (B, S) long, the positions of the queries; the copies are the last Q.
        keys: (L,) or (B, L) long, the positions of the keys.
        at: (B, Q) long, the positions of the copies.
        copies: (B, Q) bool, the copies that exist; the others are filler.
        blocks: (B, 1, S, Q) bool, which copies each query may attend to by its block.
    """
    size, count = queries.shape[1], at.shape[1]
    is_copy = torch.arange(size, device=at.device) >= size - count
    others = queries[:, :, None] != torch.atleast_2d(keys)[:, None, :]
    real = (others | ~is_copy[:, None])[:, None]  # a copy does not attend to its own token
    if attended is not None:
        real = real & attended
    copied = (copies[:, None, :] & is_copy[:, None])[:, None]
    if blocks is not None:
        copied = copied & blocks
    found = torch.cat((real, copied), dim=-1)
    return found | ~found.any(-1, keepdim=True)


def attention_mask(attend: Tensor | None, blocks: Tensor | None = None) -> Tensor | None:
    """Return the keys to attend to, (B, 1, 1, L) or (B, 1, S, L) bool; None means all.

    A query without attended keys, such as padding, attends to everything. A softmax over nothing
    would be NaN, and an empty row must not affect the batch.

    Args:
        attend: (B, L) bool, the positions to attend to; None means all of them.
        blocks: (B, 1, S, L) bool from `block_mask`; None for bidirectional attention.
    """
    if attend is None:
        return blocks
    attended = attend[:, None, None, :]
    if blocks is not None:
        attended = attended & blocks
    return attended | ~attended.any(-1, keepdim=True)
