"""Fingerprints of files: what a changed file changes, whatever its size and times say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wavefront.storage import fingerprint
from wavefront.storage.fingerprint import content_sample, of_files

SIZE = 3 * (1 << 23)  # bytes; larger than files that are read each time


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(SIZE))
    return file


def overwrite(file: Path, at: int, data: bytes) -> None:
    """Change bytes in place, and set the times of the file back."""
    before = file.stat()
    with file.open("r+b") as out:
        out.seek(at)
        out.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    kept = ("st_size", "st_mtime_ns", "st_ino")
    assert all(getattr(before, name) == getattr(after, name) for name in kept)


@pytest.mark.parametrize("at", [0, 1000, SIZE // 2 + 12345, SIZE - 1])
def test_large_file_changed_in_place_with_its_times_kept_is_noticed(weights: Path, at: int) -> None:
    first = of_files([weights])
    assert of_files([weights]) == first
    overwrite(weights, at, b"\1")
    assert of_files([weights]) != first
    overwrite(weights, at, b"\0")
    assert of_files([weights]) == first


def test_sample_notices_a_change_where_no_time_tells_it(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems do not store the time of the last change."""
    read_state = Path.stat

    def without_times(path: Path, **options: bool) -> Any:
        state = read_state(path, **options)
        kept = {name: getattr(state, name) for name in dir(state) if name.startswith("st_")}
        return SimpleNamespace(**kept | {"st_mtime_ns": 1, "st_ctime_ns": 1})

    monkeypatch.setattr(Path, "stat", without_times)
    first = of_files([weights])
    overwrite(weights, SIZE - 1, b"\1")
    assert of_files([weights]) != first


def test_content_sample_covers_the_header_the_end_and_large_regions(weights: Path) -> None:
    """This is all there is where times are wrong; a small change elsewhere is not noticed."""
    first = content_sample(weights)
    large = b"\1" * (SIZE // 64)
    for at, data in ((0, b"\1"), (60_000, b"\1"), (SIZE - 1, b"\1"), (SIZE // 3, large)):
        before = weights.read_bytes()[at : at + len(data)]
        overwrite(weights, at, data)
        assert content_sample(weights) != first
        overwrite(weights, at, before)
        assert content_sample(weights) == first


def test_content_sample_of_a_huge_file_is_quick(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    file.touch()
    os.truncate(file, 1 << 36)  # 64 GiB that take no space
    start = time.perf_counter()
    content_sample(file)
    assert time.perf_counter() - start < 1


def test_file_that_changes_while_it_is_read_is_not_remembered(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = fingerprint.file_digest

    def change_after(handle, name):
        found = digest(handle, name)
        overwrite(weights, 5, b"\1")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "file_digest", change_after)
        first = of_files([weights])
    assert of_files([weights]) != first
