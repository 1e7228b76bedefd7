"""Profiler: write a trace of a few steps for Perfetto, and a table of its kernels."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from wavefront.bench.timing import Piece, synchronize
from wavefront.core.errors import OptionError

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # kinds of events in a trace
MAX_NAME = 150  # characters of a kernel's name that are shown


def write_profile(device: torch.device, name: str, piece: Piece, *, folder: Path) -> Path:
    """Profile one piece after a warm-up. Write FOLDER/NAME.json, and on CUDA NAME.txt."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"Profiles cannot be written to {str(folder)!r}: {reason}.") from None
    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    piece()
    getattr(piece, "ready", int)()
    synchronize(device)
    with profile(activities=kinds) as found:
        piece()
        synchronize(device)
    file = folder / f"{name}.json"
    found.export_chrome_trace(str(file))
    if device.type == "cuda":
        events = json.loads(file.read_text())["traceEvents"]
        file.with_suffix(".txt").write_text(kernel_table(events))
    return file


def kernel_table(events: Iterable[dict[str, Any]]) -> str:
    """Return the time of each kernel, the longest first, and how long the device was busy."""
    took: dict[str, list[float]] = defaultdict(list)
    ends: list[float] = []
    for one in events:
        if one.get("cat") in DEVICE:
            took[one["name"][:MAX_NAME]].append(one["dur"])
            ends += [one["ts"], one["ts"] + one["dur"]]
    if not ends:
        return "No kernel ran on the device.\n"
    busy, total = sum(map(sum, took.values())), max(ends) - min(ends)
    count = sum(map(len, took.values()))
    lines = [f"{count} kernels, {busy / 1e3:.2f} ms busy of {total / 1e3:.2f} ms"]
    for name, times in sorted(took.items(), key=lambda pair: -sum(pair[1])):
        each = sum(times) / len(times)
        lines.append(f"{sum(times):10.1f} us {len(times):6} x {each:8.2f}  {name}")
    return "\n".join(lines) + "\n"
