"""LLaDA2.0 and 2.1, mini and flash: experts in groups, one shared expert, block-causal attention.

The router scores with a sigmoid, chooses with a bias, and weighs without it. Only the first part
of each head is rotated, and query, key and value are one published matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavefront.core.errors import CheckpointError
from wavefront.models.architecture import SIZE_LIMIT, Architecture, ExpertLayout, Keys
from wavefront.models.standard_layout import (
    QWEN3_TOY,
    STANDARD_NAMES,
    STANDARD_SIZE_KEYS,
    STANDARD_SUPPORTED,
    expert_sizes,
    standard_fields,
    standard_json,
)
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("LLaDA2MoeModelLM",)
MODEL_TYPES = ("llada2_moe",)
MASK_TOKEN = "<|mask|>"
BLOCK_SIZE = 32  # the default of the published sampler; no published file has it
LAYOUT = "LLaDA2, experts"
TESTED = "golden logits, router choices and samplers"
# Config keys with one supported value; None where the key may be absent.
SUPPORTED = STANDARD_SUPPORTED | {
    "attention_bias": (None, False),
    "use_bias": (False, None),
    "use_qkv_bias": (False, None),
    "use_rmsnorm": (True, None),
    "use_qk_norm": (True, None),
    "norm_head": (False, None),
    "norm_softmax": (False, None),
    "using_split_qkv_in_self_attention": (False, None),
    "score_function": ("sigmoid", None),
    "topk_method": (None, "noaux_tc"),
    "router_dtype": ("fp32", "float32", None),
    "moe_router_enable_expert_bias": (True, None),
    "norm_topk_prob": (True, None),
}
# The toy model's settings, where families differ.
TOY = QWEN3_TOY | {
    "theta": 6e5,
    "partial_rotary": 0.5,
    "block_size": 4,
    "experts": ExpertLayout(
        count=8,
        per_token=2,
        width=32,
        router="grouped_sigmoid",
        groups=4,
        kept_groups=2,
        scale=2.5,
        shared_width=32,
        dense_layers=1,
    ),
}


class Config(Architecture):
    """A LLaDA2 config.json. It has no end token; `pad_token_id` serves as one."""

    size_keys = STANDARD_SIZE_KEYS

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        if not values.get("eos_token_id"):
            values = {**values, "eos_token_id": values.get("pad_token_id")}
        keys = Keys(values, SUPPORTED)
        fields: dict[str, Any] = standard_fields(keys, own_head_dim=True, partial_rotary=True)
        layers: int = fields["layers"]
        fields |= {
            "qk_norm": True,
            "partial_rotary": keys.rotary_part(),
            "block_size": keys.block_size("block_size", default=BLOCK_SIZE),
            "experts": _experts(keys, layers),
        }
        keys.get("rotary_dim")  # the published code does not read it
        keys.refuse_others()
        config = cls(**fields)
        if config.rotary_dim < 2 or config.rotary_dim % 2:
            raise CheckpointError(
                f"config.json: partial_rotary_factor = {config.partial_rotary:g} rotates "
                f"{config.rotary_dim} dimensions of a head; the number must be even and above 0."
            )
        return config

    def to_json(self) -> dict[str, Any]:
        experts = self.experts
        assert experts is not None
        return (
            standard_json(self, SUPPORTED)
            | self.block_json("block_size")
            | {
                "architectures": list(ARCHITECTURES),
                "model_type": "llada2_moe",
                "partial_rotary_factor": self.partial_rotary,
                "num_experts": experts.count,
                "num_experts_per_tok": experts.per_token,
                "moe_intermediate_size": experts.width,
                "num_shared_experts": experts.shared_width // experts.width,
                "first_k_dense_replace": experts.dense_layers,
                "n_group": experts.groups,
                "topk_group": experts.kept_groups,
                "routed_scaling_factor": experts.scale,
            }
        )


def _experts(keys: Keys, layers: int) -> ExpertLayout:
    """Return the experts, after checking that the router can choose among them."""
    sizes = expert_sizes(keys, width_key="moe_intermediate_size")
    count, groups, kept = sizes["count"], keys.size("n_group"), keys.size("topk_group")
    keys.divides(groups, count, names=("n_group", "num_experts"))
    if kept > groups or sizes["per_token"] > kept * (count // groups):
        raise CheckpointError(
            f"config.json: topk_group = {kept} of n_group = {groups} groups cannot give "
            f"num_experts_per_tok = {sizes['per_token']} experts; correct the config."
        )
    shared = keys.count("num_shared_experts") * sizes["width"]
    if shared > SIZE_LIMIT:
        raise CheckpointError(
            f"config.json: num_shared_experts times moe_intermediate_size must be at most "
            f"{SIZE_LIMIT}, not {shared}."
        )
    return ExpertLayout(
        **sizes,
        router="grouped_sigmoid",
        groups=groups,
        kept_groups=kept,
        scale=keys.number("routed_scaling_factor"),
        shared_width=shared,
        dense_layers=min(keys.count("first_k_dense_replace"), layers),
    )


class Net(Transformer):
    """A LLaDA2 model."""

    family = "llada2"
    names = STANDARD_NAMES._replace(
        embedding="model.word_embeddings",
        qkv="model.layers.{}.attention.query_key_value",
        query_norm="model.layers.{}.attention.query_layernorm",
        key_norm="model.layers.{}.attention.key_layernorm",
        attention_out="model.layers.{}.attention.dense",
    )
