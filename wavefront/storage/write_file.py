"""Write files atomically: after a crash or on a full disk, the old content is still whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from wavefront.core.errors import WavefrontError
from wavefront.storage.read_file import reason

Error = type[WavefrontError]


@contextlib.contextmanager
def replacing(file: Path, *, error: Error) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `file` at the end of the block.

    A link keeps pointing to its file, and a device such as /dev/stdout is written directly.

    Args:
        file: The file to write.
        error: The type of error to raise.

    Raises:
        WavefrontError: The file cannot be written. The type is `error`.
    """
    target = Path(os.path.realpath(file))
    is_device = target.exists() and not target.is_file()
    part = target if is_device else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        if not is_device:
            _sync(part, os.O_RDWR)
            part.replace(target)
            with contextlib.suppress(OSError):  # not every system can flush a folder
                _sync(target.parent, os.O_RDONLY)
    except OSError as problem:
        raise error(f"{file} cannot be written: {reason(problem)}.") from None
    finally:
        if not is_device:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def write_text(file: Path, text: str, *, error: Error) -> None:
    """Write a UTF-8 file atomically. See `replacing`."""
    write_bytes(file, text.encode("utf-8"), error=error)


def write_bytes(file: Path, data: bytes, *, error: Error) -> None:
    """Write a file atomically. See `replacing`."""
    with replacing(file, error=error) as part:
        part.write_bytes(data)


def append_line(handle: int, file: Path, line: bytes, *, error: Error) -> None:
    """Append one or more lines to an open file; they are on disk when this returns.

    Args:
        handle: The file, opened for appending.
        file: Its path, for the error.
        line: The lines, each with its line break.
        error: The type of error to raise.

    Raises:
        WavefrontError: The lines cannot be written. The file is unchanged. The type is `error`.
    """
    size = os.fstat(handle).st_size
    try:
        while line:  # a signal may cause a partial write
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    except OSError as problem:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, size)
        raise error(f"{file} cannot be written: {reason(problem)}.") from None


def _sync(path: Path, flags: int) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
