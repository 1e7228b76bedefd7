"""The config keys and weight names that most families take from Llama and Qwen.

A family of this layout derives its Config from `StandardConfig` and uses `STANDARD_NAMES`. If its
config.json differs more, it reads the file with `standard_fields` and writes it with
`standard_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from wavefront.core.errors import CheckpointError
from wavefront.models.architecture import EXPERT_LIMIT, Architecture, Keys, Supported
from wavefront.models.transformer import Names

STANDARD_SIZE_KEYS = {
    "layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
}
# Keys with one supported value; None where the key may be absent.
STANDARD_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "mlp_bias": (False, None),
}
# The same for a family whose queries, keys and values have no biases.
SUPPORTED_WITHOUT_BIAS = STANDARD_SUPPORTED | {"attention_bias": (False, None)}
# Settings of toy models, which a family changes where it differs.
LLAMA_TOY: dict[str, Any] = {
    "kv_heads": 2,
    "theta": 5e5,
    "eps": 1e-6,
    "qkv_bias": False,
    "rotary_float32": False,
}
QWEN3_TOY = LLAMA_TOY | {"theta": 1e6, "explicit_head_dim": 24, "qk_norm": True}
STANDARD_NAMES = Names(
    embedding="model.embed_tokens",
    attention_norm="model.layers.{}.input_layernorm",
    query="model.layers.{}.self_attn.q_proj",
    key="model.layers.{}.self_attn.k_proj",
    value="model.layers.{}.self_attn.v_proj",
    attention_out="model.layers.{}.self_attn.o_proj",
    mlp_norm="model.layers.{}.post_attention_layernorm",
    gate="model.layers.{}.mlp.gate_proj",
    up="model.layers.{}.mlp.up_proj",
    down="model.layers.{}.mlp.down_proj",
    final_norm="model.norm",
    head="lm_head",
    query_norm="model.layers.{}.self_attn.q_norm",
    key_norm="model.layers.{}.self_attn.k_norm",
    router="model.layers.{}.mlp.gate",
    experts="model.layers.{}.mlp.experts.{}",
    shared_expert="model.layers.{}.mlp.shared_experts",
)


def standard_fields(
    keys: Keys,
    *,
    own_head_dim: bool = False,
    mlp_key: str = "intermediate_size",
    eps_key: str = "rms_norm_eps",
    partial_rotary: bool = False,
) -> dict[str, Any]:
    """Return the fields of `Architecture` that have the same keys in all files of this layout.

    Args:
        keys: The keys of config.json.
        own_head_dim: `head_dim` is a size of its own; otherwise it follows from the width.
        mlp_key: The key of the MLP's inner width.
        eps_key: The key of the number that norms add to the variance.
        partial_rotary: The family reads `partial_rotary_factor` itself.
    """
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads, rows = keys.size("num_key_value_heads"), keys.size("vocab_size")
    keys.divides(kv_heads, heads, names=("num_key_value_heads", "num_attention_heads"))
    head_dim = keys.optional_size("head_dim") if own_head_dim else None
    if head_dim is None:
        keys.divides(2 * heads, width, names=("twice num_attention_heads", "hidden_size"))
        keys.only("head_dim", width // heads, None)
    elif head_dim % 2:
        raise CheckpointError(f"config.json: head_dim = {head_dim} must be even.")
    layers = keys.size("num_hidden_layers")
    check_layer_types(keys, layers)
    keys.get("sliding_window")  # without effect, because use_sliding_window is false
    return keys.shared(rows, eps_key=eps_key, partial_rotary=partial_rotary) | {
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "mlp_width": keys.size(mlp_key),
        "qkv_bias": False,
        "tied": keys.flag("tie_word_embeddings"),
        "rotary_float32": False,
        "max_length": keys.size("max_position_embeddings"),
        "explicit_head_dim": head_dim,
    }


def expert_sizes(keys: Keys, *, width_key: str) -> dict[str, int]:
    """Return the sizes that every mixture of experts needs, as fields of `ExpertLayout`.

    `width_key` is the config key of an expert's width, which differs between families.
    """
    count, chosen = keys.size("num_experts"), keys.size("num_experts_per_tok")
    if count > EXPERT_LIMIT or chosen > count:
        raise CheckpointError(
            f"config.json: num_experts_per_tok = {chosen} of num_experts = {count} is not "
            f"possible; a layer has at most {EXPERT_LIMIT} experts."
        )
    return {"count": count, "per_token": chosen, "width": keys.size(width_key)}


def standard_json(
    arch: Architecture, supported: Supported, *, mlp_key: str = "intermediate_size"
) -> dict[str, Any]:
    """Return the config keys that `standard_fields` reads."""
    return arch.shared_json(supported) | {
        "hidden_size": arch.width,
        "num_hidden_layers": arch.layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.kv_heads,
        "head_dim": arch.head_dim,
        mlp_key: arch.mlp_width,
        "tie_word_embeddings": arch.tied,
        "max_position_embeddings": arch.max_length,
    }


def check_layer_types(keys: Keys, layers: int) -> None:
    """Raise unless `layer_types` is absent, or says for every layer that it attends to all."""
    kinds = keys.get("layer_types")
    count = kinds.count("full_attention") if isinstance(kinds, list) else 0
    if not isinstance(kinds, list) or not count == len(kinds) == layers:
        keys.only("layer_types", None)


class StandardConfig(Architecture):
    """The config.json of a family of this layout.

    A family sets the class attributes, and reads and writes its own keys in `own_fields` and
    `own_json`.
    """

    size_keys = STANDARD_SIZE_KEYS
    supported: ClassVar[Supported] = SUPPORTED_WITHOUT_BIAS
    architectures: ClassVar[tuple[str, ...]]
    model_type: ClassVar[str]
    own_head_dim: ClassVar[bool] = False  # `head_dim` is a size of its own
    ignored_keys: ClassVar[tuple[str, ...]] = ()  # without effect on a forward pass

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        keys = Keys(values, cls.supported)
        own = cls.own_fields(keys)
        eps_key = "layer_norm_eps" if own.get("layer_norm") else "rms_norm_eps"
        fields = standard_fields(keys, own_head_dim=cls.own_head_dim, eps_key=eps_key) | own
        keys.refuse_others(*cls.ignored_keys)
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return (
            standard_json(self, self.supported)
            | {"architectures": list(self.architectures), "model_type": self.model_type}
            | self.own_json()
        )

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        """Return the fields of `Architecture` that this family reads in its own way."""
        return {}

    def own_json(self) -> dict[str, Any]:
        """Return the keys of this family."""
        return {}
