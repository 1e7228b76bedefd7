"""Stable-DiffCoder: a block-causal Llama; it differs from other Llamas by its `architectures`."""

from __future__ import annotations

from typing import Any

from wavefront.models.architecture import Keys
from wavefront.models.standard_layout import LLAMA_TOY, STANDARD_NAMES, StandardConfig
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("StableDiffcoderForCausalLM",)
MODEL_TYPES = ()  # config.json says llama
MASK_TOKEN = "<[MASK_TOKEN]>"
BLOCK_SIZE = 4  # the default of the published sampler; no published file has it
LAYOUT = "Llama"
TESTED = "golden logits and samplers"
# The toy model's settings, where families differ.
TOY = LLAMA_TOY | {"block_size": BLOCK_SIZE}


class Config(StandardConfig):
    """A Stable-DiffCoder config.json."""

    architectures = ARCHITECTURES
    model_type = "llama"

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        return {"block_size": keys.block_size("block_size", default=BLOCK_SIZE)}

    def own_json(self) -> dict[str, Any]:
        return self.block_json("block_size")


class Net(Transformer):
    """A Stable-DiffCoder model."""

    family = "stable_diffcoder"
    whole_blocks = False  # the published sampler ends a canvas where the answer ends
    names = STANDARD_NAMES
