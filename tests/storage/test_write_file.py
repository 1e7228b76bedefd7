"""A full disk ends in one sentence and leaves the previous content whole."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wavefront.analysis.figures import figure
from wavefront.bench import results as bench_results
from wavefront.cli.trace import open_target
from wavefront.core.errors import RunError, WavefrontError
from wavefront.models.loader import save_checkpoint
from wavefront.models.toy import toy
from wavefront.results import table
from wavefront.storage import jsonl, write_file
from wavefront.storage.checkpoint import open_checkpoint
from wavefront.storage.hub import BUILTIN
from wavefront.train.config import DataConfig, TrainConfig
from wavefront.train.log import Log
from wavefront.train.state import save_state

LARGE = "x" * 20_000
CONFIG = TrainConfig(out=Path("run"), data=DataConfig(tokenizer=BUILTIN / "ripple"), steps=1)


@contextlib.contextmanager
def full_disk(size: int = 8192) -> Iterator[None]:
    """Let every write fail beyond so many bytes of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_append_on_a_full_disk_keeps_the_complete_lines(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    with jsonl.JsonLines(file) as lines:
        lines.append({"key": "a"}, {"key": "b"})
        before = file.read_bytes()
        with full_disk(), pytest.raises(RunError, match=r"answers\.jsonl cannot be written: .*\.$"):
            lines.append({"key": "c", "text": LARGE})
        assert file.read_bytes() == before
        lines.append({"key": "d"})
    assert [record["key"] for record in jsonl.read(file)] == ["a", "b", "d"]


def test_append_to_a_full_device_gives_one_sentence() -> None:
    target = jsonl.JsonLines.__new__(jsonl.JsonLines)
    target.file, target._handle = Path("/dev/full"), os.open("/dev/full", os.O_WRONLY)
    with target, pytest.raises(RunError, match="/dev/full cannot be written: no space left"):
        target.append({"key": "a"})


def write_bench(file: Path) -> None:
    report = bench_results.Report(
        about={}, settings={}, limits={}, notes=(LARGE,), rows=(), curves=(), targets=()
    )
    bench_results.save(report, file)


def write_export(file: Path) -> None:
    with open_target(file) as target:
        target.write(LARGE)


def write_figure(file: Path) -> None:
    class Drawing(figure.Figure):
        def bytes(self, *_: Any) -> bytes:  # pyright: ignore
            return LARGE.encode()

    figure.save(Drawing(lambda _: None), file.parent, "file")  # pyright: ignore


def write_training(file: Path) -> None:
    model = toy()
    average = type("Average", (), {"weights": {}})()
    save_state(file, config=CONFIG, step=1, model=model, optimizers=[], average=average)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "text": lambda file: write_file.write_text(file, LARGE, error=RunError),
    "bytes": lambda file: write_file.write_bytes(file, LARGE.encode(), error=RunError),
    "json": lambda file: jsonl.write_json(file, LARGE),
    "run.json": lambda file: table.save(table.Run("t", LARGE), file.parent),
    "bench": write_bench,
    "export": write_export,
    "file.png": write_figure,
    "state": write_training,
    "log.jsonl": lambda file: Log(file, step=1, quiet=True).write({"step": 1, "text": LARGE}),
    "model.safetensors": lambda file: save_checkpoint(toy(), file.parent),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writer_on_a_full_disk_keeps_the_old_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text('{"step": 1}\n')
    with full_disk(), pytest.raises(WavefrontError, match=r"cannot be written: .*\.$"):
        WRITERS[name](file)
    assert file.read_text() == '{"step": 1}\n'
    assert os.listdir(tmp_path) == [name]
    WRITERS[name](file)
    assert file.stat().st_size > 8192


def test_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    write_file.write_text(tmp_path / "link", "new", error=RunError)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"


def test_device_is_written_directly() -> None:
    write_file.write_text(Path(os.devnull), LARGE, error=RunError)
    assert not Path(os.devnull).is_file()
    with pytest.raises(RunError, match="/dev/full cannot be written: no space left on device"):
        write_file.write_text(Path("/dev/full"), LARGE, error=RunError)


def test_interrupted_checkpoint_keeps_the_old_weights(tmp_path: Path) -> None:
    save_checkpoint(toy(), tmp_path)
    with full_disk(), pytest.raises(WavefrontError, match="cannot be written"):
        save_checkpoint(toy(seed=1), tmp_path)
    assert len(open_checkpoint(tmp_path).entries) == len(toy().published_weights())


@pytest.mark.slow
@pytest.mark.parametrize("args", [["list", "strategies"], ["--version"], ["--help"]])
def test_full_standard_output_gives_one_sentence(args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "wavefront", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert result.returncode == 1
    assert result.stderr == "error: Standard output cannot be written: no space left on device.\n"
