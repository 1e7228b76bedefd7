"""runs/real_size.py on tiny shapes: checkpoints are written, loaded and decoded."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from helpers.pages import load_script

IDS: dict[str, Any] = {"vocab_size": 256, "mask_token_id": 250, "pad_token_id": 251}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
}
EXPERTS = {
    "moe_intermediate_size": 16,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
}
LLADA = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 128}
CHANGES: dict[str, dict[str, Any]] = {
    "llada": {**LLADA, **IDS, "embedding_size": 256, "eos_token_id": 251},
    "dream": {**TINY, **IDS, "bos_token_id": 251, "eos_token_id": 251},
    "sdar": {**TINY, **IDS, "eos_token_id": [251]},
    "llada2": {**TINY, **IDS, **EXPERTS},
}
del CHANGES["dream"]["head_dim"]  # Dream has no such key


@pytest.mark.slow
@pytest.mark.parametrize("family", CHANGES)
def test_checkpoint_in_shards_is_loaded_and_decoded(family: str) -> None:
    script = load_script("real_size")
    sizes: dict[str, Any] = {"prompt": 32, "places": 64, "steps": 32}
    options = argparse.Namespace(device="cpu", changes=CHANGES[family], **sizes)
    found = script.measure(family, options)
    assert found["weights_gb"] * 1e9 == pytest.approx(2 * found["parameters"], rel=0.01)
    assert len(found["decodes"]) == (2 if family in ("sdar", "llada2") else 4)
    assert all(row["complete"] for row in found["decodes"])
    assert all(row["accounted_gb"] > found["weights_gb"] for row in found["decodes"])
