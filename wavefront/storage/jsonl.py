"""Append-only JSONL files that survive a crash, and JSON files written atomically.

A line counts once it ends with a line break. Every append is one write and one fsync, so a crash
can damage only the last line. The next process that opens the file removes that line.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wavefront.core.errors import RunError

LOCK = "lock"


def dump(value: Any) -> str:
    """Return a value as one line of ASCII JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


class JsonLines:
    """A file of JSON objects, opened for appending."""

    def __init__(self, file: Path) -> None:
        """Read the complete lines, and remove an incomplete last line."""
        self.file = file
        self.found, size = _parse(file)
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if os.fstat(self._handle).st_size != size:
            os.ftruncate(self._handle, size)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Append each record as a line; it is on disk when this returns."""
        for record in records:
            line = f"{dump(record)}\n".encode()
            while line:  # a full disk or a signal may cause a partial write
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(file: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file; none if it does not exist."""
    return _parse(file)[0]


def _parse(file: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the objects of all complete lines, and how many bytes the lines take."""
    try:
        data = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise RunError(f"{file} cannot be read: {reason(error)}.") from None
    complete = data[: data.rfind(b"\n") + 1]
    found = []
    for number, line in enumerate(complete.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise RunError(
                f"Line {number} of {file} is damaged: remove it, and the run will produce it again."
            )
        found.append(record)
    return found, len(complete)


def by_key(records: list[dict[str, Any]], file: Path) -> dict[str, dict[str, Any]]:
    """Return records by their `key`. Raise if a key is missing or occurs twice."""
    keyed: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(records, 1):
        key = record.get("key")
        if not isinstance(key, str) or key in keyed:
            fault = "has no key" if not isinstance(key, str) else "repeats an earlier one"
            raise RunError(f"Line {number} of {file} {fault}: remove it.")
        keyed[key] = record
    return keyed


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file atomically: to a temporary file first, then by renaming."""
    write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write a text file atomically."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
        _sync_directory(file.parent)
    except OSError as error:
        raise RunError(f"{file} cannot be written: {reason(error)}.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _sync_directory(folder: Path) -> None:
    """Flush a folder's directory entries to disk, if the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def reason(error: OSError) -> str:
    """Return the system's message in lower case, for use inside a sentence."""
    return (error.strerror or str(error)).rstrip(".").lower()


@contextlib.contextmanager
def lock_directory(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunError(f"{folder} cannot be written to: {reason(error)}.") from None
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    """Take the lock. Raise `RunError` if another process has it."""
    try:
        import fcntl
    except ImportError:  # a platform without this lock
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"Another process is writing to {folder}: wait for it, or choose another --out."
        ) from None
    except OSError:  # a file system without locks
        return
