"""LLaDA-MoE: experts with a plain softmax router; it differs from LLaDA by its `architectures`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavefront.core.errors import CheckpointError
from wavefront.models.architecture import Architecture, ExpertLayout, Keys
from wavefront.models.standard_layout import (
    STANDARD_NAMES,
    STANDARD_SIZE_KEYS,
    STANDARD_SUPPORTED,
    expert_sizes,
    standard_fields,
    standard_json,
)
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("LLaDAMoEModelLM",)
MODEL_TYPES = ()  # config.json says llada
MASK_TOKEN = "<|mask|>"
BLOCK_SIZE = None
LAYOUT = "Qwen3, experts"
TESTED = "golden logits, router choices and samplers"
# Config keys with one supported value; None where the key may be absent.
SUPPORTED = STANDARD_SUPPORTED | {
    "attention_bias": (False, None),
    "qk_layernorm": (True,),
    "clip_qkv": (None,),
    "moe_router_score_function": ("softmax",),
    "moe_router_enable_expert_bias": (False, None),
    "routed_scaling_factor": (1, None),
    "router_num_group": (None,),
    "router_topk_group": (None,),
    "shared_expert_intermediate_size": (None,),
}
# The toy model's settings, where families differ.
TOY = {
    "kv_heads": 4,
    "theta": 5e4,
    "eps": 1e-5,
    "qkv_bias": False,
    "rotary_float32": False,
    "qk_norm": True,
    "experts": ExpertLayout(count=6, per_token=3, width=32, router="softmax"),
}


class Config(Architecture):
    """A LLaDA-MoE config.json."""

    size_keys = STANDARD_SIZE_KEYS | {"mlp_width": "dense_intermediate_size"}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        keys = Keys(values, SUPPORTED)
        sizes = expert_sizes(keys, width_key="expert_intermediate_size")
        fields: dict[str, Any] = standard_fields(keys, mlp_key="dense_intermediate_size") | {
            "qk_norm": True,
            "experts": ExpertLayout(**sizes, router="softmax"),
        }
        _check_layers(keys, fields["layers"])
        keys.get("norm_topk_prob")  # the published router does not read it
        keys.refuse_others()
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        assert self.experts is not None
        return standard_json(self, SUPPORTED, mlp_key="dense_intermediate_size") | {
            "architectures": list(ARCHITECTURES),
            "model_type": "llada",
            "num_experts": self.experts.count,
            "num_experts_per_tok": self.experts.per_token,
            "expert_intermediate_size": self.experts.width,
            "moe_layer_freq": [1] * self.layers,
        }


def _check_layers(keys: Keys, layers: int) -> None:
    """Raise unless `moe_layer_freq` says for every layer that it has experts."""
    listed = keys.get("moe_layer_freq")
    if not isinstance(listed, list) or listed.count(1) < len(listed):
        keys.only("moe_layer_freq", 1)
    elif len(listed) != layers:
        raise CheckpointError(
            f"config.json: num_hidden_layers = {layers}, but moe_layer_freq lists {len(listed)}; "
            "correct the config."
        )


class Net(Transformer):
    """A LLaDA-MoE model."""

    family = "llada_moe"
    names = STANDARD_NAMES
