"""How much memory published checkpoints need, computed from their shapes.

The numbers of docs/models.md come from here. Run `python -m wavefront.bench.checkpoint_sizes` to
print the table; a test compares it with the page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from wavefront.bench.model_shapes import DREAM_7B, LLADA2_MINI, LLADA_8B, SDAR_8B
from wavefront.models.loader import find_family
from wavefront.models.quantize import weight_bytes
from wavefront.models.transformer import Transformer

GB = 1e9
CARDS = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141)  # GB of common cards
RESERVE = 1.5 * GB  # the driver, the libraries and the activations of one short request
KV_POSITIONS = 2048  # positions of one request whose keys and values fit besides

_QWEN3 = {name: value for name, value in SDAR_8B.items() if name not in ("block_size",)}
_QWEN2 = {name: value for name, value in DREAM_7B.items() if name != "use_mrope"}
_LLAMA = {
    name: value for name, value in SDAR_8B.items() if name not in ("head_dim", "block_size")
} | {"num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 155136}

# Published checkpoints and their shapes. The families made from Qwen have the sizes of the Qwen
# model that they were trained from.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1": _QWEN3
    | {
        "architectures": ["A2DQwen3LMHeadModel"],
        "model_type": "a2d-qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "Efficient-Large-Model/Fast_dLLM_v2_1.5B": _QWEN2
    | {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "hidden_size": 1536,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "JetLM/SDAR-1.7B-Chat": SDAR_8B
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 6144,
        "tie_word_embeddings": True,
    },
    "JetLM/SDAR-4B-Chat": SDAR_8B
    | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct": {
        name: value
        for name, value in _QWEN3.items()
        if name not in ("head_dim", "intermediate_size")
    }
    | {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "expert_intermediate_size": 1024,
        "dense_intermediate_size": 8192,
        "moe_layer_freq": [1] * 16,
        "moe_router_score_function": "softmax",
        "norm_topk_prob": None,
        "qk_layernorm": True,
        "vocab_size": 157184,
    },
    "Dream-org/Dream-v0-Instruct-7B": DREAM_7B,
    "Efficient-Large-Model/Fast_dLLM_v2_7B": _QWEN2
    | {"architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen"},
    "GSAI-ML/LLaDA-8B-Instruct": LLADA_8B,
    "GSAI-ML/iLLaDA-8B-Instruct": _LLAMA
    | {
        "architectures": ["ILLaDAForCausalLM"],
        "model_type": "illada",
        "tie_word_embeddings": True,
    },
    "JetLM/SDAR-8B-Chat": SDAR_8B,
    "ByteDance-Seed/Stable-DiffCoder-8B-Instruct": _LLAMA
    | {"architectures": ["StableDiffcoderForCausalLM"], "model_type": "llama", "block_size": 4},
    "inclusionAI/LLaDA2.0-mini": LLADA2_MINI,
    "JetLM/SDAR-30B-A3B-Chat": SDAR_8B
    | {
        "architectures": ["SDARMoeForCausalLM"],
        "model_type": "sdar_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
}


class CheckpointSize(NamedTuple):
    """The memory of one checkpoint."""

    name: str
    family: str
    parameters: int
    weights: dict[str, int]  # bytes by precision
    kv: int  # bytes of the keys and values of KV_POSITIONS positions in bfloat16

    def card(self, precision: str) -> int | None:
        """Return the smallest card in GB that holds the weights and one request."""
        needed = self.weights[precision] + self.kv + RESERVE
        return next((size for size in CARDS if needed <= size * GB), None)


PRECISIONS = ("bf16", "int8", "fp8", "int4")


def size_of(name: str) -> CheckpointSize:
    """Return the memory of a published checkpoint. The model is built without its weights."""
    config = CHECKPOINTS[name]
    family = find_family(config)
    with torch.device("meta"):
        model: Transformer = family.Net(family.Config.from_json(config))
    bytes_of = {
        one: weight_bytes(model, torch.bfloat16, None if one == "bf16" else one)
        for one in PRECISIONS
    }
    parameters = sum(weight.numel() for weight in model.parameters())
    shape = model.config
    kv = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim * KV_POSITIONS
    return CheckpointSize(name, family.Net.family, parameters, bytes_of, kv)


def markdown() -> str:
    """Return the table of docs/models.md."""
    head = ["checkpoint", "family", "parameters", *(f"{one}" for one in PRECISIONS), "card"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in CHECKPOINTS:
        size = size_of(name)
        weights = [f"{size.weights[one] / GB:.1f}" for one in PRECISIONS]
        cards = [size.card(one) for one in ("bf16", "int8", "int4")]
        shown = " / ".join("-" if card is None else str(card) for card in cards)
        cells = [f"`{name}`", size.family, f"{size.parameters / GB:.1f} B", *weights, shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
