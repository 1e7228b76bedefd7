"""The published LLaDA module as a reference: eager and unfused, for all positions and logits.

It is written from the published description and launches the same kernels: separate projections of
query, key and value, unfused norms in float32, rotation in float32, and all logits. The cached pass
is Fast-dLLM's, as first published. Keys are stored before rotation, and every step rotates all of
them. In every layer the host waits twice, for the positions and for their maximum. The weights are
views of our model's weights, so both models compute the same function.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.core.errors import OptionError
from wavefront.models.architecture import Architecture
from wavefront.models.layer import MLP, Layer
from wavefront.models.transformer import Transformer

# Keys and values of a layer, (B, Hkv, L, d) each, before the rotation of keys.
Past = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """RMS norm in float32, unfused."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight, requires_grad=False), eps

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            kept = x.dtype
            x = x.to(torch.promote_types(kept, torch.float32))
            variance = x.pow(2).mean(-1, keepdim=True)
            x = x * torch.rsqrt(variance + self.eps)
            x = x.to(kept)
        return self.weight * x


class Rotary(nn.Module):
    """Rotation of all queries and keys in float32. A block of queries may end before the keys."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self._tables: tuple[Tensor, Tensor] | None = None

    def tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return sine and cosine, (1, 1, length, head_dim) each, computed once."""
        tables = self._tables
        if tables is None or tables[0].shape[-2] < length or tables[0].dtype != like.dtype:
            size = self.arch.head_dim
            pairs = torch.arange(0, size, 2, device=like.device, dtype=like.dtype)
            positions = torch.arange(length, device=like.device, dtype=like.dtype)
            angles = torch.outer(positions, 1.0 / self.arch.theta ** (pairs / size))
            angles = torch.cat((angles, angles), dim=-1)[None, None]
            tables = self._tables = (angles.sin(), angles.cos())
        return tables[0][:, :, :length, :], tables[1][:, :, :length, :]

    def forward(self, query: Tensor, key: Tensor, end: Tensor | None) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        q, k = query.to(wide), key.to(wide)
        with torch.autocast(query.device.type, enabled=False):
            count, length = q.shape[-2], k.shape[-2]
            sine, cosine = self.tables(length, k)
            last = length if end is None else int(end)  # the host waits here, as published
            here = slice(last - count, last)
            q = rotate(q, sine[:, :, here, :], cosine[:, :, here, :])
            k = rotate(k, sine, cosine)
        return q.type_as(query), k.type_as(key)


def rotate(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    """Rotate (B, H, S, d) by the angles of its positions."""
    first, second = x.view(*x.shape[:-1], 2, -1).unbind(dim=-2)
    return (x * cosine) + (torch.cat((-second, first), dim=-1) * sine)


class ReferenceLayer(nn.Module):
    """A layer with separate matrices."""

    def __init__(self, arch: Architecture, block: Layer) -> None:
        super().__init__()
        self.arch = arch
        self.rotary = Rotary(arch)
        self.attention_norm = Norm(block.attention_norm.weight.detach(), arch.eps)
        self.mlp_norm = Norm(block.mlp_norm.weight.detach(), arch.eps)
        sizes = [n * arch.head_dim for n in (arch.heads, arch.kv_heads, arch.kv_heads)]
        biases = [None] * 3 if block.qkv.bias is None else block.qkv.bias.detach().split(sizes)
        weights = block.qkv.weight.detach().split(sizes)
        self.query, self.key, self.value = map(as_linear, weights, biases)
        self.attention_out = as_linear(block.attention_out.weight.detach())
        assert isinstance(block.mlp, MLP)  # LLaDA has no experts
        self.gate, self.up = map(as_linear, block.mlp.gate_up.weight.detach().chunk(2))
        self.down = as_linear(block.mlp.down.weight.detach())
        self.dropout = nn.Dropout(0.0)

    def forward(
        self, x: Tensor, past: Past | None, replace: Tensor | None, *, bias: Tensor | None
    ) -> tuple[Tensor, Past]:
        normed = self.attention_norm(x)
        query, key, value = self.query(normed), self.key(normed), self.value(normed)
        mixed, present = self.attend(query, key, value, past=past, replace=replace, bias=bias)
        x = x + self.dropout(mixed)
        kept = x
        x = self.mlp_norm(x)
        x, up = self.gate(x), self.up(x)
        x = self.down(F.silu(x) * up)
        return kept + self.dropout(x), present

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        past: Past | None,
        replace: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Past]:
        """Attend to all keys: the new ones, or the stored ones updated with the new ones."""
        rows, count, width = query.shape
        size = self.arch.head_dim
        query = query.view(rows, count, self.arch.heads, size).transpose(1, 2)
        key = key.view(rows, count, self.arch.kv_heads, size).transpose(1, 2)
        value = value.view(rows, count, self.arch.kv_heads, size).transpose(1, 2)
        end = None
        if past is not None and replace is not None:
            # The host waits here. All rows have the same block.
            positions = replace[0].nonzero(as_tuple=True)[0]
            past[0][:, :, positions] = key
            past[1][:, :, positions] = value
            key, value = past
            end = positions.max() + 1
        present = (key, value)
        query, key = self.rotary(query, key, end)
        if bias is not None:
            # As published: created and cast in every layer, and not used.
            unused = bias[:, :, key.shape[-2] - count : key.shape[-2], : key.shape[-2]]
            unused = unused.to(query.dtype)
            unused.masked_fill_(unused == float("-inf"), torch.finfo(unused.dtype).min)
        if self.arch.heads != self.arch.kv_heads:
            times = self.arch.heads // self.arch.kv_heads
            key, value = (one.repeat_interleave(times, dim=1) for one in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value)
        mixed = mixed.transpose(1, 2).contiguous().view(rows, count, width)
        return self.attention_out(mixed), present


class Reference(nn.Module):
    """The whole model, from tokens to all logits."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        if model.family != "llada":
            raise OptionError(
                f"The reference loops need a LLaDA model, not one of family {model.family!r}."
            )
        arch = model.config
        self.mask_id = model.mask_id
        self.embedding = model.embedding
        self.layers = nn.ModuleList(ReferenceLayer(arch, block) for block in model.layers)
        self.final_norm = Norm(model.final_norm.weight.detach(), arch.eps)
        output = model.embedding if model.output is None else model.output
        self.output = as_linear(output.weight.detach())
        self.eval()

    def forward(
        self,
        tokens: Tensor,
        past: list[Past] | None = None,
        replace: Tensor | None = None,
    ) -> tuple[Tensor, list[Past]]:
        """Return (B, S, V) logits, and the keys and values of every layer."""
        x = self.embedding(tokens)
        bias, present = None, []
        if past is not None:
            length = past[0][0].shape[-2] + tokens.shape[1]
            bias = torch.zeros((1, 1, length, length), device=x.device, dtype=torch.float)
        for number, layer in enumerate(self.layers):
            x, stored = layer(x, None if past is None else past[number], replace, bias=bias)
            present.append(stored)
        return self.output(self.final_norm(x)), present


def as_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear module that uses existing weights."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
