"""Profiles: a trace of a few steps, to be opened in a browser's tracing page or Perfetto, and its
sum: what the device did, by kernel.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from wavefront.bench.timing import Piece, settle
from wavefront.core.errors import OptionError

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # kinds of events in a trace
NAME = 150  # letters of a kernel's name that are shown


def profiled(device: torch.device, name: str, piece: Piece, folder: Path) -> Path:
    """Write FOLDER/NAME.json: one piece, after one that does not count; its sum is NAME.txt."""
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
    settle(device)
    with profile(activities=kinds) as found:
        piece()
        settle(device)
    file = folder / f"{name}.json"
    found.export_chrome_trace(str(file))
    if device.type == "cuda":
        events = json.loads(file.read_text())["traceEvents"]
        file.with_suffix(".txt").write_text(kernels(events))
    return file


def kernels(events: Iterable[dict[str, Any]]) -> str:
    """Time by kernel, the longest first, and how much of the whole the device was at work."""
    took: dict[str, list[float]] = defaultdict(list)
    ends: list[float] = []
    for one in events:
        if one.get("cat") in DEVICE:
            took[one["name"][:NAME]].append(one["dur"])
            ends += [one["ts"], one["ts"] + one["dur"]]
    if not ends:
        return "Nothing ran on the device.\n"
    busy, whole = sum(map(sum, took.values())), max(ends) - min(ends)
    count = sum(map(len, took.values()))
    lines = [f"{count} kernels, {busy / 1e3:.2f} ms at work of {whole / 1e3:.2f} ms"]
    for name, times in sorted(took.items(), key=lambda pair: -sum(pair[1])):
        each = sum(times) / len(times)
        lines.append(f"{sum(times):10.1f} us {len(times):6} x {each:8.2f}  {name}")
    return "\n".join(lines) + "\n"
