"""Traces on disk: one `.npz` file, version 1, readable with numpy alone (docs/traces.md).

Steps commit few places, so a file holds events (step, row, place, token) and boards packed to bits,
not boards of numbers: a thousand steps of one row are some hundred kilobytes. A full trace adds its
statistics as arrays. Files come from anywhere, so everything read is checked before it is used.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import wavefront
from wavefront.canvas import Canvas
from wavefront.errors import TraceError
from wavefront.rows import Others
from wavefront.trace import Trace

FORMAT, VERSION = "wavefront-trace", 1
LARGEST = 1 << 31  # places over all steps: beyond it a file is damaged or means harm
BITS = ("scope", "front")
FULL = ("logp", "score", "entropy")


def save(trace: Trace, path: str | Path) -> Path:
    """Write a trace; the suffix `.npz` is added when there is none."""
    file = Path(path)
    if not file.suffix:
        file = file.with_suffix(".npz")
    steps, (rows, length) = len(trace), trace.first.tokens.shape
    header = {
        "format": FORMAT,
        "version": VERSION,
        "steps": steps,
        "rows": rows,
        "length": length,
        "mask_id": trace.mask_id,
        "full": trace.full,
        "about": {"wavefront": wavefront.__version__, "torch": torch.__version__, **trace.about},
    }
    arrays = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "tokens": trace.first.tokens.numpy().astype(np.int32),
        "masked": _pack(trace.first.masked),
        "known": _pack(trace.first.known),
        "slot": trace.first.slot.numpy().astype(np.int32),
        "step": trace.step.numpy().astype(np.int32),
        "launched": trace.launched.numpy().astype(np.int32),
        "commits": _events(trace.commit, trace.tokens),
        "commit_logp": trace.logp[trace.commit].numpy(),
        "remasks": trace.remask.nonzero().numpy().astype(np.int32),
        **{name: _pack(getattr(trace, name)) for name in BITS},
    }
    if trace.full:
        arrays |= {
            f"full_{n}": part.numpy() for n in FULL if (part := getattr(trace, n)) is not None
        }
    if trace.others is not None:
        arrays["others"] = trace.others.tokens.numpy().astype(np.int32)
        arrays["others_logp"] = trace.others.logp.numpy().astype(np.float16)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        np.savez_compressed(out, **arrays)  # pyright: ignore[reportArgumentType]
    return file


def load(path: str | Path) -> Trace:
    """Read a trace, or say in a sentence why it cannot be read."""
    file = Path(path)
    try:
        with np.load(file, allow_pickle=False) as found:
            header = _header(found, file)
            return _build(header, found)
    except FileNotFoundError:
        raise TraceError(f"{file} is not there.") from None
    except TraceError:
        raise
    except (OSError, ValueError, KeyError, IndexError, RuntimeError, EOFError) as error:
        raise TraceError(f"{file} is not a whole trace file: {_reason(error)}.") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError) as error:
        raise TraceError(f"{file} is damaged or cut short: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _header(found: Any, file: Path) -> dict[str, Any]:
    if not hasattr(found, "files") or "header" not in found.files:
        raise TraceError(f"{file} is not a trace: make one with `wavefront trace record`.")
    header = json.loads(bytes(found["header"].astype(np.uint8)))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TraceError(f"{file} is not a trace: make one with `wavefront trace record`.")
    if header.get("version") != VERSION:
        raise TraceError(
            f"{file} is a trace of version {header.get('version')}, and this is wavefront "
            f"{wavefront.__version__}, which reads version {VERSION}."
        )
    sizes: list[Any] = [header.get(name) for name in ("steps", "rows", "length")]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise TraceError(f"{file} has no sizes in its header: it is damaged.")
    steps, rows, length = sizes
    if max(steps, 1) * max(rows, 1) * max(length, 1) > LARGEST:
        raise TraceError(f"{file} claims {steps} steps of {rows} x {length} places: too many.")
    return header


def _build(header: dict[str, Any], found: Any) -> Trace:
    board = (header["rows"], header["length"])
    shape = (header["steps"], *board)
    first = Canvas(
        tokens=_array(found, "tokens", board, torch.long),
        masked=_unpack(found, "masked", board),
        known=_unpack(found, "known", board),
        slot=_array(found, "slot", board, torch.long),
    )
    events = _events_in(found["commits"], shape, 4)
    where = tuple(events[:, :3].T)
    commit, remask = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    commit[where] = True
    remask[tuple(_events_in(found["remasks"], shape, 3).T)] = True
    tokens = torch.zeros(shape, dtype=torch.int32)
    tokens[where] = events[:, 3].int()
    logp = torch.zeros(shape)
    logp[where] = _array(found, "commit_logp", (len(events),), torch.float32)
    full = bool(header["full"])
    if full:
        logp = _array(found, "full_logp", shape, torch.float32)
    others = None
    if "others" in found.files:
        wide = (*shape, found["others"].shape[-1])
        others = Others(
            _array(found, "others", wide, torch.int32),
            _array(found, "others_logp", wide, torch.float32),
        )
    return Trace(
        first,
        step=_array(found, "step", shape[:2], torch.long),
        commit=commit,
        remask=remask,
        scope=_unpack(found, "scope", shape),
        front=_unpack(found, "front", shape),
        tokens=tokens,
        logp=logp,
        launched=_array(found, "launched", shape[:1], torch.long),
        mask_id=int(header["mask_id"]),
        score=_array(found, "full_score", shape, torch.float32) if full else None,
        entropy=_array(found, "full_entropy", shape, torch.float32) if full else None,
        others=others,
        about=dict(header["about"]),
    )


def _pack(board: Tensor) -> np.ndarray:
    return np.packbits(board.numpy(), axis=-1)


def _unpack(found: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    packed = found[name]
    if packed.dtype != np.uint8 or packed.shape != (*shape[:-1], -(-shape[-1] // 8)):
        raise ValueError(f"{name} has the shape {packed.shape}")
    return torch.from_numpy(np.unpackbits(packed, axis=-1, count=shape[-1]).astype(bool))


def _array(found: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    array = found[name]
    if array.shape != shape or array.dtype.kind not in "if":
        raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def _events(commit: Tensor, tokens: Tensor) -> np.ndarray:
    """(E, 4) int32: step, row, place, token."""
    return torch.cat([commit.nonzero(), tokens[commit].long()[:, None]], 1).numpy().astype(np.int32)


def _events_in(array: np.ndarray, shape: tuple[int, ...], columns: int) -> Tensor:
    if array.ndim != 2 or array.shape[1] != columns or array.dtype.kind != "i":
        raise ValueError(f"a list of events has the shape {array.shape}")
    events = torch.from_numpy(array.astype(np.int64))
    if len(events) and not (
        (events[:, :3] >= 0).all() and (events[:, :3] < torch.tensor(shape)).all()
    ):
        raise ValueError("an event lies outside the board")
    return events
