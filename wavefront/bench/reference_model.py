"""The published LLaDA module as a yardstick: eager, unfused, every place, every logit.

Written from the published description, to launch what the published module launches: separate
projections of query, key and value, norms in float32 operation by operation, rotation in float32,
all logits. The cached pass is Fast-dLLM's, as first published: keys are stored before rotation and
all of them are rotated at every step, and the host waits twice in every layer, for the places and
for the last of them. It takes our model's weights as views, so both compute the same function from
one memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.core.errors import OptionError
from wavefront.models.architecture import Architecture
from wavefront.models.layer import Layer as ModelLayer
from wavefront.models.transformer import Transformer

# Keys and values of a layer, (B, Hkv, L, d) each, the keys not yet rotated.
Past = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """RMS norm, one operation after the other, in float32."""

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
    """Rotation of all queries and keys in float32; a query block may end before the last key."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self._tables: tuple[Tensor, Tensor] | None = None

    def tables(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Sine and cosine, (1, 1, length, head_dim) each; made once."""
        made = self._tables
        if made is None or made[0].shape[-2] < length or made[0].dtype != like.dtype:
            size = self.arch.head_dim
            pairs = torch.arange(0, size, 2, device=like.device, dtype=like.dtype)
            turns = torch.arange(length, device=like.device, dtype=like.dtype)
            angles = torch.outer(turns, 1.0 / self.arch.theta ** (pairs / size))
            angles = torch.cat((angles, angles), dim=-1)[None, None]
            made = self._tables = (angles.sin(), angles.cos())
        return made[0][:, :, :length, :], made[1][:, :, :length, :]

    def forward(self, query: Tensor, key: Tensor, end: Tensor | None) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        q, k = query.to(wide), key.to(wide)
        with torch.autocast(query.device.type, enabled=False):
            count, length = q.shape[-2], k.shape[-2]
            sine, cosine = self.tables(length, k)
            last = length if end is None else int(end)  # the host waits here, as published
            here = slice(last - count, last)
            q = turned(q, sine[:, :, here, :], cosine[:, :, here, :])
            k = turned(k, sine, cosine)
        return q.type_as(query), k.type_as(key)


def turned(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    """(B, H, S, d) by its place's angles, the second half negated and swapped with the first."""
    first, second = x.view(*x.shape[:-1], 2, -1).unbind(dim=-2)
    return (x * cosine) + (torch.cat((-second, first), dim=-1) * sine)


class Layer(nn.Module):
    """A block of separate matrices."""

    def __init__(self, arch: Architecture, block: ModelLayer) -> None:
        super().__init__()
        self.arch = arch
        self.rotary = Rotary(arch)
        self.attention_norm = Norm(block.attention_norm.weight.detach(), arch.eps)
        self.mlp_norm = Norm(block.mlp_norm.weight.detach(), arch.eps)
        sizes = [n * arch.head_dim for n in (arch.heads, arch.kv_heads, arch.kv_heads)]
        biases = [None] * 3 if block.qkv.bias is None else block.qkv.bias.detach().split(sizes)
        weights = block.qkv.weight.detach().split(sizes)
        self.query, self.key, self.value = map(_linear, weights, biases)
        self.attention_out = _linear(block.attention_out.weight.detach())
        self.gate, self.up = map(_linear, block.mlp.gate_up.weight.detach().chunk(2))
        self.down = _linear(block.mlp.down.weight.detach())
        self.dropout = nn.Dropout(0.0)

    def forward(
        self, x: Tensor, past: Past | None, replace: Tensor | None, bias: Tensor | None
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
        """Over all keys: those just made, or the stored ones with the fresh ones put in."""
        rows, count, width = query.shape
        size = self.arch.head_dim
        query = query.view(rows, count, self.arch.heads, size).transpose(1, 2)
        key = key.view(rows, count, self.arch.kv_heads, size).transpose(1, 2)
        value = value.view(rows, count, self.arch.kv_heads, size).transpose(1, 2)
        end = None
        if past is not None and replace is not None:
            places = replace[0].nonzero(as_tuple=True)[0]  # the host waits; all rows have one block
            past[0][:, :, places] = key
            past[1][:, :, places] = value
            key, value = past
            end = places.max() + 1
        present = (key, value)
        query, key = self.rotary(query, key, end)
        if bias is not None:
            # Made and cast in every layer, and then not used: attention sees all.
            made = bias[:, :, key.shape[-2] - count : key.shape[-2], : key.shape[-2]]
            made = made.to(query.dtype)
            made.masked_fill_(made == float("-inf"), torch.finfo(made.dtype).min)
        if self.arch.heads != self.arch.kv_heads:
            times = self.arch.heads // self.arch.kv_heads
            key, value = (one.repeat_interleave(times, dim=1) for one in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value)
        mixed = mixed.transpose(1, 2).contiguous().view(rows, count, width)
        return self.attention_out(mixed), present


class Reference(nn.Module):
    """The whole model: tokens to all logits."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        if model.family != "llada":
            raise OptionError(
                f"The reference loops are LLaDA's, and the model is of family {model.family!r}; "
                "give one of LLaDA's."
            )
        arch = model.config
        self.mask_id = model.mask_id
        self.embedding = model.embedding
        self.layers = nn.ModuleList(Layer(arch, block) for block in model.layers)
        self.final_norm = Norm(model.final_norm.weight.detach(), arch.eps)
        output = model.embedding if model.output is None else model.output
        self.output = _linear(output.weight.detach())
        self.eval()

    def forward(
        self,
        tokens: Tensor,
        past: list[Past] | None = None,
        replace: Tensor | None = None,
    ) -> tuple[Tensor, list[Past]]:
        """(B, S, V) logits, and the keys and values of every layer."""
        x = self.embedding(tokens)
        bias, present = None, []
        if past is not None:
            length = past[0][0].shape[-2] + tokens.shape[1]
            bias = torch.zeros((1, 1, length, length), device=x.device, dtype=torch.float)
        for number, layer in enumerate(self.layers):
            x, made = layer(x, None if past is None else past[number], replace, bias)
            present.append(made)
        return self.output(self.final_norm(x)), present


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear module over memory that is there already."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made
