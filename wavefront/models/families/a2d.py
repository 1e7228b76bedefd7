"""Tiny-A2D: Qwen3, Qwen2 or Llama adapted to diffusion, as mdlm or as bd3lm.

An mdlm attends to all positions. A bd3lm is block-causal, and its prompt is left-padded to whole
blocks. The files do not say which one a checkpoint is, so load a bd3lm with `attention="block"`.
"""

from __future__ import annotations

from typing import Any

from wavefront.models.architecture import Keys
from wavefront.models.standard_layout import (
    QWEN3_TOY,
    STANDARD_NAMES,
    STANDARD_SUPPORTED,
    StandardConfig,
)
from wavefront.models.transformer import Transformer

# The architecture of each `model_type`.
KINDS = {
    "a2d-qwen3": "A2DQwen3LMHeadModel",
    "a2d-qwen2": "A2DQwen2LMHeadModel",
    "a2d-llama": "A2DLlamaLMHeadModel",
}
ARCHITECTURES = tuple(KINDS.values())
MODEL_TYPES = tuple(KINDS)
MASK_TOKEN = "<|mask|>"
BLOCK_SIZE = 32  # of bd3lm
LAYOUT = "Qwen3, Qwen2 or Llama"
TESTED = "golden logits and samplers of the Qwen3 kind, as mdlm and bd3lm"
# The toy model's settings, where families differ.
TOY = QWEN3_TOY | {"padded_blocks": True}


class Config(StandardConfig):
    """A Tiny-A2D config.json."""

    supported = STANDARD_SUPPORTED
    own_head_dim = True

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        kind = _kind(keys)
        # Qwen2's queries, keys and values always have biases, whether or not the file says so.
        biased = kind == "a2d-qwen2"
        keys.only("attention_bias", biased, None)
        return {
            "qkv_bias": biased,
            "qk_norm": kind == "a2d-qwen3",
            "block_size": keys.optional_size("block_size"),
            "padded_blocks": True,
        }

    @property
    def model_type(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "a2d-qwen3" if self.qk_norm else "a2d-qwen2" if self.qkv_bias else "a2d-llama"

    @property
    def architectures(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (KINDS[self.model_type],)

    def own_json(self) -> dict[str, Any]:
        return {"block_size": self.block_size}


def _kind(keys: Keys) -> str:
    """Return the model type that the architecture implies, or else the `model_type` itself."""
    listed = keys.get("architectures")
    architectures = listed if isinstance(listed, list) else []
    found = [kind for kind, name in KINDS.items() if name in architectures]
    return found[0] if found else str(keys.get("model_type")).lower()


class Net(Transformer):
    """A Tiny-A2D model."""

    family = "a2d"
    whole_blocks = False  # the published sampler ends a canvas where the answer ends
    names = STANDARD_NAMES
