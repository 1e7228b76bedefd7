"""LLaDA 8B and 1.5: the output at a position predicts the token at that position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavefront.core.errors import CheckpointError
from wavefront.models.architecture import SIZE_LIMIT, Architecture, Keys
from wavefront.models.transformer import Names, Transformer

ARCHITECTURES = ("LLaDAModelLM",)
MODEL_TYPES = ("llada",)
MASK_TOKEN = "<|mdm_mask|>"
BLOCK_SIZE = None
LAYOUT = "LLaDA"
TESTED = "golden logits and samplers"
# Config keys with one supported value; None where the key may be absent.
SUPPORTED = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "rope": (True,),
    "include_bias": (False,),
    "alibi": (False, None),
    "attention_layer_norm": (False, None),
    "bias_for_layer_norm": (False, None),
    "layer_norm_with_affine": (True, None),
    "input_emb_norm": (False, None),
    "scale_logits": (False, None),
    "block_group_size": (1, None),
    "clip_qkv": (None,),
    "rope_scaling": (None,),
}
# Keys that are read with another value of a key above, or only in training.
NO_EFFECT = (
    *("alibi_bias_max", "attention_layer_norm_with_affine", "flash_attention"),
    *("init_cutoff_factor", "init_device", "init_fn", "init_std", "precision"),
    "residual_dropout",
)
# The toy model's settings, where families differ.
TOY = {"kv_heads": 4, "theta": 5e5, "eps": 1e-5, "qkv_bias": False, "rotary_float32": True}


class Config(Architecture):
    """A LLaDA config.json."""

    size_keys = {  # noqa: RUF012
        "layers": "n_layers",
        "vocab_size": "embedding_size (or vocab_size)",
        "width": "d_model",
        "mlp_width": "mlp_hidden_size (or mlp_ratio)",
    }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        keys = Keys(values, SUPPORTED)
        keys.only("include_qkv_bias", True, False, None)
        keys.only("rope_full_precision", True, False, None)
        width, heads, rows = keys.size("d_model"), keys.size("n_heads"), _rows(keys)
        kv_heads = _kv_heads(keys, heads)
        keys.divides(2 * heads, width, names=("twice n_heads", "d_model"))
        keys.divides(kv_heads, heads, names=("n_kv_heads", "n_heads"))
        config = cls(
            **keys.shared(rows),
            width=width,
            layers=keys.size("n_layers"),
            heads=heads,
            kv_heads=kv_heads,
            mlp_width=_mlp_width(keys, width),
            qkv_bias=values.get("include_qkv_bias") is True,
            tied=keys.flag("weight_tying"),
            rotary_float32=values.get("rope_full_precision") is not False,
            max_length=keys.size("max_sequence_length"),
        )
        keys.refuse_others(*NO_EFFECT)
        return config

    def to_json(self) -> dict[str, Any]:
        return self.shared_json(SUPPORTED) | {
            "architectures": ["LLaDAModelLM"],
            "model_type": "llada",
            "d_model": self.width,
            "n_layers": self.layers,
            "n_heads": self.heads,
            "n_kv_heads": self.kv_heads,
            "multi_query_attention": None,
            "mlp_hidden_size": self.mlp_width,
            "rope_full_precision": self.rotary_float32,
            "include_qkv_bias": self.qkv_bias,
            "weight_tying": self.tied,
            "embedding_size": self.vocab_size,
            "max_sequence_length": self.max_length,
        }


def _rows(keys: Keys) -> int:
    """Return the rows of embedding and head, which may be padded beyond the vocabulary."""
    vocabulary = keys.size("vocab_size")
    rows = keys.optional_size("embedding_size") or vocabulary
    if rows < vocabulary:
        keys.only("embedding_size", vocabulary)
    return rows


def _mlp_width(keys: Keys, width: int) -> int:
    """Return the inner width of the MLP; without its own key it is a multiple of the width."""
    keys.get("mlp_ratio")  # without effect if there is an mlp_hidden_size
    found = keys.optional_size("mlp_hidden_size") or keys.size("mlp_ratio") * width
    if found > SIZE_LIMIT:
        raise CheckpointError(
            f"config.json: mlp_ratio times d_model must be at most {SIZE_LIMIT}, not {found}."
        )
    return found


def _kv_heads(keys: Keys, heads: int) -> int:
    """Return the number of key heads; the older `multi_query_attention` means 1 or all heads."""
    keys.only("multi_query_attention", True, False, None)
    older = {True: 1, False: heads, None: None}[keys.values.get("multi_query_attention")]
    if older is not None:
        keys.only("n_kv_heads", older, None)
    return keys.optional_size("n_kv_heads") or older or heads


class Net(Transformer):
    """A LLaDA model.

    Its weights name the gate `ff_proj`, and both the head and the MLP's output `ff_out`.
    """

    family = "llada"
    names = Names(
        embedding="model.transformer.wte",
        attention_norm="model.transformer.blocks.{}.attn_norm",
        query="model.transformer.blocks.{}.q_proj",
        key="model.transformer.blocks.{}.k_proj",
        value="model.transformer.blocks.{}.v_proj",
        attention_out="model.transformer.blocks.{}.attn_out",
        mlp_norm="model.transformer.blocks.{}.ff_norm",
        gate="model.transformer.blocks.{}.ff_proj",
        up="model.transformer.blocks.{}.up_proj",
        down="model.transformer.blocks.{}.ff_out",
        final_norm="model.transformer.ln_f",
        head="model.transformer.ff_out",
    )
