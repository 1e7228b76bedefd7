"""Read untrusted files, with a limit on their size and a one-sentence message for every error.

A sparse file takes no space on disk and can still be terabytes long. So every reader states how
many bytes its kind of file may have, and a longer file is rejected before it is read.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from wavefront.core.errors import WavefrontError

MIB = 1 << 20
LINE_LIMIT = 64 * MIB  # bytes of one JSON line
Error = type[WavefrontError]


def open_regular(file: Path, *, error: Error) -> BinaryIO:
    """Open a regular file for reading; a pipe or a device would block or never end.

    Raises:
        WavefrontError: The file cannot be opened, or it is not a regular file. The type is `error`.
    """
    try:
        # Without this flag, opening a named pipe waits for a writer.
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as problem:
        raise error(f"{file} cannot be read: {reason(problem)}.") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"
        raise error(f"{file} cannot be read: it {kind}.")
    return os.fdopen(handle, "rb")


def read_bytes(file: Path, *, limit: int, error: Error) -> bytes:
    """Return the content of a file.

    Args:
        file: The file.
        limit: The number of bytes it may have.
        error: The type of error to raise.

    Raises:
        WavefrontError: The file cannot be read, or it is larger than `limit`. The type is `error`.
    """
    with open_regular(file, error=error) as handle:
        try:
            if os.fstat(handle.fileno()).st_size <= limit:
                data = handle.read(limit + 1)  # it may grow meanwhile
                if len(data) <= limit:
                    return data
        except OSError as problem:
            raise error(f"{file} cannot be read: {reason(problem)}.") from None
    raise error(f"{file} is larger than {_size(limit)}, the limit for a file of its kind.")


def read_unpacked(file: Path, *, limit: int, error: Error) -> bytes:
    """Return the content of a file, which is unpacked if its name ends with `.gz`.

    `limit` is the number of bytes that the unpacked file may have. A packed file of a few
    kilobytes can hold gigabytes. The errors are those of `read_bytes`.
    """
    if file.suffix != ".gz":
        return read_bytes(file, limit=limit, error=error)
    with open_regular(file, error=error) as handle, gzip.GzipFile(fileobj=handle) as packed:
        try:
            data = packed.read(limit + 1)
        except (OSError, EOFError, zlib.error) as problem:
            raise error(f"{file} cannot be read: {reason(problem)}.") from None
    if len(data) > limit:
        raise error(f"{file} is larger than {_size(limit)} when it is unpacked.")
    return data


def read_text(file: Path, *, limit: int, error: Error) -> str:
    """Return the content of a UTF-8 file. See `read_bytes`."""
    try:
        return read_bytes(file, limit=limit, error=error).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{file} cannot be read: byte {problem.start} is not UTF-8.") from None


def read_json(
    file: Path,
    *,
    limit: int,
    error: Error,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value in a JSON file. See `read_bytes`.

    Args:
        file: The file.
        limit: The number of bytes it may have.
        error: The type of error to raise.
        parse_constant: What to do with NaN and the infinities, as in `json.loads`.

    Raises:
        WavefrontError: The file cannot be read, is too large, or is not JSON. The type is `error`.
    """
    text = read_text(file, limit=limit, error=error)
    return parse_json(text, str(file), error=error, parse_constant=parse_constant)


def read_lines(file: Path, *, error: Error, limit: int = LINE_LIMIT) -> Iterator[bytes]:
    """Yield the lines of a file, each with its line break; the last one may lack it.

    Args:
        file: The file.
        error: The type of error to raise.
        limit: The number of bytes that each line may have.

    Raises:
        WavefrontError: The file cannot be read, or a line is too long. The type is `error`.
    """
    with open_regular(file, error=error) as handle:
        for number in count(1):
            try:
                line = handle.readline(limit + 1)
            except OSError as problem:
                raise error(f"{file} cannot be read: {reason(problem)}.") from None
            if len(line) > limit:
                raise error(f"Line {number} of {file} is longer than {_size(limit)}.")
            if not line:
                return
            yield line


def parse_json(
    text: str | bytes,
    name: str,
    *,
    error: Error,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of a JSON text; `name` says in the error where the text comes from."""
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise error(f"{name} is not valid JSON (it is nested too deeply).") from None
    except ValueError as problem:
        raise error(f"{name} is not valid JSON ({problem}).") from None


def check_unicode(value: Any, name: str, *, error: Error) -> None:
    """Raise if a text in a JSON value has a lone surrogate, which no encoding can write.

    Args:
        value: The value. JSON can spell a surrogate as `\\ud800`.
        name: Where the value comes from, as the subject of the error.
        error: The type of error to raise.

    Raises:
        WavefrontError: A text or a key is not valid Unicode. The type is `error`.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise error(f"{name} has a lone surrogate; remove it.") from None
    except RecursionError:
        raise error(f"{name} is nested too deeply.") from None


def reason(problem: Exception) -> str:
    """Return the system's message in lower case, for use inside a sentence."""
    text = (isinstance(problem, OSError) and problem.strerror) or str(problem)
    return (text or type(problem).__name__).rstrip(".").lower()


def _size(limit: int) -> str:
    return f"{limit // MIB} MiB" if limit >= MIB else f"{limit // 1024} KiB"
