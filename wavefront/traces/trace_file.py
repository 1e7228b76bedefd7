"""Save and load traces as `.npz` files, which you can read with only numpy (docs/traces.md).

A step commits few positions, so a file stores events (step, row, position, token) and boards packed
to bits: a thousand steps of one row take a few hundred kilobytes. A full trace adds its statistics
as arrays. Files are not trusted. The reader compares the declared sizes with the content before it
allocates memory, and checks every value before it uses it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_magic
from torch import Tensor

import wavefront
from wavefront.core.canvas import Canvas
from wavefront.core.errors import TraceError
from wavefront.core.spec import add_options
from wavefront.core.state import TopAlternatives
from wavefront.storage.read_file import open_regular
from wavefront.storage.write_file import replacing
from wavefront.traces.trace import Trace

# 2: `pinned`. In files of version 1, `tide` had other defaults.
FORMAT, VERSION = "wavefront-trace", 2
TIDE_DEFAULTS = {"cascade_rounds": "0", "horizon": "0", "selector": "quota()"}  # of version 1
MAX_POSITIONS = 1 << 27  # over all steps: a file that claims more is damaged or malicious
MAX_HEADER_BYTES = 1 << 26
MAX_DEPTH = 200  # of lists and objects inside the header; every fork adds two
MAX_MEMBERS, MAX_DIRECTORY_BYTES = 64, 1 << 16  # of the archive
ZIP_END, ZIP_LOCATOR = 22, 20  # bytes of the records at the end of an archive
HEADER_NUMBERS = ("steps", "rows", "length", "alternatives", "mask_id")
FULL = ("logp", "score", "entropy")
INT, BYTE, REAL, HALF = (np.dtype(name) for name in ("<i4", "u1", "<f4", "<f2"))
MAKE_ONE = "make one with `wavefront trace record`"


def save(trace: Trace, path: str | Path) -> Path:
    """Write a trace atomically and return its path. Add the suffix `.npz` if there is none.

    Raises:
        TraceError: The file cannot be written, or the trace is too large for one file.
    """
    file = output_path(path)
    arrays = {"header": np.frombuffer(json.dumps(_header_of(trace), default=repr).encode(), BYTE)}
    arrays |= _arrays_of(trace)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, error=TraceError) as part, part.open("wb") as out:
        np.savez_compressed(out, **arrays)  # pyright: ignore[reportArgumentType]
    return file


def output_path(path: str | Path) -> Path:
    """Return where `save` will write. Raise TraceError now rather than after a long decode."""
    file = Path(path)
    if not file.suffix and not file.is_dir():
        file = file.with_suffix(".npz")
    there = next((folder for folder in file.parents if folder.exists()), Path())
    if file.is_dir() or not there.is_dir() or not os.access(there, os.W_OK):
        raise TraceError(f"The trace cannot be written to {file}; choose another path.")
    return file


def _header_of(trace: Trace) -> dict[str, Any]:
    steps, (rows, length) = len(trace), trace.first.tokens.shape
    wide = 0 if trace.alternatives is None else trace.alternatives.tokens.shape[-1]
    if steps * rows * length * max(wide, 1) > MAX_POSITIONS:
        raise TraceError(
            f"{steps} steps of {rows} x {length} positions are too many for one file. Save each "
            "row alone, as in trace.row(0)."
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "steps": steps,
        "rows": rows,
        "length": length,
        "mask_id": trace.mask_id,
        "full": trace.full,
        "alternatives": wide,
        "about": {"wavefront": wavefront.__version__, "torch": torch.__version__, **trace.about},
    }


def _arrays_of(trace: Trace) -> dict[str, np.ndarray]:
    first, alternatives = trace.first, trace.alternatives
    bits = {"masked": first.masked, "known": first.known}
    bits |= {"scope": trace.candidates, "front": trace.front}
    arrays = {
        "tokens": _as(first.tokens, INT),
        "slot": _as(first.slot, INT),
        "step": _as(trace.step, INT),
        "launched": _as(trace.launched, INT),
        "commits": _events(trace.commit, trace.tokens),
        "commit_logp": _as(trace.logp[trace.commit], REAL),
        "remasks": _as(trace.remask.nonzero(), INT),
        "by_hand": _as(trace.overrides, INT),
        **{name: np.packbits(board.numpy(), axis=-1) for name, board in bits.items()},
    }
    if trace.full:
        arrays |= {f"full_{name}": _as(getattr(trace, name), REAL) for name in FULL}
    if trace.edit is not None:
        arrays["edits"] = _events(trace.edit, trace.tokens)
        arrays["edit_logp"] = _as(trace.logp[trace.edit], REAL)
    if trace.pinned is not None:
        arrays["pinned"] = np.packbits(trace.pinned.numpy(), axis=-1)
    if alternatives is not None:
        arrays["others"] = _as(alternatives.tokens, INT)
        arrays["others_logp"] = _as(alternatives.logp, HALF)
    return arrays


def _as(values: Tensor, dtype: np.dtype[Any]) -> np.ndarray:
    return np.ascontiguousarray(values.numpy(), dtype)  # torch returns nonzero indices by column


def _events(commit: Tensor, tokens: Tensor) -> np.ndarray:
    """Return events as (E, 4) int32: step, row, position, token."""
    return _as(torch.cat([commit.nonzero(), tokens[commit].long()[:, None]], 1), INT)


def load(path: str | Path) -> Trace:
    """Read a trace.

    Raises:
        TraceError: The file is missing, damaged, too large, or not a trace.
    """
    file = Path(path)
    try:
        if not file.exists():
            raise TraceError(f"{file} does not exist.")
        with open_regular(file, error=TraceError) as handle:
            begins = handle.read(4)
            if begins != b"PK\x03\x04":
                kind = "not a" if begins else "empty: no"
                raise TraceError(f"{file} is {kind} trace; {MAKE_ONE}.")
            _check_directory(handle)
            with zipfile.ZipFile(handle) as archive:
                return _Reader(archive, file).trace()
    except TraceError:
        raise
    except zipfile.BadZipFile:
        raise TraceError(f"{file} is damaged or cut short; {MAKE_ONE}.") from None
    except MemoryError:
        raise TraceError(f"{file} is larger than this machine's memory.") from None
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {_reason(error)}.") from None
    # Other exceptions that the libraries raise for malicious bytes.
    except (ValueError, LookupError, RuntimeError, EOFError, OverflowError, zlib.error) as error:
        raise TraceError(f"{file} is damaged: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return text.strip().splitlines()[0].rstrip(".").lower()


def _check_directory(handle: BinaryIO) -> None:
    """Raise unless the archive ends with the record of a small directory.

    `zipfile` reads as many bytes as the record says. A file that numpy wrote has no comment after
    the record. Only a file with arrays of gigabytes has a second record, for larger numbers.
    """
    size = handle.seek(0, os.SEEK_END)
    handle.seek(max(0, size - ZIP_END - ZIP_LOCATOR))
    data = handle.read(ZIP_END + ZIP_LOCATOR)
    handle.seek(0)
    locator, record = data[:-ZIP_END], data[-ZIP_END:]
    if not record.startswith(b"PK\x05\x06") or locator.startswith(b"PK\x06\x07"):
        raise zipfile.BadZipFile
    members = int.from_bytes(record[10:12], "little")
    if members > MAX_MEMBERS or int.from_bytes(record[12:16], "little") > MAX_DIRECTORY_BYTES:
        raise ValueError(f"it has more than {MAX_MEMBERS} members")


def _check_members(archive: zipfile.ZipFile) -> None:
    """Raise unless every member is stored once, in a form that can be decoded in little memory."""
    names: set[str] = set()
    for member in archive.infolist():
        if member.filename in names:
            raise ValueError(f"{member.filename} is stored twice")
        names.add(member.filename)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} is compressed in an unknown way")


def _depth(value: Any, limit: int) -> int:
    """Return how deeply lists and objects are nested, up to `limit` + 1."""
    level, depth = [value], 0
    while level and depth <= limit:
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        depth += 1
    return depth


def _name_old_defaults(about: dict[str, Any]) -> None:
    """Let the specs in a header of version 1 name what were the defaults of `tide`.

    The header also describes every trace that this one was forked from.
    """
    level: Any = about
    while isinstance(level, dict):
        options = level.get("options")
        if isinstance(options, dict) and isinstance(options.get("strategy"), str):
            options["strategy"] = add_options(options["strategy"], "tide", TIDE_DEFAULTS)
        fork = level.get("fork")
        level = fork.get("of") if isinstance(fork, dict) else None


class _Reader:
    """A reader of an open file. It checks the sizes first, so that no array exceeds them."""

    def __init__(self, archive: zipfile.ZipFile, file: Path) -> None:
        self._archive, self._file = archive, file
        _check_members(archive)
        self._header = self._read_header()
        self._shape: tuple[int, ...] = tuple(self._header[n] for n in ("steps", "rows", "length"))

    def trace(self) -> Trace:
        shape, header = self._shape, self._header
        # Read everything before allocating boards, so that missing data raises first.
        first, candidates, front = (
            self._canvas(),
            *(self._bits(n, shape) for n in ("scope", "front")),
        )
        full = {n: self._read(f"full_{n}", shape, REAL) for n in FULL} if header["full"] else {}
        alternatives, overrides = self._alternatives(), self._events("by_hand", 4)[0]
        (commits, commit), (_, remask) = self._events("commits", 4), self._events("remasks", 3)
        logp = self._read("commit_logp", (len(commits),), REAL)
        tokens, edits = _board(shape, torch.int32, where=commit, value=commits[:, 3].int()), None
        logp = full["logp"] if full else _board(shape, torch.float32, where=commit, value=logp)
        if "edits.npy" in self._archive.namelist():
            events, where = self._events("edits", 4)
            edits = _board(shape, torch.bool, where=where, value=True)
            tokens[where] = events[:, 3].int()
            if not full and "edit_logp.npy" in self._archive.namelist():  # old files lack it
                logp[where] = self._read("edit_logp", (len(events),), REAL)
        step = self._read("step", shape[:2], INT).long()
        launched = self._read("launched", shape[:1], INT).long()
        if bool((step < 0).any()) or bool((launched.diff() < 0).any()):
            raise ValueError("its steps are not in order")
        return Trace(
            first,
            step=step,
            commit=_board(shape, torch.bool, where=commit, value=True),
            remask=_board(shape, torch.bool, where=remask, value=True),
            candidates=candidates,
            front=front,
            tokens=tokens,
            logp=logp,
            launched=launched,
            mask_id=header["mask_id"],
            score=full.get("score"),
            entropy=full.get("entropy"),
            alternatives=alternatives,
            edit=edits,
            overrides=overrides,
            pinned=self._pinned(first),
            about=header["about"],
        )

    def _read_header(self) -> dict[str, Any]:
        file, foreign = self._file, TraceError(f"{self._file} is not a trace; {MAKE_ONE}.")
        if "header.npy" not in self._archive.namelist():
            raise foreign
        try:
            header = json.loads(bytes(self._array("header", BYTE, ndim=1, limit=MAX_HEADER_BYTES)))
        except (ValueError, RecursionError):
            raise foreign from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise foreign
        version = header.get("version")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise TraceError(
                f"{file} is a trace of version {version!r}, but wavefront "
                f"{wavefront.__version__} reads versions 1 to {VERSION}."
            )
        numbers: list[Any] = [header.get(name) for name in HEADER_NUMBERS]
        if not all(type(number) is int and 0 <= number < 1 << 31 for number in numbers):
            raise ValueError("its header has no valid size")
        if type(header.get("full")) is not bool or not isinstance(header.get("about"), dict):
            raise ValueError("its header has a missing field")
        if _depth(header["about"], MAX_DEPTH) > MAX_DEPTH:
            raise ValueError("its header is nested too deeply")
        if version == 1:
            _name_old_defaults(header["about"])
        steps, rows, length, wide, _ = numbers
        if max(steps, 1) * max(rows, 1) * max(length, 1) * max(wide, 1) > MAX_POSITIONS:
            raise TraceError(
                f"{file} claims {steps} steps of {rows} x {length} positions, which is too many."
            )
        return header

    def _canvas(self) -> Canvas:
        shape = self._shape[1:]
        tokens, slot = (self._read(name, shape, INT).long() for name in ("tokens", "slot"))
        canvas = Canvas(tokens, self._bits("masked", shape), self._bits("known", shape), slot)
        filled = canvas.slot >= 0
        expected = torch.where(filled, filled.long().cumsum(-1) - 1, -1)
        if bool((tokens < 0).any() | (canvas.masked & (canvas.known | ~filled)).any()):
            raise ValueError("its first canvas is inconsistent")
        if not torch.equal(expected, slot):
            raise ValueError("its slots are not numbered from the left")
        return canvas

    def _pinned(self, first: Canvas) -> Tensor | None:
        if "pinned.npy" not in self._archive.namelist():
            return None
        pinned = self._bits("pinned", self._shape[1:])
        if bool((pinned & (first.slot < 0)).any()):
            raise ValueError("a pinned position is outside the answer")
        return pinned

    def _alternatives(self) -> TopAlternatives | None:
        wide = self._header["alternatives"]
        if not wide:
            return None
        shape = (*self._shape, wide)
        tokens = self._read("others", shape, INT)
        return TopAlternatives(tokens, self._read("others_logp", shape, HALF).float())

    def _events(self, name: str, columns: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return events (E, columns) long, and their (step, row, position) as an index."""
        array = self._array(name, INT, ndim=2, limit=MAX_POSITIONS)
        events = torch.from_numpy(array.astype(np.int64))
        if events.shape[1] != columns or bool((events < 0).any()):
            raise ValueError(f"{name} is not a list of events")
        if bool((events[:, :3] >= torch.tensor(self._shape)).any()):
            raise ValueError(f"an event of {name} is outside the board")
        return events, tuple(events[:, :3].T)

    def _bits(self, name: str, shape: tuple[int, ...]) -> Tensor:
        packed = self._read(name, (*shape[:-1], -(-shape[-1] // 8)), BYTE)
        return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, count=shape[-1])).bool()

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        array = self._array(name, dtype, ndim=len(shape), limit=math.prod(shape))
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
        return torch.from_numpy(array)

    def _array(self, name: str, dtype: np.dtype[Any], *, ndim: int, limit: int) -> np.ndarray:
        """Read an array of at most `limit` numbers."""
        if f"{name}.npy" not in self._archive.namelist():
            raise ValueError(f"{name} is missing")
        with self._archive.open(f"{name}.npy") as member:
            if read_magic(member) != (1, 0):
                raise ValueError(f"{name} is not an array of a known format")
            shape, fortran, found = read_array_header_1_0(member)
            if found != dtype or fortran or len(shape) != ndim:
                raise ValueError(f"{name} is an array of the wrong type")
            if min(shape, default=0) < 0 or math.prod(shape) > limit:
                raise ValueError(f"{name} has the shape {shape}")
            size = math.prod(shape) * dtype.itemsize
            data = member.read(size)
            if len(data) != size:
                raise ValueError(f"{name} is cut short")
        # Copy, because torch needs writable memory.
        return np.frombuffer(data, dtype).reshape(shape).copy()


def _board(shape: tuple[int, ...], dtype: torch.dtype, *, where: Any, value: Any) -> Tensor:
    board = torch.zeros(shape, dtype=dtype)
    board[where] = value
    return board
