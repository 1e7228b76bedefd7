"""The transformer that all families share; it implements the model protocol.

It computes the whole canvas, or only a window of positions against stored keys and values.
Attention is bidirectional, or block-causal if `block_size` is set: a position attends to its own
block and to earlier ones. A block size of 1 is an autoregressive model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from wavefront.core.errors import OptionError, PromptError
from wavefront.kernels import cpu_product, small_batch_ops
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.architecture import Architecture
from wavefront.models.layer import (
    MLP,
    Layer,
    MixtureOfExperts,
    PassInputs,
    add_parts,
    attention_mask,
    block_mask,
    index_in_window,
    make_linear,
    make_norm,
    store_index,
    with_copies,
)
from wavefront.models.protocol import KV
from wavefront.models.quantize import QuantizedLinear, QuantizedWeight, Weight

# Ends of the names of the parameters whose products are added to the residual stream.
RESIDUAL = ("attention_out.weight", "down.weight", "experts.down")
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
    query_norm: str = ""
    key_norm: str = ""
    qkv: str = ""  # query, key and value in one matrix
    router: str = ""
    experts: str = ""  # a second `{}` stands for the number of the expert
    shared_expert: str = ""


class Transformer(nn.Module):
    """A `Model`. A family adds its weight names and, if its outputs are shifted, its `sources`."""

    family: str
    names: ClassVar[Names]
    windows = True
    compiled = False
    masked_copies = True
    whole_blocks = True
    shifted = False  # True if `sources` is another position

    def __init__(self, config: Architecture) -> None:
        """Build on the meta device. Call `to_empty` next, then load weights or `init_weights`."""
        super().__init__()
        self.config = config
        self.vocab_size, self.max_length = config.vocab_size, config.max_length
        self.mask_id, self.pad_id = config.mask_id, config.pad_id
        self.stop_ids = config.stop_ids
        self.block_size, self.padded_blocks = config.block_size, config.padded_blocks
        with torch.device("meta"):
            layers = nn.ModuleList(Layer(config, number) for number in range(config.layers))
            self.embedding = nn.Embedding(config.vocab_size, config.width)
            self.layers = cast("Sequence[Layer]", layers)
            self.final_norm = make_norm(config)
            output = make_linear(config.width, config.vocab_size)
            self.output = None if config.tied else output

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transformer:
        """Move to a device or dtype."""
        super()._apply(fn, recurse)
        self.find_hardware()
        return self

    def find_hardware(self) -> None:
        """Use the kernels for few rows if the model's device can run them."""
        for layer in self.layers:
            layer.use_small_batch_ops = small_batch_ops.available(self.device)

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
        copies: Tensor | None = None,
    ) -> Tensor:
        """Return (B, Q, D); see `wavefront.models.protocol.Model`."""
        if copies is not None:
            return self.encode(tokens, attend, at, window=window, kv=kv, copies=copies)
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
        copies: Tensor | None = None,
    ) -> Tensor:
        """Return (B, Q, D): the residual stream after the final norm, at the positions `at`.

        Without `at`, return it at all computed positions: the window, or the whole canvas.
        """
        x, added, shared, picked = self.embed(
            tokens, attend, at, window=window, alone=kv is None, copies=copies
        )
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
        copies: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, PassInputs, Tensor | None]:
        """Return the layers' inputs: residual stream, pending addition, shared inputs, indices.

        The indices (B, Q) say where `at` is in the computed positions. With `alone`, nothing is
        stored, so the window's positions attend to one another only.
        """
        length, picked, canvas = tokens.shape[1], at, tokens
        origin = self.block_origin(attend)
        if window is None:
            positions = torch.arange(length, device=tokens.device)
        else:
            positions, tokens = window, tokens.gather(1, window)
            picked = None if at is None else index_in_window(at, window, length)
            if alone and attend is not None:
                attend = attend.gather(1, window)
        keys, count = positions, 0
        by_key = copies is not None or self.block_size is not None
        if by_key and not alone:
            keys = torch.arange(length, device=tokens.device)
        if copies is not None and at is not None and picked is not None:
            count = at.shape[1]
            committed = canvas.gather(1, at) != self.mask_id
            order = torch.arange(count, device=at.device) + tokens.shape[1]
            picked = torch.where(copies & committed, order, picked)
            positions = torch.cat((positions.expand_as(tokens), at), dim=1)
            tokens = torch.cat((tokens, torch.full_like(at, self.mask_id)), dim=1)
        cosine, sine = self.rotary_angles(positions)
        where = None if window is None or alone else store_index(window, self.config.kv_heads)
        x = self.embedding(tokens)
        counters = None
        if self.layers[0].use_small_batch_ops:
            needed = small_batch_ops.counter_count(len(tokens), self.config.heads)
            counters = tokens.new_zeros(needed, dtype=torch.int32)
        blocks = None
        if self.block_size is not None:
            blocks = block_mask(positions - origin, keys - origin, self.block_size)
        attended = attention_mask(attend, blocks)
        if copies is not None and at is not None:
            among = None
            if self.block_size is not None:
                among = block_mask(positions - origin, at - origin, self.block_size)
            attended = with_copies(attended, positions, keys, at=at, copies=copies, blocks=among)
        shared = PassInputs(cosine, sine, attended, where, counters, count)
        # The pending addition is zeros rather than None, so that the first layer shares compiled
        # code with the others (except for few rows, where a layer passes on two parts). It is made
        # from x, in one kernel with it. The sum equals x up to the sign of its zeros.
        return x, (0 * x)[None], shared, picked

    def block_origin(self, attend: Tensor | None) -> Tensor | int:
        """Return the position that the first block starts at: an int, or (B, 1) long."""
        if attend is None or self.padded_blocks:
            return 0
        return attend.long().argmax(1, keepdim=True)

    @compiled_with_model
    def normalize(self, x: Tensor, added: Tensor) -> Tensor:
        """Return the residual stream after the last layer and the final norm."""
        return self.final_norm(x + add_parts(added, x.dtype))

    def rotary_angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the rotary angles: (..., 1, rotary_dim/2), at least float32."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        size = self.config.rotary_dim
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
        if self.output is None:
            return cpu_product.linear(hidden, self.embedding.weight)
        return self.output(hidden)

    def forward(self, tokens: Tensor, attend: Tensor | None = None) -> Tensor:
        """Return logits (B, L, V) as published, so unshifted: [b, i] is the output at i."""
        return self.head(self.encode(tokens, attend))

    def predictors(self, tokens: Tensor) -> Tensor:
        """Return hidden states (B, L, D) for training; `head` of [b, i] predicts the token at i."""
        hidden = self.encode(tokens)
        at = torch.arange(tokens.shape[1], device=tokens.device)[None]
        source = self.sources(at, None)
        return hidden if source is at else hidden[:, source[0]]

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
        """Set random normal matrices, unit norms and zero biases, identical on every device."""
        generator = torch.Generator().manual_seed(seed)
        # Each layer adds to the stream twice; this keeps its size independent of the depth.
        residual_std = std / (2 * self.config.layers) ** 0.5
        for buffer in self.buffers():  # the biases of routers
            buffer.zero_()
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            spread = residual_std if name.endswith(RESIDUAL) else std
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)

    def published_weights(self) -> dict[str, Tensor]:
        """Return every weight under its published name, as a view.

        A quantised weight is two or three tensors, as in a file.
        """
        found: dict[str, Tensor] = {}
        for name, part in self.weights().items():
            found |= part.tensors(name) if isinstance(part, QuantizedWeight) else {name: part}
        return found

    def weights(self) -> dict[str, Weight]:
        """Return every weight under its published name, as a view that loading writes to."""
        names = self.names
        parts: dict[str, Weight] = {f"{names.embedding}.weight": self.embedding.weight}
        for number, layer in enumerate(self.layers):
            weights = self._layer_weights(layer)
            parts |= {name.format(number): part for name, part in weights.items()}
        parts |= named_parts(names.final_norm, self.final_norm)
        if self.output is not None:
            parts[f"{names.head}.weight"] = self.output.weight
        return {
            name: part.detach() if isinstance(part, Tensor) else part
            for name, part in parts.items()
        }

    def _layer_weights(self, layer: Layer) -> dict[str, Weight]:
        """Return the weights of one layer; `{}` in a name stands for the layer number."""
        names, config = self.names, self.config
        parts: dict[str, Weight] = {
            **named_parts(names.attention_norm, layer.attention_norm),
            **named_parts(names.attention_out, layer.attention_out),
            **named_parts(names.mlp_norm, layer.mlp_norm),
        }
        if isinstance(layer.mlp, MixtureOfExperts):
            parts |= self._expert_weights(layer.mlp)
        else:
            parts |= mlp_parts((names.gate, names.up, names.down), layer.mlp)
        if layer.query_norm is not None and layer.key_norm is not None:
            parts |= named_parts(names.query_norm, layer.query_norm)
            parts |= named_parts(names.key_norm, layer.key_norm)
        if names.qkv:
            return parts | named_parts(names.qkv, layer.qkv)
        rows = [
            heads * config.head_dim for heads in (config.heads, config.kv_heads, config.kv_heads)
        ]
        for kind, matrix in module_parts(layer.qkv).items():
            slices = zip((names.query, names.key, names.value), matrix.split(rows), strict=True)
            parts |= {f"{name}.{kind}": part for name, part in slices}
        return parts

    def _expert_weights(self, mixture: MixtureOfExperts) -> dict[str, Weight]:
        """Return the weights of a mixture of experts; `{}` stands for the layer number."""
        names = self.names
        parts: dict[str, Weight] = {f"{names.router}.weight": mixture.router.weight}
        if mixture.router.expert_bias is not None:
            parts[f"{names.router}.expert_bias"] = mixture.router.expert_bias
        stacked = zip(mixture.experts.gate_up, mixture.experts.down, strict=True)
        for number, (gate_up, down) in enumerate(stacked):
            name = names.experts.format("{}", number)
            parts |= swiglu_parts(standard_mlp(name), gate_up, down)
        if mixture.shared is not None:
            parts |= mlp_parts(standard_mlp(names.shared_expert), mixture.shared)
        return parts

    def repeats(self) -> dict[str, str]:
        """Return the names of duplicate weights that a file may store, such as a tied head."""
        if self.output is not None:
            return {}
        return {f"{self.names.head}.weight": f"{self.names.embedding}.weight"}


def module_parts(module: nn.Module) -> dict[str, Weight]:
    """Return the parameters of a module, and its weight if that is quantised."""
    parts: dict[str, Weight] = dict(module.named_parameters())
    return {"weight": module.weight, **parts} if isinstance(module, QuantizedLinear) else parts


def named_parts(name: str, module: nn.Module) -> dict[str, Weight]:
    """Return the parts of a module under its published name."""
    return {f"{name}.{kind}": part for kind, part in module_parts(module).items()}


def standard_mlp(name: str) -> tuple[str, str, str]:
    """Return the names of gate, up and down of an MLP, as most families spell them."""
    return f"{name}.gate_proj", f"{name}.up_proj", f"{name}.down_proj"


def mlp_parts(names: tuple[str, str, str], mlp: MLP) -> dict[str, Weight]:
    """Return the weights of an MLP under the names of gate, up and down."""
    return swiglu_parts(names, mlp.gate_up.weight, mlp.down.weight)


def swiglu_parts(names: tuple[str, str, str], gate_up: Weight, down: Weight) -> dict[str, Weight]:
    """Return the matrices of an MLP or an expert under the names of gate, up and down."""
    gate, up = gate_up.chunk(2)
    matrices = zip(names, (gate, up, down), strict=True)
    return {f"{name}.weight": matrix for name, matrix in matrices}


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
