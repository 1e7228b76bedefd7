"""The bench on a GPU, with every row captured and compiled. It also runs as a script."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

from wavefront import bench
from wavefront.bench import reference_loops
from wavefront.bench.reference_model import Reference
from wavefront.bench.settings import CUDA_ROWS, FULL_ROWS
from wavefront.bench.workloads import Case
from wavefront.models.toy import toy


def test_every_row_runs_on_the_device():
    model = toy(vocab_size=96, max_length=1024, device="cuda")
    only = tuple(name for name in FULL_ROWS if name not in ("text", *CUDA_ROWS))
    settings = bench.Settings(
        model=model,
        name="toy",
        only=only,
        prompt_tokens=16,
        max_new_tokens=128,
        lengths=(64, 256),
        batches=(1, 4),
        repeats=2,
        quick=True,
        compile=True,
    )
    report = bench.run(settings)
    names = {one.name for one in report.rows}
    assert {"exact-compiled", "exact-eager", "exact-default", "batch-8-compiled"} <= names
    assert {"cached-32-compiled", "cached-32-default-cycle"} <= names
    assert all(0 < one.ms < math.inf for one in report.rows)
    (peak,) = (one.peak_bytes for one in report.rows if one.name == "memory-exact")
    assert peak
    for one in report.rows:
        print(f"{one.what:50} {one.ms:.3f} ms")


def test_rows_of_quantised_weights_and_strategies_run_on_the_device():
    """Not compiled: the bench of a real shape compiles them."""
    model = toy(vocab_size=96, max_length=1024, width=256, device="cuda", dtype="bf16")
    sizes: dict[str, Any] = {"prompt_tokens": 64, "max_new_tokens": 128, "repeats": 2}
    settings = bench.Settings(model=model, name="toy", quick=True, only=CUDA_ROWS, **sizes)
    report = bench.run(settings)
    names = {one.name for one in report.rows}
    assert {"quantized-int4-cached", "quantized-fp8", "strategies-200-tide"} <= names
    for one in report.rows:
        print(f"{one.what:50} {one.ms:.3f} ms")


def test_rows_of_block_causal_models_run_on_the_device():
    for family in ("sdar", "llada2"):
        model = toy(family=family, vocab_size=96, max_length=1024, device="cuda", dtype="bf16")
        sizes: dict[str, Any] = {"prompt_tokens": 64, "max_new_tokens": 128, "repeats": 2}
        settings = bench.Settings(model=model, name="toy", quick=True, compile=True, **sizes)
        report = bench.run(settings)
        names = {one.name for one in report.rows}
        assert {"blocks-1", "blocks-1-default", "blocks-1-compiled", "prefix"} <= names
        assert {one.work for one in report.targets} == {"block step"}
        for one in report.rows:
            print(f"{family:8} {one.what:50} {one.ms:.3f} ms")


def test_loops_give_the_same_tokens_as_on_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        model = toy(device=device, dtype="float64")
        canvas = Case(model, 8, 32, batch=2).canvas().tokens
        both = []
        for loop in (reference_loops.llada, reference_loops.dual):
            tokens = canvas.clone()
            for _ in loop(Reference(model), tokens, 8, steps=32, block=8):
                pass
            both.append(tokens.cpu())
        found.append(torch.stack(both))
    assert torch.equal(*found)


if __name__ == "__main__":
    import script

    sys.exit(script.run(globals()))
