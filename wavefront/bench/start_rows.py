"""Start rows: the time to the first token with compilation, in a first and a second process.

Both processes share a new directory for compiled code, so the first compiles everything and the
second finds it on the disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from wavefront.bench.model_shapes import SHAPES, shape_lm
from wavefront.bench.results import Row, Workload, make_row
from wavefront.bench.step_rows import Stage
from wavefront.bench.timing import summarise
from wavefront.core.errors import WavefrontError
from wavefront.kernels.compile import CACHE_VARIABLE, compile_model
from wavefront.lm import load

STARTS = ("first", "second")
FEW_STEPS = 4  # after these, the usual step runs as a CUDA graph
TIME_LIMIT = 540  # seconds of a process


def start_rows(stage: Stage) -> list[Row]:
    """Start two processes, one after the other, and measure the time to the first token."""
    settings, rows = stage.settings, []
    options = {
        "name": settings.name,
        "device": str(stage.model.device),
        "dtype": str(stage.dtype).removeprefix("torch."),
        "prompt_tokens": settings.prompt_tokens,
        "max_new_tokens": settings.max_new_tokens,
    }
    with tempfile.TemporaryDirectory() as folder:
        for start in STARTS:
            settings.tick(f"start-{start}")
            found = _run_process(options, Path(folder))
            note = ", ".join(f"{name} after {seconds:.1f} s" for name, seconds in found.items())
            workload = Workload(kind="start", work="start", variant=start, compiled=True)
            text = f"{start} start with compilation, until the first token"
            seconds = found["first token"]
            rows.append(make_row(workload, text, summarise([seconds]), note=note))
    return rows


def _run_process(options: dict[str, Any], folder: Path) -> dict[str, float]:
    """Run this module in a new process, and return its times since it was started."""
    places = {CACHE_VARIABLE: str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    call = "from wavefront.bench.start_rows import main; main()"
    command = [sys.executable, "-c", call, str(time.time())]
    done = subprocess.run(
        [*command, json.dumps(options)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | places,
        timeout=TIME_LIMIT,
        check=False,
    )
    if done.returncode:
        raise WavefrontError(f"The process of the row start ended with code {done.returncode}.")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Load and compile a model, decode a few tokens, and print the times as JSON."""
    began, options = float(sys.argv[1]), json.loads(sys.argv[2])
    found = {"imports": time.time() - began}
    chosen = {"device": options["device"], "dtype": options["dtype"]}
    if options["name"] in SHAPES:
        lm = shape_lm(options["name"], **chosen)
        compile_model(lm.model)
    else:
        lm = load(options["name"], **chosen, compile=True)
    found["model"] = time.time() - began
    prompt = "x" * options["prompt_tokens"]
    stream = lm.stream(prompt, raw=True, max_new_tokens=options["max_new_tokens"])
    next(stream).canvas.tokens.tolist()  # waits for the device
    found["first token"] = time.time() - began
    for _ in range(FEW_STEPS):
        step = next(stream, None)
        if step is not None:
            step.canvas.tokens.tolist()
    found[f"token {FEW_STEPS + 1}"] = time.time() - began
    print(json.dumps(found), flush=True)
