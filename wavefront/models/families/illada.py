"""iLLaDA: a Llama that attends to all positions, with RMS norms or layer norms."""

from __future__ import annotations

from typing import Any

from wavefront.models.architecture import Keys
from wavefront.models.standard_layout import LLAMA_TOY, STANDARD_NAMES, StandardConfig
from wavefront.models.transformer import Transformer

ARCHITECTURES = ("ILLaDAForCausalLM",)
MODEL_TYPES = ("illada",)
MASK_TOKEN = "<[MASK]>"
BLOCK_SIZE = None
LAYOUT = "Llama"
TESTED = "golden logits and samplers"
# The toy model's settings, where families differ.
TOY = LLAMA_TOY | {"layer_norm": True}


class Config(StandardConfig):
    """An iLLaDA config.json. A `layer_norm_eps` means layer norms, with biases."""

    architectures = ARCHITECTURES
    model_type = "illada"

    @classmethod
    def own_fields(cls, keys: Keys) -> dict[str, Any]:
        keys.get("rms_norm_eps")  # without effect if there is a layer_norm_eps
        return {"layer_norm": keys.get("layer_norm_eps") is not None}

    def own_json(self) -> dict[str, Any]:
        return {"layer_norm_eps": self.eps if self.layer_norm else None}


class Net(Transformer):
    """An iLLaDA model."""

    family = "illada"
    names = STANDARD_NAMES
