"""SDAR, TraDo and DiRL: block-causal Qwen3, with blocks counted from the first token."""

from __future__ import annotations

from typing import Any

from wavefront.models.architecture import Keys
from wavefront.models.standard_layout import QWEN3_TOY, STANDARD_NAMES, StandardConfig
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("SDARForCausalLM",)
MODEL_TYPES = ("sdar",)
MASK_TOKEN = "<|MASK|>"
BLOCK_SIZE = 4  # where config.json has no block_size
LAYOUT = "Qwen3"
TESTED = "golden logits and samplers"
# Keys of the training code, without effect on a forward pass.
TRAINING_KEYS = (
    *("debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint"),
    "use_deepep",
)
# The toy model's settings, where families differ.
TOY = QWEN3_TOY | {"block_size": BLOCK_SIZE}


class Config(StandardConfig):
    """An SDAR config.json."""

    architectures = ARCHITECTURES
    model_type = "sdar"
    own_head_dim = True
    ignored_keys = TRAINING_KEYS

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        return {"qk_norm": True, "block_size": keys.block_size("block_size", default=BLOCK_SIZE)}

    def own_json(self) -> dict[str, Any]:
        return self.block_json("block_size")


class Net(Transformer):
    """An SDAR model: queries and keys are normalised per head before the rotation."""

    family = "sdar"
    names = STANDARD_NAMES
