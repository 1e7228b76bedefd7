"""Dream, and Qwen2-shaped checkpoints taken as Dream: the output at a place describes the NEXT one.

That displacement is undone here, in `Net.hidden`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wavefront.errors import CheckpointError
from wavefront.model import KV
from wavefront.models.architecture import Architecture, Keys
from wavefront.models.transformer import Names, Transformer

MASK_TOKEN = "<|mask|>"
# What the backbone does not compute; None where the published default is the supported value.
SUPPORTED = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
}


class Config(Architecture):
    """A Dream config.json."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        keys = Keys(values)
        for key, supported in SUPPORTED.items():
            keys.only(key, *supported)
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
        stops = keys.tokens("eos_token_id", below=rows)
        pad = keys.tokens("pad_token_id", below=rows)
        return cls(
            vocab_size=rows,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            mlp_width=keys.size("intermediate_size"),
            theta=_theta(keys),
            eps=keys.number("rms_norm_eps"),
            qkv_bias=True,
            tied=keys.flag("tie_word_embeddings"),
            rotary_float32=False,
            mask_id=keys.token("mask_token_id", below=rows),
            pad_id=(*pad, *stops, 0)[0],
            stop_ids=stops,
            max_length=keys.size("max_position_embeddings"),
        )

    def to_json(self) -> dict[str, Any]:
        chosen = {key: supported[0] for key, supported in SUPPORTED.items()}
        return chosen | {
            "architectures": ["DreamModel"],
            "model_type": "Dream",
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.mlp_width,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocab_size,
            "mask_token_id": self.mask_id,
            "pad_token_id": self.pad_id,
            "eos_token_id": self.stop_ids[0] if len(self.stop_ids) == 1 else list(self.stop_ids),
            "max_position_embeddings": self.max_length,
        }


def _theta(keys: Keys) -> float:
    """Newer files hold the rotary base inside `rope_parameters`."""
    nested = keys.values.get("rope_parameters")
    if keys.values.get("rope_theta") is None and isinstance(nested, Mapping):
        keys = Keys(nested)
        keys.only("rope_type", "default", None)
    return keys.number("rope_theta")


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

    def hidden(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor,
        *,
        window: Tensor | None = None,
        kv: KV | None = None,
    ) -> Tensor:
        """(B, Q, D): what describes place i is the output at i - 1, its own at a row's first place.

        The place before may lie outside the window, so it is computed too.
        """
        first = 0 if attend is None else attend.long().argmax(1, keepdim=True)
        source = at - (at > first).long()
        if window is not None:
            window = torch.cat((window, source), dim=1)
        return self.encode(tokens, attend, source, window=window, kv=kv)
