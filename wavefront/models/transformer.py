"""The bidirectional transformer both families share, and what `wavefront.models.loader.Model` asks of it.

It computes the whole canvas, or only a window of places against stored keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.core.errors import OptionError, PromptError
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.architecture import Architecture
from wavefront.models.layer import Block, RMSNorm, Sight, find, spots, visible_keys, whole
from wavefront.models.loader import KV

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


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
    """A `Model`. A family adds its names and, where its outputs are displaced, its `sources`."""

    family: str
    names: ClassVar[Names]
    compiled = False  # the blocks, and what a step does around them; see wavefront.kernels.compile

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
        """(B, Q, D): see `wavefront.models.loader.Model`."""
        source = self.sources(at, attend)
        # A displaced output may lie outside the window, so its place is computed too; where nothing
        # is stored, a place that stood in the window twice would be looked at twice.
        if window is not None and kv is not None and source is not at:
            window = torch.cat((window, source), dim=1)
        return self.encode(tokens, attend, source, window=window, kv=kv)

    def sources(self, at: Tensor, attend: Tensor | None) -> Tensor:
        """(B, Q) long: the places whose outputs describe the places `at`; here, their own."""
        return at

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
        x, added, sight, picked = self.opened(tokens, attend, at, window, kv is None)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            store = None if kv is None else (kv.keys[number], kv.values[number])
            # After the last block's keys and values nothing but the wanted places is read.
            asked = picked if number == last else None
            x, added = block(x, added, sight, store=store, picked=asked)
        return self.closed(x, added)

    @compiled_with_model
    def opened(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor | None,
        window: Tensor | None,
        alone: bool,
    ) -> tuple[Tensor, Tensor, Sight, Tensor | None]:
        """What the blocks are given: the stream, what is still to be added to it, what they share,
        and where `at` stands in it.

        `alone`: nothing is stored, so the window's places see one another only.
        """
        length, picked = tokens.shape[1], at
        if window is None:
            positions = torch.arange(length, device=tokens.device)
        else:
            positions, tokens = window, tokens.gather(1, window)
            picked = None if at is None else find(at, window, length)
            if alone and attend is not None:
                attend = attend.gather(1, window)
        cosine, sine = self.turns(positions)
        where = None if window is None or alone else spots(window, self.config.kv_heads)
        x = self.embedding(tokens)
        heads = len(tokens) * self.config.kv_heads
        tally = tokens.new_zeros(heads, dtype=torch.int32) if self.blocks[0].lean else None
        sight = Sight(cosine, sine, visible_keys(attend), where, tally)
        # Not None, so that the first block is compiled as the others are (but for few rows, where a
        # block hands on two parts); and of x, so that it is made in one kernel with it. The sum is
        # x, to the sign of its zeros.
        return x, (0 * x)[None], sight, picked

    @compiled_with_model
    def closed(self, x: Tensor, added: Tensor) -> Tensor:
        """The stream after the last block, normed."""
        return self.final_norm(x + whole(added, x.dtype))

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
        tokens = token_rows(ids, self.vocab_size)
        visible = None if attend is None else attend_rows(attend, tokens.shape).to(self.device)
        return self.forward(tokens.to(self.device), visible)

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
        for kind, matrix in block.qkv.named_parameters():
            slices = zip((names.query, names.key, names.value), matrix.split(rows), strict=True)
            parts |= {f"{name}.{kind}": part for name, part in slices}
        return parts

    def repeats(self) -> dict[str, str]:
        """What a file may store besides: with tied weights, a head that repeats the embedding."""
        if self.output is not None:
            return {}
        return {f"{self.names.head}.weight": f"{self.names.embedding}.weight"}


def token_rows(ids: Tensor | Sequence[Sequence[int]], vocab_size: int) -> Tensor:
    """(B, L) long, checked: rows of one length that hold tokens of the vocabulary."""
    rows = _table(ids)
    if rows is None or rows.dtype not in WHOLE:
        raise PromptError(
            "Token ids are rows of one length, such as [[1, 2], [3, 4]]; pad shorter rows and "
            "pass attend=."
        )
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= vocab_size:
        raise PromptError(
            f"The token id {low if low < 0 else high} is outside the model's vocabulary, 0 to "
            f"{vocab_size - 1}."
        )
    return rows.long()


def attend_rows(attend: Tensor | Sequence[Sequence[int]], shape: torch.Size) -> Tensor:
    """(B, L) bool, checked: a 1 for every real place of the tokens, and a 0 for padding."""
    rows = _table(attend)
    if rows is None or rows.shape != shape or not ((rows == 0) | (rows == 1)).all():
        raise OptionError(
            f"attend must hold a 0 or a 1 for every token, so rows of shape {list(shape)}, "
            "as the tokens have."
        )
    return rows.bool()


def _table(rows: Any) -> Tensor | None:
    """Rows as a tensor of two dimensions; None when they are none."""
    try:
        table = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return table if table.dim() == 2 and table.numel() else None
