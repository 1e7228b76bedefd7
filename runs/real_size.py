"""Load and decode checkpoints in the shapes of published models, with random weights.

    python runs/real_size.py [--family llada dream sdar llada2] [--out results.json]

Writes a sharded safetensors checkpoint in the published layout to a temporary folder (16 GB; 33 GB
for LLaDA2-mini), loads it like any other, decodes in bfloat16, and accounts for the memory. LLaDA
and Dream are decoded with every strategy of the paper and without a cache, the block-causal models
with their exact cache, directly and with captured steps.
Hardware: one CUDA GPU with 20 GB or more (40 GB for LLaDA2-mini). Cost: about two minutes a family.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import wavefront
from wavefront.bench.model_shapes import DREAM_7B, LLADA2_MINI, LLADA_8B, SDAR_8B
from wavefront.bench.timing import synchronize
from wavefront.core import reading
from wavefront.core.tree import leaves
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.session import begin
from wavefront.engine.window import bucket_size
from wavefront.models.loader import find_family, resolve_device
from wavefront.models.transformer import Transformer

CONFIGS = {"llada": LLADA_8B, "dream": DREAM_7B, "sdar": SDAR_8B, "llada2": LLADA2_MINI}
STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
BLOCK_STRATEGIES = ("standard", "wavefront(size=8, radius=2)")
BLOCK_PLACES = 256  # positions that a block-causal model fills at most, one per step
GB = 1e9


def write_checkpoint(
    config: dict[str, Any], directory: Path, *, shards: int, device: torch.device
) -> int:
    """Write random weights under the published names in shards; return the bytes written."""
    (directory / "config.json").write_text(json.dumps(config))
    module = find_family(config)
    shapes = module.Net(module.Config.from_json(config)).published_weights()
    names = list(shapes)
    generator = torch.Generator(device=device).manual_seed(0)
    weight_map, total = {}, 0
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        tensors = {}
        for name in names[shard::shards]:  # spread as the real index does: never guess the shard
            shape = shapes[name].shape
            spread = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
            tensors[name] = (torch.ones_like(spread) if len(shape) == 1 else spread * 0.02).cpu()
            weight_map[name] = file
            total += tensors[name].numel() * 2
        save_file(tensors, directory / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def accounted(model: Transformer, prompt: int, places: int) -> dict[str, float]:
    """Return the bytes that a decode needs in addition to the weights, from the architecture."""
    arch, length, read, stored = model.config, prompt + places, places, 0
    tokens = length
    if model.block_size is not None:
        # The first step computes the prompt and a block, and every step reads one block.
        tokens, read = bucket_size(prompt + model.block_size, length), model.block_size
        stored = length * sum(leaf.nbytes for leaf in leaves(model.new_kv(1, 1)))
    chunk = min(read, max(1, reading._CHUNK // arch.vocab_size)) * arch.vocab_size
    # The widest moment of a layer: the stream, its norm, gate and up, and their product.
    activations = 2 * tokens * (3 * arch.width + 3 * arch.mlp_width)
    if arch.experts is not None:
        each = tokens * arch.experts.per_token
        # The inputs and products of the chosen experts, and their outputs twice in float32.
        experts = 2 * each * (2 * arch.width + 3 * arch.experts.width) + 8 * each * arch.width
        activations = max(activations, 2 * tokens * 3 * arch.width + experts)
    return {
        "activations": activations,
        # One chunk of logits: as given, in float32, without the mask, and two temporaries.
        "chunk of logits": chunk * (2 + 4 * 4),
        "hidden states": 2 * read * arch.width,
        "keys and values": stored,
    }


def measure(family: str, options: argparse.Namespace) -> dict[str, Any]:
    """Write, load and decode one family."""
    device = resolve_device(options.device)
    config = CONFIGS[family] | options.changes
    directory = Path(tempfile.mkdtemp(prefix="real-size-"))
    try:
        started = time.perf_counter()
        weights = write_checkpoint(config, directory, shards=6, device=device)
        written = time.perf_counter() - started
        reset_peak(device)
        started = time.perf_counter()
        model = wavefront.load_model(directory, device=device, dtype="bfloat16")
        synchronize(device)
        loaded = time.perf_counter() - started
    finally:
        shutil.rmtree(directory)
    assert isinstance(model, Transformer)
    result: dict[str, Any] = {
        "family": family,
        "dtype": str(model.dtype),
        "parameters": sum(one.numel() for one in model.parameters()),
        "weights_gb": weights / GB,
        "write_s": written,
        "load_s": loaded,
        "load_peak_gb": peak_gb(device),
        "decodes": [],
    }
    print(json.dumps(result), flush=True)
    for strategy, budget, captured in decodes(model, options):
        row = one_decode(model, options, strategy=strategy, steps=budget, captured=captured)
        result["decodes"].append(row)
    return result


def decodes(model: Transformer, options: argparse.Namespace) -> list[tuple[str, int, bool]]:
    """Return the strategies to decode with, their steps, and whether steps are captured."""
    if model.block_size is not None:
        places = places_of(model, options)
        ways = (False, True) if model.device.type == "cuda" else (False,)
        return [(one, places, captured) for one in BLOCK_STRATEGIES for captured in ways]
    # The cost of a step does not depend on the budget; only the wave's candidates do.
    return [
        (one, budget, False)
        for one in STRATEGIES
        for budget in dict.fromkeys(
            (options.steps, options.places) if one.startswith("wavefront") else (options.steps,)
        )
    ]


def places_of(model: Transformer, options: argparse.Namespace) -> int:
    """Return how many positions a decode fills."""
    return options.places if model.block_size is None else min(options.places, BLOCK_PLACES)


def one_decode(
    model: Transformer, options: argparse.Namespace, *, strategy: str, steps: int, captured: bool
) -> dict[str, Any]:
    """Decode once, twice if steps are captured, and return time and memory of the last one."""
    device, places = model.device, places_of(model, options)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, min(1000, model.vocab_size), (options.prompt,), generator=draw).tolist()
    given = {"max_new_tokens": places, "steps": steps, "strategy": strategy, "eos": "keep"}
    graphs = CapturedBatchers(model) if captured else None
    if captured:
        begin(model, [ids], given, captured=graphs).drain()
    reset_peak(device)
    synchronize(device)
    started = time.perf_counter()
    decoding = begin(model, [ids], given, captured=graphs).drain()
    synchronize(device)
    seconds = time.perf_counter() - started
    weights = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    expected = weights + sum(accounted(model, options.prompt, places).values())
    peak, answer = peak_gb(device), decoding.answers()[0]
    row: dict[str, Any] = {
        "strategy": strategy,
        "captured": captured,
        "places": places,
        "steps": steps,
        "forwards": decoding.forwards,
        "ms_per_forward": 1000 * seconds / decoding.forwards,
        "peak_gb": peak,
        "accounted_gb": expected / GB,
        # Captured steps keep their memory, so this compares direct steps.
        "difference_percent": None
        if peak is None or captured
        else 100 * (peak * GB - expected) / expected,
        "beyond_weights_gb": None if peak is None else peak - weights / GB,
        "a_full_float32_logits_tensor_would_be_gb": 4 * places * model.vocab_size / GB,
        "complete": len(answer) == places and model.mask_id not in answer,
    }
    print(json.dumps(row), flush=True)
    return row


def reset_peak(device: torch.device) -> None:
    """Forget the peak memory so far."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gb(device: torch.device) -> float | None:
    """Return the peak memory since the last `reset_peak`; None without CUDA."""
    return torch.cuda.max_memory_allocated(device) / GB if device.type == "cuda" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--family", nargs="+", choices=tuple(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--places", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--changes", type=json.loads, default={}, help="of the config, as JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = resolve_device(options.device)
    results = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "version": wavefront.__version__,
        "runs": [measure(family, options) for family in options.family],
    }
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
