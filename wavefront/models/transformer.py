"""The bidirectional transformer that all families share; it implements the model protocol.

It computes the whole canvas, or only a window of positions against stored keys and values.
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
from wavefront.models.layer import (
    Layer,
    PassInputs,
    RMSNorm,
    add_parts,
    attention_mask,
    index_in_window,
    store_index,
)
from wavefront.models.protocol import KV

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Names(NamedTuple):
    """The published names of the weights, without `.weight`; `{}` stands for the layer number."""

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
    """A `Model`. A family adds its weight names and, if its outputs are shifted, its `sources`."""

    family: str
    names: ClassVar[Names]
    windows = True
    compiled = False

    def __init__(self, config: Architecture) -> None:
        """Build on the meta device. Call `to_empty` next, then load weights or `init_weights`."""
        super().__init__()
        self.config = config
        self.vocab_size, self.max_length = config.vocab_size, config.max_length
        self.mask_id, self.pad_id = config.mask_id, config.pad_id
        self.stop_ids = config.stop_ids
        with torch.device("meta"):
            layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
            self.embedding = nn.Embedding(config.vocab_size, config.width)
            self.layers = cast("Sequence[Layer]", layers)
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
        """Return (B, Q, D); see `wavefront.models.protocol.Model`."""
        source = self.sources(at, attend)
        # A shifted output may lie outside the window, so its position is computed too. Without
        # stored keys this is not allowed: a position in the window twice would be attended twice.
        if window is not None and kv is not None and source is not at:
            window = torch.cat((window, source), dim=1)
        return self.encode(tokens, attend, source, window=window, kv=kv)

    def sources(self, at: Tensor, attend: Tensor | None) -> Tensor:
        """Return (B, Q) long: the positions whose outputs predict the tokens at `at`."""
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
        """Return (B, Q, D): the residual stream after the final norm, at the positions `at`.

        Without `at`, return it at all computed positions: the window, or the whole canvas.
        """
        x, added, shared, picked = self.embed(tokens, attend, at, window=window, alone=kv is None)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            store = None if kv is None else (kv.keys[number], kv.values[number])
            # After the last layer's keys and values, only the requested positions are read.
            wanted = picked if number == last else None
            x, added = layer(x, added, shared, store=store, picked=wanted)
        return self.normalize(x, added)

    @compiled_with_model
    def embed(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor | None,
        *,
        window: Tensor | None,
        alone: bool,
    ) -> tuple[Tensor, Tensor, PassInputs, Tensor | None]:
        """Return the layers' inputs: residual stream, pending addition, shared inputs, indices.

        The indices (B, Q) say where `at` is in the computed positions. With `alone`, nothing is
        stored, so the window's positions attend to one another only.
        """
        length, picked = tokens.shape[1], at
        if window is None:
            positions = torch.arange(length, device=tokens.device)
        else:
            positions, tokens = window, tokens.gather(1, window)
            picked = None if at is None else index_in_window(at, window, length)
            if alone and attend is not None:
                attend = attend.gather(1, window)
        cosine, sine = self.rotary_angles(positions)
        where = None if window is None or alone else store_index(window, self.config.kv_heads)
        x = self.embedding(tokens)
        counters = None
        if self.layers[0].use_small_batch_ops:
            heads = len(tokens) * self.config.kv_heads
            counters = tokens.new_zeros(heads, dtype=torch.int32)
        shared = PassInputs(cosine, sine, attention_mask(attend), where, counters)
        # The pending addition is zeros rather than None, so that the first layer shares compiled
        # code with the others (except for few rows, where a layer passes on two parts). It is made
        # from x, in one kernel with it. The sum equals x up to the sign of its zeros.
        return x, (0 * x)[None], shared, picked

    @compiled_with_model
    def normalize(self, x: Tensor, added: Tensor) -> Tensor:
        """Return the residual stream after the last layer and the final norm."""
        return self.final_norm(x + add_parts(added, x.dtype))

    def rotary_angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the rotary angles: (..., 1, head_dim/2), at least float32."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        size = self.config.head_dim
        pairs = torch.arange(0, size, 2, device=positions.device, dtype=dtype)
        frequencies = 1.0 / self.config.theta ** (pairs / size)
        angles = positions.to(dtype)[..., None, None] * frequencies
        return angles.cos(), angles.sin()

    def new_kv(self, batch: int, length: int) -> KV:
        """Return zeroed buffers, one pair per layer."""
        shape = (batch, self.config.kv_heads, length, self.config.head_dim)

        def buffers() -> tuple[Tensor, ...]:
            return tuple(self.embedding.weight.new_zeros(shape) for _ in self.layers)

        return KV(keys=buffers(), values=buffers())

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) in the model's dtype, as trained."""
        output = self.embedding if self.output is None else self.output
        return F.linear(hidden, output.weight)

    def forward(self, tokens: Tensor, attend: Tensor | None = None) -> Tensor:
        """Return logits (B, L, V) as trained; for training."""
        return self.head(self.encode(tokens, attend))

    @torch.no_grad()
    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Return (B, L, V): the published model's own output, unshifted, mask token included."""
        tokens = token_rows(ids, self.vocab_size)
        real = None if attend is None else attend_rows(attend, tokens.shape).to(self.device)
        return self.forward(tokens.to(self.device), real)

    @torch.no_grad()
    def init_weights(self, seed: int, *, std: float = 0.02) -> None:
        """Set normal matrices, unit norms and zero biases; the same numbers on every device."""
        generator = torch.Generator().manual_seed(seed)
        # Each layer adds to the stream twice; this keeps its size independent of the depth.
        residual_std = std / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            spread = residual_std if name.endswith(("attention_out.weight", "down.weight")) else std
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)

    def published_weights(self) -> dict[str, Tensor]:
        """Return every weight under its published name, as a view that loading writes to."""
        names = self.names
        parts = {f"{names.embedding}.weight": self.embedding.weight}
        for number, layer in enumerate(self.layers):
            weights = self._layer_weights(layer)
            parts |= {name.format(number): part for name, part in weights.items()}
        parts[f"{names.final_norm}.weight"] = self.final_norm.weight
        if self.output is not None:
            parts[f"{names.head}.weight"] = self.output.weight
        return {name: part.detach() for name, part in parts.items()}

    def _layer_weights(self, layer: Layer) -> dict[str, Tensor]:
        """Return the weights of one layer; `{}` in a name stands for the layer number."""
        names, config = self.names, self.config
        gate, up = layer.mlp.gate_up.weight.chunk(2)
        parts = {
            f"{names.attention_norm}.weight": layer.attention_norm.weight,
            f"{names.attention_out}.weight": layer.attention_out.weight,
            f"{names.mlp_norm}.weight": layer.mlp_norm.weight,
            f"{names.gate}.weight": gate,
            f"{names.up}.weight": up,
            f"{names.down}.weight": layer.mlp.down.weight,
        }
        rows = [
            heads * config.head_dim for heads in (config.heads, config.kv_heads, config.kv_heads)
        ]
        for kind, matrix in layer.qkv.named_parameters():
            slices = zip((names.query, names.key, names.value), matrix.split(rows), strict=True)
            parts |= {f"{name}.{kind}": part for name, part in slices}
        return parts

    def repeats(self) -> dict[str, str]:
        """Return names a file may also store: with tied weights, a head equal to the embedding."""
        if self.output is not None:
            return {}
        return {f"{self.names.head}.weight": f"{self.names.embedding}.weight"}


def token_rows(ids: Tensor | Sequence[Sequence[int]], vocab_size: int) -> Tensor:
    """Return the ids as (B, L) long. Raise `PromptError` unless they are valid token ids."""
    rows = _table(ids)
    if rows is None or rows.dtype not in INTEGERS:
        raise PromptError(
            "Token ids must be rows of one length, such as [[1, 2], [3, 4]]; pad shorter rows and "
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
    """Return the mask as (B, L) bool: 1 for every real position, 0 for padding."""
    rows = _table(attend)
    if rows is None or rows.shape != shape or not ((rows == 0) | (rows == 1)).all():
        raise OptionError(
            f"attend must hold a 0 or a 1 for every token, in the tokens' shape {list(shape)}.",
            option="attend",
        )
    return rows.bool()


def _table(rows: Any) -> Tensor | None:
    """Return rows as a non-empty tensor of two dimensions, or None if they are not."""
    try:
        table = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return table if table.dim() == 2 and table.numel() else None
