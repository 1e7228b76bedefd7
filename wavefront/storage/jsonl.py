"""Lines: append-only JSONL that survives a crash, and JSON files that are whole or not there.

A line counts once it ends with a line break. Every append is one write and one fsync, so a crash
can tear only the last line, and whoever opens the file next takes that line off.
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
    """One spelling of a value: ASCII on one line, the names in order."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


class Lines:
    """A file of JSON objects, opened to be continued."""

    def __init__(self, file: Path) -> None:
        """Read what is there, and cut off what a crash left of a last line."""
        self.file = file
        self.found, size = _parse(file)
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if os.fstat(self._handle).st_size != size:
            os.ftruncate(self._handle, size)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write each as a line that is on the disk when this returns."""
        for record in records:
            line = f"{dump(record)}\n".encode()
            while line:  # a full disk or a signal may take a part only
                line = line[os.write(self._handle, line) :]
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; of one that is not there, none."""
    return _parse(file)[0]


def _parse(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects of all whole lines, and how many bytes these take."""
    try:
        data = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise RunError(f"{file} cannot be read: {reason(error)}.") from None
    whole = data[: data.rfind(b"\n") + 1]
    found = []
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise RunError(
                f"Line {number} of {file} is damaged: take it out, and the run will make it anew."
            )
        found.append(record)
    return found, len(whole)


def by_key(records: list[dict[str, Any]], file: Path) -> dict[str, dict[str, Any]]:
    """Records by their `key`; a key that is missing or there twice is refused."""
    keyed: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(records, 1):
        key = record.get("key")
        if not isinstance(key, str) or key in keyed:
            fault = "has no key" if not isinstance(key, str) else "repeats an earlier one"
            raise RunError(f"Line {number} of {file} {fault}: take it out.")
        keyed[key] = record
    return keyed


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file in one piece: beside it first, then by renaming."""
    write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write a text file in one piece."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
        _settle(file.parent)
    except OSError as error:
        raise RunError(f"{file} cannot be written: {reason(error)}.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Bring the folder's own entries to the disk, where the system lets us."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def reason(error: OSError) -> str:
    """What the system said, in the middle of a sentence."""
    return (error.strerror or str(error)).rstrip(".").lower()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder for ourselves; the system lets go of it however we end."""
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
    try:
        import fcntl
    except ImportError:  # only where there is no such lock
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"Another process is writing to {folder}: wait for it, or choose another --out."
        ) from None
    except OSError:  # a file system without locks
        return
