"""The architecture that a checkpoint's config.json describes, checked key by key.

No key that affects the output has a default. The defaults of the published config classes do not
describe the published models, so a missing key is an error that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from wavefront.core.errors import CheckpointError, quote
from wavefront.storage.hub import listed_ids

# The supported values of a key, the usual one first; None means that it may be absent.
Supported = Mapping[str, tuple[Any, ...]]
# The supported values in `rope_parameters`; any other key describes a different rotation.
PLAIN_ROTARY: Supported = {
    "rope_type": ("default", None),
    "type": ("default", None),
    "partial_rotary_factor": (1, None),
}
# Keys without effect on the output of a forward pass, in files of any family. The loader reads
# `quantization` itself.
NO_EFFECT = frozenset(
    (
        *("_attn_implementation", "_attn_implementation_autoset", "_name_or_path"),
        *("architectures", "attention_dropout", "quantization", "tokenizer_class"),
        *("attn_implementation", "auto_map", "bos_token_id", "dtype", "embedding_dropout"),
        *("initializer_range", "max_window_layers", "model_type", "output_dropout"),
        *("output_router_logits", "pretraining_tp", "resid_pdrop", "router_aux_loss_coef"),
        *("torch_dtype", "transformers_version", "use_cache"),
    )
)
EXPERT_LIMIT = 4096  # experts of a layer: far above every published model
SIZE_LIMIT = 1 << 24  # layers, heads, rows, columns, positions: far above every published model
# The largest value of a number that is not a size.
NUMBER_LIMITS = {
    "rms_norm_eps": 1.0,
    "layer_norm_eps": 1.0,
    "rope_theta": 1e15,
    "partial_rotary_factor": 1.0,
    "routed_scaling_factor": 1e6,
}


@dataclass(frozen=True, kw_only=True)
class ExpertLayout:
    """The mixture of experts that replaces the MLP of most layers."""

    count: int
    per_token: int  # experts that are computed for a position
    width: int  # inner width of one expert
    # softmax: the weights are probabilities over all experts. normalized_softmax: those of the
    # chosen experts are divided by their sum. grouped_sigmoid: sigmoid scores, a bias for the
    # choice, and only the best groups of experts; the weights are divided by their sum.
    router: Literal["softmax", "normalized_softmax", "grouped_sigmoid"]
    groups: int = 1
    kept_groups: int = 1
    scale: float = 1.0  # multiplies the weights
    shared_width: int = 0  # inner width of an MLP that is added for every position; 0: none
    dense_layers: int = 0  # the first layers keep a plain MLP


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes, numbers and ids of one model, under one set of names for all families."""

    # The config keys of the sizes that `check_sizes` compares with the weights.
    size_keys: ClassVar[Mapping[str, str]]

    vocab_size: int  # rows of the embedding and the head; may exceed the tokenizer's vocabulary
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    theta: float
    eps: float
    qkv_bias: bool
    tied: bool
    rotary_float32: bool  # rotate queries and keys in float32, or in the activations' own dtype
    mask_id: int
    pad_id: int
    stop_ids: tuple[int, ...]
    max_length: int
    # The following fields have the values of a plain Llama by default.
    explicit_head_dim: int | None = None  # None: the width divided by the heads
    qk_norm: bool = False  # normalise every query and key head before the rotation
    layer_norm: bool = False  # layer norms with biases instead of RMS norms
    partial_rotary: float = 1.0  # the part of each head that is rotated
    # A position attends to its own block of this many positions and to earlier blocks.
    # None: it attends to all positions.
    block_size: int | None = None
    # Count blocks from the first column of the canvas, padding included, instead of from the
    # first token of the row. The prompt is then left-padded to whole blocks.
    padded_blocks: bool = False
    experts: ExpertLayout | None = None

    @property
    def head_dim(self) -> int:
        return self.explicit_head_dim or self.width // self.heads

    @property
    def rotary_dim(self) -> int:
        """The number of dimensions of each head that are rotated."""
        return int(self.head_dim * self.partial_rotary)

    def mlp_weights(self, layer: int, experts: float | None = None) -> int:
        """Return the number of matrix entries that a layer's MLP uses.

        Args:
            layer: The number of the layer.
            experts: How many experts are used; by default, the number used per position.
        """
        layout = self.experts
        if layout is None or layer < layout.dense_layers:
            return 3 * self.width * self.mlp_width
        used = layout.per_token if experts is None else experts
        inner = 3 * (round(used * layout.width) + layout.shared_width)
        return self.width * (inner + layout.count)

    def block_json(self, key: str) -> dict[str, Any]:
        """Return the config keys that `Keys.block_size` reads."""
        if self.block_size is None:
            return {"attention": "bidirectional"}
        return {key: self.block_size}

    def shared_json(self, supported: Supported) -> dict[str, Any]:
        """Return the config keys of `Keys.shared`, and the keys with one supported value."""
        return {key: values[0] for key, values in supported.items()} | {
            "vocab_size": self.vocab_size,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "mask_token_id": self.mask_id,
            "pad_token_id": self.pad_id,
            "eos_token_id": self.stop_ids[0] if len(self.stop_ids) == 1 else list(self.stop_ids),
        }


class Keys:
    """The keys of one config.json. Every error names the key and the value."""

    def __init__(self, values: Mapping[str, Any], supported: Supported | None = None) -> None:
        self.values = values
        self._read: set[str] = set()
        for key, choices in (supported or {}).items():
            self.only(key, *choices)

    def shared(
        self, rows: int, *, eps_key: str = "rms_norm_eps", partial_rotary: bool = False
    ) -> dict[str, Any]:
        """Return the fields whose keys all families share; `rows` is the vocabulary size."""
        stops = self.tokens("eos_token_id", below=rows)
        pad = self.tokens("pad_token_id", below=rows)
        mask = self.token("mask_token_id", below=rows)
        # A mask token is never proposed, so it could not end a text.
        for ids, name in ((stops, "an eos_token_id"), (pad, "the pad_token_id")):
            if mask in ids:
                raise CheckpointError(
                    f"config.json: mask_token_id = {mask} is also {name}; correct one of them."
                )
        return {
            "vocab_size": rows,
            "theta": self.rotary_base(partial=partial_rotary),
            "eps": self.number(eps_key),
            "mask_id": mask,
            "pad_id": (*pad, *stops, 0)[0],
            "stop_ids": stops,
        }

    def rotary_base(self, *, partial: bool = False) -> float:
        """Return `rope_theta`; newer files have it inside `rope_parameters`, or in both places.

        With `partial`, the family reads `partial_rotary_factor` itself.
        """
        if not partial:
            self.only("partial_rotary_factor", *PLAIN_ROTARY["partial_rotary_factor"])
        nested = self.get("rope_parameters")
        if nested is None:
            return self.number("rope_theta")
        if not isinstance(nested, Mapping):
            self.only("rope_parameters", None)
        inner = Keys(nested)
        for key in nested:
            if key != "rope_theta" and not (partial and key == "partial_rotary_factor"):
                inner.only(key, *PLAIN_ROTARY.get(key, (None,)))
        holders = [keys for keys in (self, inner) if keys.get("rope_theta") is not None]
        bases = [keys.number("rope_theta") for keys in holders or (self,)]
        if bases[0] != bases[-1]:
            raise CheckpointError(
                f"config.json: rope_theta is {bases[0]!r}, but {bases[-1]!r} inside "
                "rope_parameters; keep the one the model was trained with."
            )
        return bases[0]

    def size(self, key: str) -> int:
        """Return a required integer from 1 to `SIZE_LIMIT`."""
        value = self._required(key)
        if type(value) is not int or not 1 <= value <= SIZE_LIMIT:
            raise CheckpointError(
                f"config.json: {key} must be a whole number from 1 to {SIZE_LIMIT}, "
                f"not {quote(value)}."
            )
        return value

    def optional_size(self, key: str) -> int | None:
        """Return a positive integer, or None if the key is absent."""
        return None if self.get(key) is None else self.size(key)

    def block_size(self, key: str, *, default: int) -> int | None:
        """Return the size of an attention block, from `key`, of a block-causal family.

        No published file has the key `attention`. A model that was loaded as bidirectional is saved
        with it, and has no blocks.
        """
        size = self.optional_size(key) or default
        self.only("attention", None, "bidirectional")
        return size if self.get("attention") is None else None

    def count(self, key: str) -> int:
        """Return a required integer from 0 to `SIZE_LIMIT`."""
        return 0 if self.get(key) == 0 and self.get(key) is not False else self.size(key)

    def rotary_part(self) -> float:
        """Return `partial_rotary_factor`, which newer files have inside `rope_parameters`."""
        nested = self.get("rope_parameters")
        inside = isinstance(nested, Mapping) and nested.get("partial_rotary_factor") is not None
        holder = Keys(nested) if isinstance(nested, Mapping) and inside else self
        if inside and self.get("partial_rotary_factor") is not None:
            self.only("partial_rotary_factor", holder.get("partial_rotary_factor"))
        return holder.number("partial_rotary_factor")

    def get(self, key: str) -> Any:
        """Return the value of a key, or None. The key then counts as read."""
        self._read.add(key)
        return self.values.get(key)

    def refuse_others(self, *no_effect: str) -> None:
        """Raise if a key was not read and may change the output. Call this last.

        Accepted are keys in `no_effect` and in `NO_EFFECT`, and keys that are null or false.
        """
        accepted = self._read | NO_EFFECT | {*no_effect}
        for key, value in self.values.items():
            if key not in accepted and value not in (None, False):
                raise CheckpointError(
                    f"config.json: {quote(key)} = {quote(value)} is not known to this family; "
                    "remove the key if it does not change the output."
                )

    def number(self, key: str) -> float:
        """Return a required number above 0, and at most its limit in `NUMBER_LIMITS`."""
        value, limit = self._required(key), NUMBER_LIMITS[key]
        if type(value) not in (int, float) or not 0 < value <= limit:
            raise CheckpointError(
                f"config.json: {key} must be a number above 0 and at most {limit:g}, "
                f"not {quote(value)}."
            )
        return float(value)

    def flag(self, key: str) -> bool:
        """Return a required boolean."""
        value = self._required(key)
        if type(value) is not bool:
            raise CheckpointError(f"config.json: {key} must be true or false, not {quote(value)}.")
        return value

    def only(self, key: str, *supported: Any) -> None:
        """Raise unless the value is one of `supported`; None means that the key may be absent."""
        value = self.get(key)
        if value in supported:
            return
        if key not in self.values:
            self._required(key)
        names = " or ".join(repr(choice) for choice in supported if choice is not None)
        raise CheckpointError(
            f"config.json: {key} = {quote(value)} is not supported, only {names or 'null'}; "
            "this is another architecture."
        )

    def token(self, key: str, *, below: int) -> int:
        """Return a required token id that has a row in the embedding."""
        return self._token(key, self._required(key), below=below)

    def tokens(self, key: str, *, below: int) -> tuple[int, ...]:
        """Return zero, one or several token ids."""
        self._read.add(key)
        found = listed_ids(self.values, key)
        return tuple(self._token(key, number, below=below) for number in found)

    def divides(self, part: int, total: int, *, names: tuple[str, str]) -> None:
        """Raise unless `part` divides `total`; `names` are their keys."""
        if total % part:
            raise CheckpointError(
                f"config.json: {names[0]} = {part} does not divide {names[1]} = {total}; "
                "correct the config."
            )

    def _token(self, key: str, value: Any, *, below: int) -> int:
        if type(value) is not int or not 0 <= value < below:
            raise CheckpointError(
                f"config.json: {key} = {quote(value)} is not a token id from 0 to {below - 1}."
            )
        return value

    def _required(self, key: str) -> Any:
        if self.get(key) is None:
            raise CheckpointError(
                f"config.json has no {key!r}, which the model needs; "
                "add the key from the published config."
            )
        return self.values[key]
