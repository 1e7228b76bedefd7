"""One block of the bidirectional transformer: pre-norm, rotary, grouped heads, SwiGLU.

Nothing here looks at data from the host or has a shape that depends on data, so it compiles and
can be captured. Stored keys and values are written here and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.kernels import small_batch_ops
from wavefront.models.architecture import Architecture

# Row, head and place of every key computed, which together make (B, Hkv, S).
Spots = tuple[Tensor, Tensor, Tensor]


class Sight(NamedTuple):
    """What all blocks of one pass share."""

    cosine: (
        Tensor  # (S, 1, head_dim/2), or (B, S, 1, head_dim/2) when rows compute different places
    )
    sine: Tensor
    visible: Tensor | None  # (B, 1, 1, L) bool: keys that may be looked at; None = all
    spots: Spots | None  # where in the store what is computed belongs; None = all of it
    tally: Tensor | None = None  # (B·Hkv,) int32 of zeros, where `few` may count; None = nowhere


class RMSNorm(nn.Module):
    """Division by the root mean square. The weight multiplies after the cast back, as published."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        # One kernel on CUDA, in float32 at least; autocast would leave the result wide.
        return F.rms_norm(x, x.shape[-1:], None, self.eps).to(x.dtype) * self.weight


class MLP(nn.Module):
    """SwiGLU; gate and up are one matrix, gate first."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.gate_up = nn.Linear(arch.width, 2 * arch.mlp_width, bias=False)
        self.down = nn.Linear(arch.mlp_width, arch.width, bias=False)

    def forward(self, x: Tensor, lean: bool) -> Tensor:
        """In parts that are to be added (P, B, S, D); `lean`: see `Block`."""
        if lean and small_batch_ops.fits(x, self.gate_up.weight):
            inner = small_batch_ops.gated(x, self.gate_up.weight)
        else:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            inner = F.silu(gate) * up
        return product(self.down, inner, lean)


class Block(nn.Module):
    """Attention, then MLP, each added to the stream. Query, key and value are one matrix.

    What the MLP adds is handed on beside the stream, and added where the next norm reads it: blocks
    are compiled one by one, so an addition at a block's end would be a kernel of its own.
    """

    lean = False  # whether `wavefront.kernels.small_batch_ops` does what it can; see `fuse.compile_model`

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
        sight: Sight,
        *,
        store: tuple[Tensor, Tensor] | None = None,
        picked: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The stream (B, S, D) and what is still to be added to it, in parts (P, B, S, D) -> the
        same after this block, at the indices `picked` (B, Q) alone where only they are wanted.
        """
        x = x + whole(added, x.dtype)
        lean = self.lean and not torch.is_grad_enabled()  # those kernels have no gradient
        query, key, value = self.project(self.attention_norm(x), sight, lean)
        if store is not None:
            key = write(store[0], key, sight.spots)
            value = write(store[1], value, sight.spots)
        if picked is not None:
            query, x = selector(query, picked), selector(x, picked)
        mixed = self.attend(query, key, value, sight, lean)
        x = x + whole(product(self.attention_out, mixed, lean), x.dtype)
        return x, self.mlp(self.mlp_norm(x), lean)

    def project(self, x: Tensor, sight: Sight, lean: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (B, S, H, d), rotated keys and plain values (B, Hkv, S, d)."""
        made = whole(product(self.qkv, x, lean), x.dtype)
        heads = made.unflatten(-1, (-1, self.head_dim))
        turning, value = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        dtype = heads.dtype
        if self.rotary_float32:
            dtype = torch.promote_types(dtype, torch.float32)
        turned = rotate(turning.to(dtype), sight.cosine.to(dtype), sight.sine.to(dtype))
        query, key = turned.to(heads.dtype).split((self.heads, self.kv_heads), dim=2)
        return query, key.transpose(1, 2), value.transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, sight: Sight, lean: bool) -> Tensor:
        """(B, Q, D): every query over all visible keys.

        Which keys are visible is the same for every query, so the consecutive query heads that
        share a key head can stand in line as more queries: grouped heads on any kernel, no copies.
        """
        queries = query.shape[1]
        grouped = query.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        if lean and sight.tally is not None and small_batch_ops.attends(grouped):
            mixed = small_batch_ops.attend(grouped, key, value, sight.visible, sight.tally)
        else:
            mixed = F.scaled_dot_product_attention(grouped, key, value, attn_mask=sight.visible)
        return mixed.unflatten(2, (-1, queries)).permute(0, 3, 1, 2, 4).flatten(2)


def product(linear: nn.Linear, x: Tensor, lean: bool) -> Tensor:
    """What the module makes of x, in parts that are to be added (P, B, S, D)."""
    if not lean or not small_batch_ops.fits(x, linear.weight):
        return linear(x)[None]
    parts = small_batch_ops.product(x, linear.weight)
    return parts if linear.bias is None else (whole(parts, x.dtype) + linear.bias)[None]


def whole(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, S, D) of parts (P, B, S, D) that are to be added; one part is as it stands."""
    return parts[0] if len(parts) == 1 else parts.sum(0).to(dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(..., H, d) turned by its place's angles; a head's first half is paired with its second."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def selector(x: Tensor, index: Tensor) -> Tensor:
    """(B, S, ...) at index (B, Q) of its second dimension: (B, Q, ...)."""
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[rows, index]


def find(at: Tensor, window: Tensor, length: int) -> Tensor:
    """(B, Q) long: where in `window` each place of `at` stands; either one, if it stands twice."""
    if torch.compiler.is_compiling():  # one kernel; not compiled, it would be (B, Q, S) in memory
        return (at[:, :, None] == window[:, None, :]).to(torch.uint8).argmax(-1)
    order = torch.arange(window.shape[1], device=window.device).expand_as(window)
    where = window.new_zeros((window.shape[0], length)).scatter(1, window, order)
    return where.gather(1, at)


def spots(window: Tensor, heads: int) -> Spots:
    """Of a window (B, S) long of places."""
    count = torch.arange(max(len(window), heads), device=window.device)  # one kernel for both
    return count[: len(window), None, None], count[:heads, None], window[:, None, :]


def write(buffer: Tensor, fresh: Tensor, where: Spots | None) -> Tensor:
    """What attention reads: the fresh keys or values (B, Hkv, S, d), put into the stored ones.

    A place that stands in the window twice is written twice with the same numbers.
    """
    if where is None:
        buffer.copy_(fresh)
        return fresh
    # Not scatter_: compiled, that copies the whole buffer out and back.
    return buffer.index_put_(where, fresh)


def visible_keys(attend: Tensor | None) -> Tensor | None:
    """(B, 1, 1, L) bool, or None when all are. A row without one real place sees itself, because a
    softmax over nothing is NaN and an empty row of a batch must stay harmless.
    """
    if attend is None:
        return None
    return (attend | ~attend.any(1, keepdim=True))[:, None, None, :]
