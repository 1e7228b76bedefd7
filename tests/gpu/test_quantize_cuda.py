"""Quantised weights on a GPU: products, memory and time. It also runs as a script."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from wavefront.bench.model_shapes import write_sparse_checkpoint
from wavefront.core.errors import CheckpointError
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.session import begin
from wavefront.kernels import fp8_product, small_batch_ops
from wavefront.kernels.compile import compile_model
from wavefront.models.loader import load_model
from wavefront.models.quantize import KINDS, QuantizedLinear, QuantizedWeight, quantize_model
from wavefront.models.toy import toy

# The matrices of a LLaDA-8B layer: rows and columns.
LAYER = {"qkv": (12288, 4096), "out": (4096, 4096), "gate": (24576, 4096), "down": (4096, 12288)}
SHAPE = "llada-8b-shape"
TIMED = (  # see script.py
    "test_small_batch_products_are_faster_than_in_bfloat16",
    "test_fp8_products_of_a_full_canvas_are_faster_than_in_bfloat16",
)


def quantized(kind: str, width: int, depth: int) -> QuantizedLinear:
    """Return a layer with random weights."""
    linear = nn.Linear(depth, width, bias=False, device="cuda", dtype=torch.bfloat16)
    made = QuantizedLinear(kind, linear)
    made.weight.copy_(linear.weight.detach())
    return made


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@torch.no_grad()
def test_products_equal_those_of_the_dequantised_weights():
    """Few rows by the kernels, more by blocks; fp8 also rounds the inputs."""
    for kind in KINDS:
        for width, depth in (*LAYER.values(), (126464, 4096)):
            linear = quantized(kind, width, depth)
            for rows in ((1, 1), (1, 32), (4, 8), (1, 33), (2, 63), (1, 64), (1, 200)):
                x = torch.randn(*rows, depth, device="cuda", dtype=torch.bfloat16)
                wanted = F.linear(x, linear.weight.dequantize(torch.bfloat16))
                in_fp8 = kind == "fp8" and fp8_product.hardware_scales(x.device)
                bound = 0.04 if in_fp8 else 0.006
                error = off(linear(x), wanted)
                assert error < bound, (kind, width, depth, rows, error)


@torch.no_grad()
def test_rows_are_rounded_to_fp8_as_on_the_cpu():
    for rows, depth in ((1, 4096), (32, 4096), (200, 12288), (7, 1000)):
        x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16) * 3
        x[0] = 0
        (codes, scale), (wanted, wanted_scale) = map(fp8_product.quantize_rows, (x, x.cpu()))
        assert torch.equal(scale.cpu(), wanted_scale)
        assert torch.equal(codes.cpu().view(torch.uint8), wanted.view(torch.uint8))


@torch.no_grad()
def test_quantising_on_the_device_gives_the_codes_of_the_cpu():
    weight = torch.randn(300, 1000) * 0.02
    for kind in KINDS:
        cpu, cuda = QuantizedWeight.of(weight, kind), QuantizedWeight.of(weight.cuda(), kind)
        for one, two in zip(cpu.tensors("").values(), cuda.tensors("").values(), strict=True):
            one, two = one.contiguous(), two.cpu().contiguous()
            same = (one.view(torch.uint8) == two.view(torch.uint8)).float().mean().item()
            print(f"{kind}: {100 * same:.4f} % of the bytes are equal")
            assert same > 0.999  # a division may round differently


def test_compiled_and_captured_steps_decode_as_eager_ones():
    """A quantised model in float64, where the libraries compute every product."""
    for kind in KINDS:
        options = {"max_new_tokens": 48, "strategy": "wavefront", "cache": "wave(refresh=4)"}
        model = toy(device="cuda", dtype="float64", width=128)
        quantize_model(model, kind)
        eager = begin(model, [[5, 6, 7]], options)
        for _ in eager:
            pass
        compile_model(model, dynamic=False)
        captured = begin(model, [[5, 6, 7]], options, captured=CapturedBatchers(model))
        for _ in captured:
            pass
        assert eager.answers() == captured.answers(), kind


@torch.no_grad()
def test_kernels_in_a_compiled_model_are_as_exact_as_the_library():
    for kind in KINDS:
        plain, lean = (toy(device="cuda", dtype="bfloat16", width=512) for _ in range(2))
        for model in (plain, lean):
            quantize_model(model, kind)
        for part in plain.modules():
            if isinstance(part, QuantizedLinear):
                part._kernels = False
        torch._dynamo.reset()
        compile_model(lean, dynamic=False)
        truth = toy(device="cuda", dtype="float32", width=512)
        quantize_model(truth, kind)
        places = torch.arange(300, device="cuda")[None]
        errors = []
        outputs = []
        for model in (truth, plain, lean):
            kv = model.new_kv(1, 300)
            model.encode(places % 60, kv=kv)
            outputs.append(model.encode(places.flip(1) % 60, window=places[:, 100:132], kv=kv))
        errors = [off(made, outputs[0]) for made in outputs[1:]]
        print(f"{kind}: {errors[1]:.4f} off compiled, {errors[0]:.4f} eager")
        assert errors[1] < 1.2 * errors[0]


def milliseconds(call: Callable[[int], object], count: int, repeats: int = 20) -> float:
    """Return the median time of a call, for `count` calls with other weights in a CUDA graph.

    Without a graph, the time of a small product is that of its launch.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(count):
            call(number)
    torch.cuda.current_stream().wait_stream(stream)
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for number in range(count):
            call(number)
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / count)
    return sorted(times)[repeats // 2]


@torch.no_grad()
def test_small_batch_products_are_faster_than_in_bfloat16():
    """32 rows, over copies of each matrix that together exceed the L2 cache."""
    total = dict.fromkeys(("bfloat16", *KINDS), 0.0)
    for name, (width, depth) in LAYER.items():
        copies = max(2, math.ceil(2e8 / (width * depth)))
        x = torch.randn(1, 32, depth, device="cuda", dtype=torch.bfloat16)
        weights = [torch.randn(width, depth, device="cuda", dtype=x.dtype) for _ in range(copies)]
        times = {
            "bfloat16": milliseconds(
                lambda n, x=x, w=weights: small_batch_ops.product(x, w[n]), copies
            )
        }
        for kind in KINDS:
            linears = [quantized(kind, width, depth) for _ in range(copies)]
            times[kind] = milliseconds(lambda n, x=x, w=linears: w[n].parts(x), copies)
        for kind, time in times.items():
            total[kind] += time
        print(name, {kind: f"{1000 * time:.1f} us" for kind, time in times.items()})
    print({kind: f"{total['bfloat16'] / time:.2f} x" for kind, time in total.items()})
    assert all(total[kind] < total["bfloat16"] for kind in KINDS), total


@torch.no_grad()
def test_fp8_products_of_a_full_canvas_are_faster_than_in_bfloat16():
    if fp8_product.hardware_scales(torch.device("cuda", 0)) is None:
        print("this GPU has no fp8 instructions")
        return
    total = {"bfloat16": 0.0, "fp8": 0.0}
    for name, (width, depth) in LAYER.items():
        x = torch.randn(1, 1152, depth, device="cuda", dtype=torch.bfloat16)
        weight, linear = (
            torch.randn(width, depth, device="cuda").bfloat16(),
            quantized("fp8", width, depth),
        )
        times = {
            "bfloat16": milliseconds(lambda _, x=x, w=weight: F.linear(x, w), 8),
            "fp8": milliseconds(lambda _, x=x, w=linear: w(x), 8),
        }
        for kind, time in times.items():
            total[kind] += time
        print(name, {kind: f"{1000 * time:.0f} us" for kind, time in times.items()})
    print(f"{total['bfloat16'] / total['fp8']:.2f} x")
    assert total["fp8"] < total["bfloat16"]


@torch.no_grad()
def test_8b_model_loads_and_runs_on_a_small_card():
    """int8 on 12 GB and int4 on 8 GB, loading included; bfloat16 is refused with advice."""
    total = torch.cuda.get_device_properties(0).total_memory
    with tempfile.TemporaryDirectory() as folder:
        write_sparse_checkpoint(SHAPE, Path(folder))
        for kind, card, most in (("int8", 12e9, 9.5e9), ("fp8", 12e9, 9.5e9), ("int4", 8e9, 6e9)):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(min(card / total, 1.0))
            torch.cuda.reset_peak_memory_stats()
            try:
                try:
                    load_model(folder, device="cuda", dtype="bfloat16")
                    said = ""
                except CheckpointError as error:
                    said = str(error)
                assert f"use quantize={'int4' if kind == 'int4' else 'int8'!r}" in said, said
                model = load_model(folder, device="cuda", dtype="bfloat16", quantize=kind)
                loaded = torch.cuda.max_memory_allocated()
                tokens = torch.zeros(1, 1152, dtype=torch.long, device="cuda")
                places = torch.arange(128, 144, device="cuda")[None]
                model.head(model.hidden(tokens, None, places))
                peak = torch.cuda.max_memory_allocated()
                print(f"{kind}: {loaded / 1e9:.2f} GB loaded, {peak / 1e9:.2f} GB with a pass")
                assert peak < most, (kind, peak)
                del model
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)


if __name__ == "__main__":
    import script

    sys.exit(script.run(globals()))
