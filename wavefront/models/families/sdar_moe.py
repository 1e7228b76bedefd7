"""SDAR-MoE (SDAR-30B-A3B): SDAR with experts, whose softmax weights are normalised."""

from __future__ import annotations

from typing import Any

from wavefront.models.architecture import ExpertLayout, Keys
from wavefront.models.families import sdar
from wavefront.models.standard_layout import (
    STANDARD_NAMES,
    SUPPORTED_WITHOUT_BIAS,
    expert_sizes,
)
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("SDARMoeForCausalLM",)
MODEL_TYPES = ("sdar_moe",)
MASK_TOKEN = "<|MASK|>"
BLOCK_SIZE = sdar.BLOCK_SIZE
LAYOUT = "Qwen3, experts"
TESTED = "golden logits, router choices and samplers"
# Config keys with one supported value; None where the key may be absent. All layers have experts.
SUPPORTED = SUPPORTED_WITHOUT_BIAS | {
    "decoder_sparse_step": (1, None),
    "mlp_only_layers": ([], None),
}
# The toy model's settings, where families differ.
TOY = sdar.TOY | {
    "experts": ExpertLayout(count=6, per_token=2, width=32, router="normalized_softmax")
}


class Config(sdar.Config):
    """An SDAR-MoE config.json."""

    supported = SUPPORTED
    architectures = ARCHITECTURES
    model_type = "sdar_moe"

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        normalized = keys.flag("norm_topk_prob")
        experts = ExpertLayout(
            **expert_sizes(keys, width_key="moe_intermediate_size"),
            router="normalized_softmax" if normalized else "softmax",
        )
        return super().own_fields(keys) | {"experts": experts}

    def own_json(self) -> dict[str, Any]:
        assert self.experts is not None
        return super().own_json() | {
            "num_experts": self.experts.count,
            "num_experts_per_tok": self.experts.per_token,
            "moe_intermediate_size": self.experts.width,
            "norm_topk_prob": self.experts.router == "normalized_softmax",
        }


class Net(Transformer):
    """An SDAR-MoE model."""

    family = "sdar_moe"
    names = STANDARD_NAMES
