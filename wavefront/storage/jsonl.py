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
from wavefront.storage.read_file import read_lines, reason
from wavefront.storage.write_file import append_line, write_text

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
        try:
            self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if os.fstat(self._handle).st_size != size:
                os.ftruncate(self._handle, size)
        except OSError as error:
            raise RunError(f"{file} cannot be written: {reason(error)}.") from None

    def append(self, *records: Mapping[str, Any]) -> None:
        """Append each record as a line, all in one write; they are on disk when this returns.

        Raises:
            RunError: The lines cannot be written, such as on a full disk. The file is unchanged.
        """
        lines = "".join(f"{dump(record)}\n" for record in records)
        append_line(self._handle, self.file, lines.encode(), error=RunError)

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
    found: list[dict[str, Any]] = []
    size = 0
    if not file.exists():
        return found, size
    for number, line in enumerate(read_lines(file, error=RunError), 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise RunError(
                f"Line {number} of {file} is damaged: remove it, and the run will produce it again."
            )
        found.append(record)
        size += len(line)
    return found, size


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
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_text(file, text, error=RunError)


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
