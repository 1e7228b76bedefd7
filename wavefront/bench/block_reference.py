"""The published loops of block-causal models, eager and unfused, as a reference.

They are written from the published descriptions. SDAR computes a block against stored keys and
values, which grow by concatenation, and computes a finished block once more to store it. LLaDA2
stores nothing: every step computes all positions up to the end of the block, with all their logits,
and a mixture of experts is a loop on the host over the experts. The weights are views of our
model's weights, so both compute the same function.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.bench.reference_loops import commit, transfers
from wavefront.bench.reference_model import Norm, as_linear, rotate
from wavefront.models.architecture import Architecture
from wavefront.models.layer import Layer as ModelLayer
from wavefront.models.layer import MixtureOfExperts
from wavefront.models.transformer import Transformer

Past = tuple[Tensor, Tensor]  # keys after rotation, and values: (B, Hkv, L, d) each
FAMILIES = ("sdar", "sdar_moe", "llada2", "stable_diffcoder")  # whose loops are written here
CACHED = ("sdar", "sdar_moe", "stable_diffcoder")  # whose published loops store keys and values


class Experts(nn.Module):
    """A mixture of experts: the host learns the choices and loops over the experts."""

    def __init__(self, mixture: MixtureOfExperts) -> None:
        super().__init__()
        self.router = mixture.router
        stacked = zip(mixture.experts.gate_up, mixture.experts.down, strict=True)
        self.experts: list[tuple[Tensor, Tensor, Tensor]] = []
        for gate_up, down in stacked:
            gate, up = gate_up.detach().chunk(2)
            self.experts.append((gate, up, down.detach()))
        self.shared = None
        if mixture.shared is not None:
            gate, up = mixture.shared.gate_up.weight.detach().chunk(2)
            self.shared = (gate, up, mixture.shared.down.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows)
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        sorted_rows, parts, first = rows[order // chosen.shape[1]], [], 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                parts.append(gated(sorted_rows[first : first + count], expert))
                first += count
        outputs = torch.empty_like(sorted_rows)
        outputs[order] = torch.cat(parts)
        mixed = (outputs.view(*chosen.shape, -1) * weights[..., None].to(x.dtype)).sum(1)
        mixed = mixed.view_as(x)
        return mixed if self.shared is None else mixed + gated(x, self.shared)


def gated(x: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the output of one gated MLP, in three products."""
    gate, up, down = weights
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class Layer(nn.Module):
    """A layer with separate matrices and repeated key heads."""

    def __init__(self, arch: Architecture, layer: ModelLayer) -> None:
        super().__init__()
        self.arch = arch
        self.attention_norm = Norm(layer.attention_norm.weight.detach(), arch.eps)
        self.mlp_norm = Norm(layer.mlp_norm.weight.detach(), arch.eps)
        sizes = [n * arch.head_dim for n in (arch.heads, arch.kv_heads, arch.kv_heads)]
        self.query, self.key, self.value = map(as_linear, layer.qkv.weight.detach().split(sizes))
        self.attention_out = as_linear(layer.attention_out.weight.detach())
        self.head_norms = None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = (layer.query_norm, layer.key_norm)
            self.head_norms = nn.ModuleList(Norm(one.weight.detach(), arch.eps) for one in norms)
        self.experts = Experts(layer.mlp) if isinstance(layer.mlp, MixtureOfExperts) else None
        self.mlp = None
        if not isinstance(layer.mlp, MixtureOfExperts):
            gate, up = layer.mlp.gate_up.weight.detach().chunk(2)
            self.mlp = (gate, up, layer.mlp.down.weight.detach())

    def forward(
        self, x: Tensor, past: Past | None, *, mask: Tensor | None, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Past]:
        rows, count, _ = x.shape
        normed, size = self.attention_norm(x), self.arch.head_dim
        query, key, value = (
            project(normed).view(rows, count, -1, size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        if self.head_norms is not None:
            query, key = self.head_norms[0](query), self.head_norms[1](key)
        query, key = self._rotated(query, angles), self._rotated(key, angles)
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        present = (key, value)
        times = self.arch.heads // self.arch.kv_heads
        key, value = (one.repeat_interleave(times, dim=1) for one in present)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, count, -1))
        normed = self.mlp_norm(x)
        if self.experts is not None:
            return x + self.experts(normed), present
        assert self.mlp is not None
        return x + gated(normed, self.mlp), present

    def _rotated(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        size = self.arch.rotary_dim
        part = rotate(x[..., :size], *angles)
        return part if size == x.shape[-1] else torch.cat((part, x[..., size:]), dim=-1)


class BlockReference(nn.Module):
    """The whole model, from tokens to all logits."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.arch, self.mask_id = model.config, model.mask_id
        self.embedding = model.embedding
        self.layers = nn.ModuleList(Layer(model.config, layer) for layer in model.layers)
        self.final_norm = Norm(model.final_norm.weight.detach(), model.config.eps)
        output = model.embedding if model.output is None else model.output
        self.output = as_linear(output.weight.detach())
        self.eval()

    def forward(
        self, tokens: Tensor, past: list[Past] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, list[Past]]:
        """Return (B, S, V) logits, and the keys and values of every layer."""
        x = self.embedding(tokens)
        start = 0 if past is None else past[0][0].shape[2]
        angles, present = self._angles(start, tokens.shape[1], x), []
        for number, layer in enumerate(self.layers):
            own = None if past is None else past[number]
            x, stored = layer(x, own, mask=mask, angles=angles)
            present.append(stored)
        return self.output(self.final_norm(x)), present

    def _angles(self, start: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return sine and cosine of the positions, (1, 1, count, rotary_dim) each."""
        wide, size = torch.promote_types(like.dtype, torch.float32), self.arch.rotary_dim
        pairs = torch.arange(0, size, 2, device=like.device, dtype=wide)
        positions = torch.arange(start, start + count, device=like.device, dtype=wide)
        angles = torch.outer(positions, 1.0 / self.arch.theta ** (pairs / size))
        angles = torch.cat((angles, angles), dim=-1)[None, None]
        return angles.sin().to(like.dtype), angles.cos().to(like.dtype)


def by_block(length: int, block: int, like: Tensor) -> Tensor:
    """Return the additive mask (1, 1, length, length) of attention by block, in a float dtype."""
    number = torch.arange(length, device=like.device) // block
    allowed = number[None, :] <= number[:, None]
    mask = torch.zeros((length, length), dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~allowed, float("-inf"))[None, None]


def cached_blocks(
    model: BlockReference, tokens: Tensor, prompt_tokens: int, *, block: int
) -> Iterator[Tensor]:
    """Fill blocks in place against stored keys and values; yield after each step.

    A block takes as many steps as it has positions, and one more pass that stores it.
    """
    past: list[Past] | None = None
    like = model.final_norm.weight
    with torch.no_grad():
        if prompt_tokens:
            mask = by_block(prompt_tokens, block, like)
            past = model(tokens[:, :prompt_tokens], mask=mask)[1]
    for start in range(prompt_tokens, tokens.shape[1], block):
        part = tokens[:, start : start + block]
        counts = transfers(part == model.mask_id, block)
        for step in range(block):
            with torch.no_grad():
                choose(part, model(part, past)[0], model.mask_id, counts=counts[:, step])
            yield tokens
        with torch.no_grad():
            past = model(part, past)[1]


def uncached_blocks(
    model: BlockReference, tokens: Tensor, prompt_tokens: int, *, block: int
) -> Iterator[Tensor]:
    """Fill blocks in place, computing everything up to the block's end; yield after each step."""
    like = model.final_norm.weight
    mask = by_block(tokens.shape[1], block, like)
    for start in range(prompt_tokens, tokens.shape[1], block):
        end = start + block
        part = tokens[:, start:end]
        counts = transfers(part == model.mask_id, block)
        for step in range(block):
            with torch.no_grad():
                logits = model(tokens[:, :end], mask=mask[:, :, :end, :end])[0]
                choose(part, logits[:, start:end], model.mask_id, counts=counts[:, step])
            yield tokens


def choose(part: Tensor, logits: Tensor, mask_id: int, *, counts: Tensor) -> None:
    """Commit the most confident positions of a block, by a softmax of all its logits."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    best = logits.argmax(dim=-1)
    probability = torch.softmax(logits.to(wide), dim=-1)
    confident = torch.gather(probability, -1, best.unsqueeze(-1)).squeeze(-1)
    commit(part, best, confident, masked=part == mask_id, counts=counts)


def published_loop(
    model: BlockReference, tokens: Tensor, prompt_tokens: int, *, family: str, block: int
) -> Iterator[Tensor]:
    """Return the loop that the family publishes."""
    loop = cached_blocks if family in CACHED else uncached_blocks
    return loop(model, tokens, prompt_tokens, block=block)
