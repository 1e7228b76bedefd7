"""The bench on a GPU, with every row captured and compiled. It also runs as a script."""

from __future__ import annotations

import math
import sys

import torch

from wavefront import bench
from wavefront.bench import reference_loops
from wavefront.bench.reference_model import Reference
from wavefront.bench.workloads import Case
from wavefront.models.toy import toy


def test_every_row_runs_on_the_device():
    model = toy(vocab_size=96, max_length=1024, device="cuda")
    only = tuple(name for name in bench.ROWS if name != "text")
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
    assert {"exact-compiled", "exact-eager", "cached-32-compiled", "batch-8-compiled"} <= names
    assert all(0 < one.ms < math.inf for one in report.rows)
    (peak,) = (one.peak_bytes for one in report.rows if one.name == "memory-exact")
    assert peak
    for one in report.rows:
        print(f"{one.what:50} {one.ms:.3f} ms")


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
