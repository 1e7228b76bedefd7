"""Fingerprints of JSON values, files, tensors and Python sources.

A fingerprint is 32 hexadecimal digits. Evaluation, the lm-eval adapter and the server build theirs
from these functions.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wavefront.core.errors import RunError
from wavefront.storage.jsonl import dump
from wavefront.storage.write_file import write_text

_CHUNK = 1 << 22  # words of a tensor that are summed at once
_PRIME = 65_521
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LARGE_FILE = 1 << 24  # bytes; the digest of a larger file is remembered
_HEADER_BYTES, _SAMPLE_BYTES, _SAMPLES = 1 << 16, 1 << 12, 64


def of_value(value: Any) -> str:
    """Return the fingerprint of a JSON value."""
    return sha256(dump(value).encode()).hexdigest()[:32]


def of_files(files: Iterable[Path]) -> str:
    """Return the fingerprint of files: their names and their contents."""
    paths = sorted(files)
    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(_file_sha256, paths))
    return of_value([[path.name, found] for path, found in zip(paths, digests, strict=True)])


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the fingerprint of named tensors: names, shapes, dtypes and every bit.

    The sums are computed on the tensors' own device, so the fingerprint of a large model takes
    about as long as one pass over its memory.
    """
    return of_value(
        [
            [name, list(tensor.shape), str(tensor.dtype), *_bit_sums(tensor)]
            for name, tensor in sorted(tensors.items())
        ]
    )


def of_sources(root: Path, patterns: Iterable[str]) -> str:
    """Return the fingerprint of the statements of Python files below `root`.

    Comments, docstrings and layout do not count. `patterns` are globs relative to `root`.
    """
    files = sorted({file for pattern in patterns for file in root.glob(pattern)})
    names = [file.relative_to(root).as_posix() for file in files]
    digests = [_statements(file.read_text(encoding="utf-8")) for file in files]
    return of_value([[name, digest] for name, digest in zip(names, digests, strict=True)])


@lru_cache(maxsize=1024)  # every record of a run needs the fingerprint of its grader
def _statements(source: str) -> str:
    """Return the digest of the source of a module without comments and docstrings.

    It does not depend on the version of Python. `ast.unparse` would: it chooses quotes.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not getattr(node, "type_params", True):  # new in Python 3.12, and empty here
            del node.type_params  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 may add an empty text
            node.values = [part for part in node.values if not _is_empty_text(part)]
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    every_field = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return sha256(ast.dump(tree, **every_field).encode()).hexdigest()


def _is_empty_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _bit_sums(tensor: Tensor) -> list[int]:
    """Return two sums over the bits: of the words, and of the words weighted by position."""
    flat = tensor.detach().reshape(-1)
    words = flat.view(_WORDS[flat.element_size()])
    plain = weighted = 0
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK].long()
        weight = torch.arange(start, start + len(chunk), device=chunk.device) % _PRIME + 1
        plain += int(chunk.sum())
        weighted += int((chunk * weight).sum())
    return [plain, weighted]


def _file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file; a large file is read again only after it changed."""
    path = file.resolve()
    if path.stat().st_size < _LARGE_FILE:
        return sha256(path.read_bytes()).hexdigest()
    key, stamp = str(path), _stamp(path)
    entry = _cache_directory() / f"{sha256(key.encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stored = json.loads(entry.read_text())
        if stored.get("file") == key and stored.get("stamp") == stamp:
            return str(stored["sha256"])
    with path.open("rb") as handle:
        found = file_digest(handle, "sha256").hexdigest()
    if stamp != _stamp(path):
        return found  # the file changed meanwhile, so the digest is not remembered
    with contextlib.suppress(OSError, RunError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_text(entry, dump({"file": key, "stamp": stamp, "sha256": found}), error=RunError)
    return found


def _stamp(path: Path) -> list[Any]:
    """Return values that differ if a file changed: size, times, inode and a sample of its content.

    `os.utime` can set the time of the last write back, but not the time of the last change. The
    sample helps where the file system or the clock gives a wrong time.
    """
    state = path.stat()
    times = [state.st_mtime_ns, state.st_ctime_ns]
    return [state.st_size, *times, state.st_ino, content_sample(path)]


def content_sample(path: Path) -> str:
    """Return the digest of a file's first 64 KiB and of 64 chunks of 4 KiB spread over the rest.

    It takes milliseconds, however large the file is. It does not notice a change that lies between
    two chunks.
    """
    found = sha256()
    with path.open("rb", buffering=0) as handle:
        size = os.fstat(handle.fileno()).st_size
        found.update(handle.read(_HEADER_BYTES))
        last = max(0, size - _SAMPLE_BYTES)
        for number in range(1, _SAMPLES + 1):
            handle.seek(last * number // _SAMPLES)
            found.update(handle.read(_SAMPLE_BYTES))
    return found.hexdigest()[:32]


def _cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wavefront" / "sums"
