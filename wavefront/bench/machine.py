"""Machine: a description of it, and its measured limits."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront.bench.timing import Now, time_in_turns
from wavefront.kernels import cpu_product, fp8_product
from wavefront.storage.provenance import commit


class DeviceLimits(NamedTuple):
    """The measured limits of a device: of a large matrix product, and of a large sum."""

    flops: float  # operations per second of a large matrix product in the bench's dtype
    bandwidth: float  # bytes per second read from memory


def measure_limits(
    device: torch.device,
    dtype: torch.dtype,
    *,
    repeats: int = 15,
    now: Now = time.perf_counter,
) -> DeviceLimits:
    """Measure the limits; the best of the repeats counts."""
    cuda = device.type == "cuda"
    side, count = (8192, 1 << 30) if cuda else (1024, 1 << 26)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    large = torch.ones(count, device=device, dtype=torch.float32)

    def times(call: Callable[[], Any], count: int) -> Callable[[], int]:
        def piece() -> int:
            for _ in range(count):
                call()
            return count

        return piece

    with torch.no_grad():
        found = time_in_turns(
            device,
            {
                "product": times(
                    (lambda: left @ right) if cuda else (lambda: cpu_product.linear(left, right)),
                    8 if cuda else 1,
                ),
                "sum": times(large.sum, 8 if cuda else 1),
            },
            repeats=repeats,
            now=now,
        )
    return DeviceLimits(2 * side**3 / found["product"].least, 4 * count / found["sum"].least)


def measure_fp8(device: torch.device, *, repeats: int = 15) -> float | None:
    """Return the operations per second of a large product in fp8; None without such hardware."""
    scales = fp8_product.hardware_scales(device)
    if scales is None:
        return None
    side = 8192
    x, weight = (torch.randn(side, side, device=device) for _ in range(2))
    (rows, of_row), (codes, of_weight) = map(fp8_product.quantize_rows, (x, weight))

    def piece() -> int:
        for _ in range(8):
            fp8_product.scaled_product(
                rows, codes, row_scale=of_row, scale=of_weight[:, 0], scales=scales
            )
        return 8

    found = time_in_turns(device, {"fp8": piece}, repeats=repeats)
    return 2 * side**3 / found["fp8"].least


def about(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Describe the machine and the libraries."""
    return {
        "wavefront": wavefront.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        **(_cuda(device) if device.type == "cuda" else {"cpu_count": _cores()}),
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]


def _cuda(device: torch.device) -> dict[str, Any]:
    query = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    number = str(device.index or 0)
    try:
        output = _output(
            "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=" + number
        )
        driver = dict(zip(query.split(","), map(str.strip, output.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        driver = {}
    return {"cuda": torch.version.cuda, **driver}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _output(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True
    ).stdout.strip()
