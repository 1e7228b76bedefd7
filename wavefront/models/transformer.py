"""The bidirectional transformer both families share, and what `wavefront.model.Model` asks of it.

It computes the whole canvas, or only a window of places against stored keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.errors import OptionError
from wavefront.model import KV
from wavefront.models.architecture import Architecture
from wavefront.models.block import Block, RMSNorm, Sight, find, visible_keys


class Names(NamedTuple):
    """Where each part stands in the published file, less `.weight`; `{}` is the block's number."""

    embedding: str
    attention_norm: str
    query: str
    key: str
    value: str
    attention_out: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    final_norm: str
    head: str


class Transformer(nn.Module):
    """A `Model`. A family adds its names and, where its outputs are displaced, its own `hidden`."""

    family: str
    names: ClassVar[Names]

    def __init__(self, config: Architecture) -> None:
        """Built without memory (meta device); `to_empty` and weights or `init_weights` follow."""
        super().__init__()
        self.config = config
        self.vocab_size, self.max_length = config.vocab_size, config.max_length
        self.mask_id, self.pad_id = config.mask_id, config.pad_id
        self.stop_ids = config.stop_ids
        with torch.device("meta"):
            blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.embedding = nn.Embedding(config.vocab_size, config.width)
            self.blocks = cast("Sequence[Block]", blocks)
            self.final_norm = RMSNorm(config.width, config.eps)
            output = nn.Linear(config.width, config.vocab_size, bias=False)
            self.output = None if config.tied else output

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def hidden(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor,
        *,
        window: Tensor | None = None,
        kv: KV | None = None,
    ) -> Tensor:
        """(B, Q, D): see `wavefront.model.Model`."""
        return self.encode(tokens, attend, at, window=window, kv=kv)

    def encode(
        self,
        tokens: Tensor,
        attend: Tensor | None = None,
        at: Tensor | None = None,
        *,
        window: Tensor | None = None,
        kv: KV | None = None,
    ) -> Tensor:
        """(B, Q, D), final-normed: the stream as trained, at the places `at`.

        Without `at`, at all places computed: those of the window, or the whole canvas.
        """
        length, picked = tokens.shape[1], at
        if window is None:
            positions = torch.arange(length, device=tokens.device)
        else:
            positions, tokens = window, tokens.gather(1, window)
            picked = None if at is None else find(at, window, length)
        cosine, sine = self.turns(positions)
        sight = Sight(cosine, sine, visible_keys(attend), window)
        x = self.embedding(tokens)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            store = None if kv is None else (kv.keys[number], kv.values[number])
            # After the last block's keys and values nothing but the wanted places is read.
            x = block(x, sight, store=store, picked=picked if number == last else None)
        return self.final_norm(x)

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each place's rotary angles: (..., 1, head_dim/2), at least float32."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        size = self.config.head_dim
        pairs = torch.arange(0, size, 2, device=positions.device, dtype=dtype)
        frequencies = 1.0 / self.config.theta ** (pairs / size)
        angles = positions.to(dtype)[..., None, None] * frequencies
        return angles.cos(), angles.sin()

    def new_kv(self, batch: int, length: int) -> KV:
        """Zeroed buffers, one pair a block."""
        shape = (batch, self.config.kv_heads, length, self.config.head_dim)

        def buffers() -> tuple[Tensor, ...]:
            return tuple(self.embedding.weight.new_zeros(shape) for _ in self.blocks)

        return KV(keys=buffers(), values=buffers())

    def head(self, hidden: Tensor) -> Tensor:
        """(..., V) in the model's dtype, as trained."""
        output = self.embedding if self.output is None else self.output
        return F.linear(hidden, output.weight)

    def forward(self, tokens: Tensor, attend: Tensor | None = None) -> Tensor:
        """(B, L, V): the logits as trained, for training."""
        return self.head(self.encode(tokens, attend))

    @torch.no_grad()
    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """(B, L, V): the published model's own output, unshifted, the mask token untouched."""
        if not isinstance(ids, Tensor) and len({len(row) for row in ids}) != 1:
            raise OptionError("raw_logits takes rows of one length; pad them and pass attend=.")
        tokens = torch.as_tensor(ids, device=self.device, dtype=torch.long)
        if attend is not None:
            attend = torch.as_tensor(attend, device=self.device).bool()
        return self.forward(tokens, attend)

    @torch.no_grad()
    def init_weights(self, seed: int, *, std: float = 0.02) -> None:
        """Normal matrices, unit norms, zero biases; the same numbers on every device."""
        generator = torch.Generator().manual_seed(seed)
        # Each block adds to the stream twice; this keeps its size independent of the depth.
        adding = std / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            spread = adding if name.endswith(("attention_out.weight", "down.weight")) else std
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)

    def published(self) -> dict[str, Tensor]:
        """Every weight under its published name, as a view: loading writes here, saving reads."""
        names = self.names
        parts = {f"{names.embedding}.weight": self.embedding.weight}
        for number, block in enumerate(self.blocks):
            parts |= {name.format(number): part for name, part in self._block_parts(block).items()}
        parts[f"{names.final_norm}.weight"] = self.final_norm.weight
        if self.output is not None:
            parts[f"{names.head}.weight"] = self.output.weight
        return {name: part.detach() for name, part in parts.items()}

    def _block_parts(self, block: Block) -> dict[str, Tensor]:
        names, config = self.names, self.config
        gate, up = block.mlp.gate_up.weight.chunk(2)
        parts = {
            f"{names.attention_norm}.weight": block.attention_norm.weight,
            f"{names.attention_out}.weight": block.attention_out.weight,
            f"{names.mlp_norm}.weight": block.mlp_norm.weight,
            f"{names.gate}.weight": gate,
            f"{names.up}.weight": up,
            f"{names.down}.weight": block.mlp.down.weight,
        }
        rows = [
            heads * config.head_dim for heads in (config.heads, config.kv_heads, config.kv_heads)
        ]
        for kind, fused in block.qkv.named_parameters():
            slices = zip((names.query, names.key, names.value), fused.split(rows), strict=True)
            parts |= {f"{name}.{kind}": part for name, part in slices}
        return parts

    def ignores(self, name: str) -> bool:
        """Whether a stored tensor may be left unread: rotary tables are computed, and with tied
        weights a stored head only repeats the embedding.
        """
        repeated = self.output is None and name == f"{self.names.head}.weight"
        return repeated or ".rotary_emb." in name
