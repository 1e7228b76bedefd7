"""Model shapes: the sizes of published models, with random weights.

Speed does not depend on the values of the weights, so real shapes can be measured without the
checkpoints and without moving 16 GB through the host.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch

from wavefront.lm import LM
from wavefront.models.loader import find_family, resolve_device, resolve_dtype
from wavefront.models.quantize import (
    QuantizedLinear,
    check_kind,
    quantization_of,
    quantize_model,
    replace_linears,
)
from wavefront.models.transformer import Transformer
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.tokenizer import Tokenizer

LLADA_8B: dict[str, Any] = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "multi_query_attention": None,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "activation_type": "silu",
    "block_type": "llama",
    "block_group_size": 1,
    "rope": True,
    "rope_theta": 500000.0,
    "rope_full_precision": True,
    "alibi": False,
    "layer_norm_type": "rms",
    "rms_norm_eps": 1e-5,
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "weight_tying": False,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
    "max_sequence_length": 4096,
}
DREAM_7B: dict[str, Any] = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "vocab_size": 152064,
    "mask_token_id": 151666,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "pad_token_id": 151643,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "use_mrope": False,
    "torch_dtype": "bfloat16",
}
SDAR_8B: dict[str, Any] = {
    "model_type": "sdar",
    "architectures": ["SDARForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "vocab_size": 151936,
    "mask_token_id": 151669,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "block_size": 4,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
LLADA2_MINI: dict[str, Any] = {
    "model_type": "llada2_moe",
    "architectures": ["LLaDA2MoeModelLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "first_k_dense_replace": 1,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "router_dtype": "fp32",
    "hidden_act": "silu",
    "use_bias": False,
    "use_qkv_bias": False,
    "use_rmsnorm": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 600000,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "vocab_size": 157184,
    "mask_token_id": 156895,
    "pad_token_id": 156892,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "llada-8b-shape": LLADA_8B,
    "dream-7b-shape": DREAM_7B,
    "sdar-8b-shape": SDAR_8B,
    "llada2-mini-shape": LLADA2_MINI,
}


@torch.no_grad()
def random_model(
    name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **changes: Any,
) -> Transformer:
    """Build a model of a named shape with random weights; `changes` override its config.json."""
    target = resolve_device(device)
    config = SHAPES[name] | changes
    family = find_family(config)
    model = family.Net(family.Config.from_json(config)).to(resolve_dtype(dtype) or torch.bfloat16)
    model = model.to_empty(device=target)
    generator = torch.Generator(device=target).manual_seed(0)
    for buffer in model.buffers():  # the biases of routers
        buffer.zero_()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
    return model.eval()


def twin(model: Transformer) -> Transformer:
    """Return another model with the same weights in memory, to compile one of the two."""
    other = type(model)(model.config)
    if (kind := quantization_of(model)) is not None:
        replace_linears(other, kind)
    other.load_state_dict(model.state_dict(), assign=True)
    for part in other.modules():
        if isinstance(part, (QuantizedLinear, Transformer)):
            part.find_hardware()
    return other.eval()


@torch.no_grad()
def quantized_twin(model: Transformer, kind: str) -> Transformer:
    """Return a quantised copy of a model; what is not quantised shares the model's memory."""
    other = twin(model)
    quantize_model(other, kind)
    return other


def write_sparse_checkpoint(name: str, directory: Path) -> None:
    """Write a checkpoint of zeros in a named shape. Its file takes no space on the disk."""
    config = SHAPES[name]
    family = find_family(config)
    header: dict[str, Any] = {}
    end = 0
    for part, tensor in family.Net(family.Config.from_json(config)).published_weights().items():
        start, end = end, end + 2 * tensor.numel()
        header[part] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    (directory / "config.json").write_text(json.dumps(config))


def shape_lm(name: str, *, quantize: str | None = None, **options: Any) -> LM:
    """Make a model of a named shape with random weights, whose tokens are bytes.

    Args:
        name: A name of `SHAPES`.
        quantize: How to quantise its linear layers: "int8", "fp8" or "int4". Default: not.
        **options: The device and the dtype, and changes of its config.json.

    Raises:
        OptionError: `quantize` is not one of its values.
    """
    kind = check_kind(quantize)
    model = random_model(name, **options)
    if kind is not None:
        with torch.no_grad():
            quantize_model(model, kind)
    return LM(model, byte_tokenizer(), name=name)


def llada_8b(
    device: str | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    *,
    tokenizer_only: bool = False,
) -> LM | Tokenizer:
    """Make a model of LLaDA-8B's shape: `-m wavefront.bench.model_shapes:llada_8b`.

    With `tokenizer_only`, return its tokenizer and make no model.
    """
    if tokenizer_only:
        return byte_tokenizer()
    return shape_lm("llada-8b-shape", device=device, dtype=dtype, quantize=quantize)
