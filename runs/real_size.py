"""Load and decode checkpoints in the shapes of LLaDA-8B and Dream-7B, with random weights.

    python runs/real_size.py [--family llada dream] [--places 1024] [--out results.json]

Writes a sharded safetensors checkpoint in the published layout to a temporary folder (16 GB),
loads it like any other, decodes in bfloat16 with every strategy of the paper, and accounts for the
memory.
Hardware: one CUDA GPU with 20 GB or more. Cost: about two minutes a family.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import wavefront
from wavefront.bench.model_shapes import DREAM_7B, LLADA_8B
from wavefront.core import reading
from wavefront.engine.session import begin
from wavefront.models.loader import family_module

CONFIGS = {"llada": LLADA_8B, "dream": DREAM_7B}
STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
GB = 1e9


def write_checkpoint(family: str, directory: Path, shards: int) -> int:
    """Write random weights under the published names in shards; return the bytes written."""
    config = CONFIGS[family]
    (directory / "config.json").write_text(json.dumps(config))
    module = family_module(config["model_type"])
    shapes = module.Net(module.Config.from_json(config)).published_weights()
    names = list(shapes)
    generator = torch.Generator(device="cuda").manual_seed(0)
    weight_map, total = {}, 0
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        tensors = {}
        for name in names[shard::shards]:  # spread as the real index does: never guess the shard
            shape = shapes[name].shape
            spread = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
            tensors[name] = (torch.ones_like(spread) if len(shape) == 1 else spread * 0.02).cpu()
            weight_map[name] = file
            total += tensors[name].numel() * 2
        save_file(tensors, directory / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def accounted(family: str, tokens: int, places: int) -> dict[str, float]:
    """Return the bytes that a decode needs beside the weights, from the architecture."""
    config = CONFIGS[family]
    width = config.get("d_model") or config["hidden_size"]
    mlp = config.get("mlp_hidden_size") or config["intermediate_size"]
    vocab = config["vocab_size"]
    chunk = min(places, max(1, reading._CHUNK // vocab)) * vocab
    return {
        # the widest moment of a block: the stream, its norm, gate and up, and their product
        "activations": 2 * tokens * (3 * width + 3 * mlp),
        # one chunk of logits: as given, in float32, without the mask, and two temporaries
        "chunk of logits": chunk * (2 + 4 * 4),
        "hidden states": 2 * places * width,
    }


def measure(family: str, prompt: int, places: int, steps: int) -> dict:
    directory = Path(tempfile.mkdtemp(prefix="real-size-"))
    try:
        started = time.perf_counter()
        weights = write_checkpoint(family, directory, shards=6)
        written = time.perf_counter() - started
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        model = wavefront.load_model(directory, device="cuda")
        torch.cuda.synchronize()
        loaded = time.perf_counter() - started
    finally:
        shutil.rmtree(directory)
    result = {
        "family": family,
        "dtype": str(model.dtype),
        "weights_gb": weights / GB,
        "write_s": written,
        "load_s": loaded,
        "load_peak_gb": torch.cuda.max_memory_allocated() / GB,
        "decodes": [],
    }
    ids = torch.randint(0, 1000, (prompt,), generator=torch.Generator().manual_seed(1)).tolist()
    needed = accounted(family, prompt + places, places)
    for strategy in STRATEGIES:
        # A step costs the same whatever the budget; only the wave's reach depends on it.
        for budget in (steps, places) if strategy.startswith("wavefront") else (steps,):
            row = one_decode(model, ids, places, budget, strategy, weights, needed)
            result["decodes"].append(row)
    return result


def one_decode(model, ids, places, steps, strategy, weights, needed) -> dict:
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    decoding = begin(
        model, [ids], {"max_new_tokens": places, "steps": steps, "strategy": strategy}
    ).drain()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated()
    expected = weights + sum(needed.values())
    logits = 4 * places * model.vocab_size
    answer = decoding.answers()[0]
    row = {
        "strategy": strategy,
        "places": places,
        "steps": steps,
        "forwards": decoding.forwards,
        "ms_per_forward": 1000 * seconds / decoding.forwards,
        "peak_gb": peak / GB,
        "accounted_gb": expected / GB,
        "difference_percent": 100 * (peak - expected) / expected,
        "beyond_weights_gb": (peak - weights) / GB,
        "a_full_float32_logits_tensor_would_be_gb": logits / GB,
        "complete": len(answer) == places and model.mask_id not in answer,
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--family", nargs="+", choices=tuple(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--places", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "version": wavefront.__version__,
        "runs": [measure(f, options.prompt, options.places, options.steps) for f in options.family],
    }
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
