"""Untrusted files are read with limits."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from wavefront.bench import results as bench_results
from wavefront.bench.run import _read_accuracies
from wavefront.cli.bertscore import _texts
from wavefront.cli.command import UsageError
from wavefront.core.errors import CheckpointError, OptionError, RunError, WavefrontError
from wavefront.evaluation.run import open_run
from wavefront.results import table
from wavefront.storage import jsonl, read_file
from wavefront.storage.hub import read_json as read_checkpoint_json
from wavefront.storage.hub import read_text as read_checkpoint_text
from wavefront.tasks.base import Ask
from wavefront.tasks.jsonl_file import Jsonl
from wavefront.text.tokenizer import Tokenizer
from wavefront.traces import trace_file
from wavefront.train import corpus
from wavefront.train.texts import read_pairs

READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_checkpoint_json,
    "generation_config.json": read_checkpoint_json,
    "model.safetensors.index.json": read_checkpoint_json,
    "tokenizer.json": lambda file: Tokenizer.load(file.parent),
    "tokenizer_config.json": lambda file: Tokenizer.load(file.parent),
    "added_tokens.json": lambda file: Tokenizer.load(file.parent),
    "vocab.json": lambda file: Tokenizer.load(file.parent),
    "merges.txt": read_checkpoint_text,
    "chat_template.jinja": read_checkpoint_text,
    "header.json": lambda file: open_run(file.parent),
    "answers.jsonl": jsonl.read,
    "run.json": lambda file: table.read(file.parent),
    "bench.json": bench_results.load,
    "accuracies.json": _read_accuracies,
    "items.jsonl": lambda file: Jsonl(path=str(file)).samples(Ask()),
    "texts.jsonl": lambda file: _texts(file, "text"),
    "texts.txt": lambda file: _texts(file, "text"),
    "data.jsonl": read_pairs,
    "data.txt": read_pairs,
    "corpus.txt": corpus.read_lines,
    "trace.npz": trace_file.load,
}


@pytest.mark.parametrize("name", READERS)
def test_sparse_file_is_refused_without_reading_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with file.open("wb") as out:
        out.write(b"PK\x03\x04" if name == "trace.npz" else b"{")
        out.truncate(1 << 40)
    with pytest.raises(WavefrontError, match=r"larger than|longer than|damaged") as caught:
        READERS[name](file)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", [name for name in READERS if name.endswith(("json", "jsonl"))])
@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 200_000, b"1" * 5000])
def test_json_that_python_cannot_hold_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content + b"\n")
    with pytest.raises(WavefrontError) as caught:
        READERS[name](file)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*READERS])
def test_named_pipe_is_refused_without_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((WavefrontError, UsageError)):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize(
    "read", [read_pairs, pytest.param(corpus.read_lines, marks=pytest.mark.slow)]
)
def test_packed_file_is_not_unpacked_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "texts.txt.gz"
    file.write_bytes(gzip.compress(b"a text\n\n" * 1000))
    assert read(file)
    file.write_bytes(gzip.compress(bytes(1 << 28)))
    monkeypatch.setattr(corpus, "TEXT_LIMIT", 1 << 20)
    tracemalloc.start()
    with pytest.raises(OptionError, match="larger than 1 MiB when it is unpacked") as caught:
        read(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24
    assert caught.value.option in ("data", "text")


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b", b"plain text", None])
def test_damaged_packed_file_raises_one_sentence(tmp_path: Path, damage: bytes | None) -> None:
    file = tmp_path / "texts.txt.gz"
    whole = gzip.compress(os.urandom(1000))
    broken = whole[:20] + bytes(100) + whole[120:]  # not a valid stream of deflate
    file.write_bytes(broken if damage is None else damage)
    with pytest.raises(OptionError, match=r"cannot be read: .*\.$|holds no text\.$"):
        read_pairs(file)


@pytest.mark.parametrize("name", ["items.jsonl", "texts.jsonl", "data.jsonl"])
def test_lone_surrogate_in_a_file_raises_one_sentence(tmp_path: Path, name: str) -> None:
    fields = {"prompt": "a", "target": "b", "text": "c\ud800"}
    (tmp_path / name).write_text(json.dumps(fields) + "\n")
    with pytest.raises(OptionError, match=r"Line 1 of .* has a lone surrogate; remove it\.$"):
        READERS[name](tmp_path / name)


def test_file_at_its_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    file.write_text("[1, 2]")
    assert read_file.read_json(file, limit=6, error=RunError) == [1, 2]
    with pytest.raises(CheckpointError, match="larger than 0 KiB"):
        read_file.read_json(file, limit=5, error=CheckpointError)


def test_lines_are_limited_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("ab\ncd\u2028\n\nef", encoding="utf-8")
    lines = list(read_file.read_lines(file, error=RunError, limit=6))
    assert lines == [b"ab\n", "cd\u2028\n".encode(), b"\n", b"ef"]
    with pytest.raises(RunError, match=r"Line 2 of .* is longer than"):
        list(read_file.read_lines(file, error=RunError, limit=5))
