"""Dream, and Qwen2 checkpoints loaded as Dream: the output at a position predicts the NEXT token.

`Net.sources` is the only place that undoes this shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from wavefront.models.architecture import Architecture, Keys
from wavefront.models.standard_layout import STANDARD_NAMES, STANDARD_SIZE_KEYS, standard_fields
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("DreamModel",)
MODEL_TYPES = ("dream", "qwen2")
MASK_TOKEN = "<|mask|>"
BLOCK_SIZE = None
LAYOUT = "Qwen2"
TESTED = "golden logits and samplers; Dream-Coder and DiffuCoder by their config"
# Config keys with one supported value; None where the key may be absent.
SUPPORTED = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
}
# The toy model's settings, where families differ.
TOY = {"kv_heads": 2, "theta": 1e6, "eps": 1e-6, "qkv_bias": True, "rotary_float32": False}


class Config(Architecture):
    """A Dream config.json."""

    size_keys = STANDARD_SIZE_KEYS

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        keys = Keys(values, SUPPORTED)
        # Queries, keys and values always have biases, whether or not the file has the key.
        keys.only("attention_bias", True, None)
        fields: dict[str, Any] = standard_fields(keys) | {"qkv_bias": True}
        keys.refuse_others()
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return self.shared_json(SUPPORTED) | {
            "architectures": ["DreamModel"],
            "model_type": "Dream",
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.mlp_width,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.max_length,
        }


class Net(Transformer):
    """A Dream model."""

    family = "dream"
    shifted = True
    names = STANDARD_NAMES

    def sources(self, at: Tensor, attend: Tensor | None) -> Tensor:
        """Return the previous position; the first position of a row uses its own output."""
        first = 0 if attend is None else attend.long().argmax(1, keepdim=True)
        return at - (at > first).long()
