"""One layer of the bidirectional transformer: pre-norm, rotary, grouped heads, SwiGLU.

Nothing here reads data on the host or has a shape that depends on data, so it can be compiled and
captured in a CUDA graph. Stored keys and values are written here and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.kernels import small_batch_ops
from wavefront.models.architecture import Architecture

# Row, head and position indices of every computed key; they broadcast to (B, Hkv, S).
StoreIndex = tuple[Tensor, Tensor, Tensor]


class PassInputs(NamedTuple):
    """What all layers of one forward pass share."""

    # (S, 1, head_dim/2), or (B, S, 1, head_dim/2) when rows compute different positions
    cosine: Tensor
    sine: Tensor
    attended: Tensor | None  # (B, 1, 1, L) bool: the keys to attend to; None = all
    store_index: StoreIndex | None  # where computed keys are stored; None = the whole buffer
    # (B·Hkv,) int32 of zeros: counters for `small_batch_ops.attend`; None = it is not used
    counters: Tensor | None = None


class RMSNorm(nn.Module):
    """Divide by the root mean square. The weight multiplies after the cast back, as published."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        # One kernel on CUDA, in float32 at least. Autocast would return float32, so cast back.
        return F.rms_norm(x, x.shape[-1:], None, self.eps).to(x.dtype) * self.weight


class MLP(nn.Module):
    """SwiGLU. Gate and up projections are one matrix, gate first."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.gate_up = nn.Linear(arch.width, 2 * arch.mlp_width, bias=False)
        self.down = nn.Linear(arch.mlp_width, arch.width, bias=False)

    def forward(self, x: Tensor, use_small_batch_ops: bool) -> Tensor:
        """Return (P, B, S, D): P partial sums, to be added up."""
        if use_small_batch_ops and small_batch_ops.fits(x, self.gate_up.weight):
            inner = small_batch_ops.gated_product(x, self.gate_up.weight)
        else:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            inner = F.silu(gate) * up
        return product(self.down, inner, use_small_batch_ops)


class Layer(nn.Module):
    """Attention, then MLP, each added to the residual stream. Query, key and value are one matrix.

    The MLP's output is passed on beside the residual stream and added where the next norm reads
    it. Layers are compiled one by one, so an addition at the end of a layer would cost a kernel.
    """

    use_small_batch_ops = False  # set by `kernels.compile.compile_model`

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = arch.heads, arch.kv_heads, arch.head_dim
        self.rotary_float32 = arch.rotary_float32
        rows = (arch.heads + 2 * arch.kv_heads) * arch.head_dim
        self.attention_norm = RMSNorm(arch.width, arch.eps)
        self.qkv = nn.Linear(arch.width, rows, bias=arch.qkv_bias)
        self.attention_out = nn.Linear(arch.width, arch.width, bias=False)
        self.mlp_norm = RMSNorm(arch.width, arch.eps)
        self.mlp = MLP(arch)

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
            key = write(store[0], key, shared.store_index)
            value = write(store[1], value, shared.store_index)
        if picked is not None:
            query, x = gather_positions(query, picked), gather_positions(x, picked)
        mixed = self.attend(query, key, value, shared, use_small_batch_ops=small)
        x = x + add_parts(product(self.attention_out, mixed, small), x.dtype)
        return x, self.mlp(self.mlp_norm(x), small)

    def project(
        self, x: Tensor, shared: PassInputs, use_small_batch_ops: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries (B, S, H, d), and rotated keys and values (B, Hkv, S, d)."""
        projected = add_parts(product(self.qkv, x, use_small_batch_ops), x.dtype)
        heads = projected.unflatten(-1, (-1, self.head_dim))
        unrotated, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
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
        shared: PassInputs,
        *,
        use_small_batch_ops: bool,
    ) -> Tensor:
        """Return (B, Q, D): every query attends to all attended keys.

        The attended keys are the same for every query. So the query heads that share a key head
        are laid out as more queries, which gives grouped heads on any kernel without copies.
        """
        queries = query.shape[1]
        grouped = query.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        counters = shared.counters if use_small_batch_ops else None
        if counters is not None and small_batch_ops.attention_fits(grouped):
            mixed = small_batch_ops.attend(grouped, key, value, shared.attended, counters)
        else:
            mixed = F.scaled_dot_product_attention(grouped, key, value, attn_mask=shared.attended)
        return mixed.unflatten(2, (-1, queries)).permute(0, 3, 1, 2, 4).flatten(2)


def product(linear: nn.Linear, x: Tensor, use_small_batch_ops: bool) -> Tensor:
    """Return linear(x) as (P, B, S, D): P partial sums, to be added up."""
    if not use_small_batch_ops or not small_batch_ops.fits(x, linear.weight):
        return linear(x)[None]
    parts = small_batch_ops.product(x, linear.weight)
    return parts if linear.bias is None else (add_parts(parts, x.dtype) + linear.bias)[None]


def add_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (B, S, D), the sum of P partial sums (P, B, S, D)."""
    return parts[0] if len(parts) == 1 else parts.sum(0).to(dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate (..., H, d) by the position's angles; each half of a head is paired with the other."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


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


def attention_mask(attend: Tensor | None) -> Tensor | None:
    """Return (B, 1, 1, L) bool, or None when every key is attended to.

    A row without any attended position attends to everything: a softmax over nothing is NaN, and
    an empty row must not disturb the batch.
    """
    if attend is None:
        return None
    return (attend | ~attend.any(1, keepdim=True))[:, None, None, :]
