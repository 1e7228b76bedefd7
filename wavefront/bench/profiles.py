"""Profiles: a trace of a few steps, to be opened in a browser's tracing page or Perfetto."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from wavefront.bench.clock import Piece, settle
from wavefront.errors import OptionError


def profiled(device: torch.device, name: str, piece: Piece, folder: Path) -> Path:
    """Write FOLDER/NAME.json: one piece, after one that does not count."""
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
    return file
