"""Fast-dLLM v2: block-causal Qwen2.5; like Dream, its output predicts the NEXT token.

The output at the last position of a block predicts the first token of the next block. It depends on
earlier blocks only, so it is an ordinary next-token prediction.
"""

from __future__ import annotations

from typing import Any

from wavefront.models.architecture import Keys
from wavefront.models.families import dream
from wavefront.models.standard_layout import STANDARD_SUPPORTED, StandardConfig

ARCHITECTURES = ("Fast_dLLM_QwenForCausalLM",)
MODEL_TYPES = ("fast_dllm_qwen",)
MASK_TOKEN = "|<MASK>|"
BLOCK_SIZE = 32  # where config.json has no bd_size
LAYOUT = "Qwen2"
TESTED = "golden logits and samplers"
# The toy model's settings, where families differ.
TOY = dream.TOY | {"block_size": 4}


class Config(StandardConfig):
    """A Fast-dLLM v2 config.json. The block size is `bd_size`."""

    supported = STANDARD_SUPPORTED
    architectures = ARCHITECTURES
    model_type = "Fast_dLLM_Qwen"

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        # Queries, keys and values always have biases, whether or not the file has the key.
        keys.only("attention_bias", True, None)
        return {"qkv_bias": True, "block_size": keys.block_size("bd_size", default=BLOCK_SIZE)}

    def own_json(self) -> dict[str, Any]:
        return self.block_json("bd_size")


class Net(dream.Net):
    """A Fast-dLLM v2 model; see `dream.Net.sources` for the shift."""

    family = "fast_dllm_v2"
