"""Model shapes: the sizes of published models, with random weights.

Speed does not depend on the values of the weights. So real shapes can be measured without the
checkpoints, and without moving 16 GB through the host.
"""

from __future__ import annotations

from typing import Any

import torch

from wavefront.models.loader import family_module, resolve_device, resolve_dtype
from wavefront.models.transformer import Transformer

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
SHAPES = {"llada-8b-shape": LLADA_8B, "dream-7b-shape": DREAM_7B}


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
    family = family_module(config["model_type"])
    model = family.Net(family.Config.from_json(config)).to(resolve_dtype(dtype) or torch.bfloat16)
    model = model.to_empty(device=target)
    generator = torch.Generator(device=target).manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
    return model.eval()


def twin(model: Transformer) -> Transformer:
    """Return another model with the same weights in memory, to compile one of the two."""
    other = type(model)(model.config)
    other.load_state_dict(model.state_dict(), assign=True)
    return other.eval()
