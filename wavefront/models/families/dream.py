"""Dream, and Qwen2 checkpoints loaded as Dream: the output at a position predicts the NEXT token.

`Net.sources` undoes that shift; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from wavefront.core.errors import CheckpointError
from wavefront.models.architecture import Architecture, Keys
from wavefront.models.transformer import Names, Transformer

MASK_TOKEN = "<|mask|>"
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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        keys = Keys(values, SUPPORTED)
        # Queries, keys and values always have biases, whether or not the file has the key.
        keys.only("attention_bias", True, None)
        width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
        kv_heads, rows = keys.size("num_key_value_heads"), keys.size("vocab_size")
        keys.divides(2 * heads, width, names=("twice num_attention_heads", "hidden_size"))
        keys.divides(kv_heads, heads, names=("num_key_value_heads", "num_attention_heads"))
        layers = keys.size("num_hidden_layers")
        keys.only("head_dim", width // heads, None)
        keys.only("layer_types", ["full_attention"] * layers, None)
        if values.get("mask_token_id") is None:
            raise CheckpointError(
                f"config.json has no 'mask_token_id' and the tokenizer no added {MASK_TOKEN!r}: "
                "if this is a diffusion model, add its mask token's id to config.json."
            )
        return cls(
            **keys.shared(rows),
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            mlp_width=keys.size("intermediate_size"),
            qkv_bias=True,
            tied=keys.flag("tie_word_embeddings"),
            rotary_float32=False,
            max_length=keys.size("max_position_embeddings"),
        )

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
    names = Names(
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
    )

    def sources(self, at: Tensor, attend: Tensor | None) -> Tensor:
        """Return the previous position; the first position of a row uses its own output."""
        first = 0 if attend is None else attend.long().argmax(1, keepdim=True)
        return at - (at > first).long()
