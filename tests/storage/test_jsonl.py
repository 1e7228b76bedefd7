"""Files that survive a crash: incomplete lines, damage, locks, and atomic writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wavefront.core.errors import RunError
from wavefront.storage import jsonl

RECORDS = [{"key": "a", "text": "one\ntwo"}, {"key": "b", "text": "ü \u2028 □"}]


def write(file: Path) -> bytes:
    with jsonl.JsonLines(file) as out:
        out.append(*RECORDS)
    return file.read_bytes()


def test_records_are_read_in_order_and_each_takes_one_line(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl")
    assert data.count(b"\n") == 2
    assert data.isascii()
    assert jsonl.read(tmp_path / "a.jsonl") == RECORDS


def test_file_cut_at_any_byte_continues_after_its_last_complete_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    whole = write(file)
    first = whole.index(b"\n") + 1
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        kept = 1 if end >= first else 0
        assert jsonl.read(file) == RECORDS[:kept]
        with jsonl.JsonLines(file) as out:
            assert out.found == RECORDS[:kept]
            out.append(*RECORDS[kept:])
        assert file.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"{", b"\x00\x00", b"[1]", b"", b'{"key": '])
def test_damaged_line_is_named_by_its_number(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "a.jsonl"
    whole = write(file)
    file.write_bytes(damage + b"\n" + whole)
    with pytest.raises(RunError, match=r"Line 1 of .*a\.jsonl is damaged"):
        jsonl.JsonLines(file)
    assert file.read_bytes() == damage + b"\n" + whole


@pytest.mark.parametrize(
    ("records", "words"),
    [([{"key": "a"}, {"key": "a"}], "Line 2 .* repeats"), ([{"id": 1}], "Line 1 .* has no key")],
)
def test_missing_or_repeated_key_is_refused(
    tmp_path: Path, records: list[dict], words: str
) -> None:
    with pytest.raises(RunError, match=words):
        jsonl.by_key(records, tmp_path / "a.jsonl")


def test_directory_lock_excludes_other_processes_until_its_owner_dies(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from wavefront.storage import jsonl\n"
        "with jsonl.lock_directory(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    root = str(Path(jsonl.__file__).parents[2])
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
        text=True,
    )
    with other:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(RunError, match="Another process is writing"),
            jsonl.lock_directory(tmp_path / "run"),
        ):
            pass
        other.kill()
    with jsonl.lock_directory(tmp_path / "run"):
        pass


def test_failed_json_write_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    jsonl.write_json(file, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        jsonl.write_json(file, {"a": float("nan")})
    assert file.read_text() == '{\n "a": 1\n}\n'
    assert os.listdir(tmp_path) == ["summary.json"]


def test_unwritable_path_raises_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match="cannot be written"),
        jsonl.lock_directory(tmp_path / "file" / "run"),
    ):
        pass
    with pytest.raises(RunError, match="cannot be written"):
        jsonl.write_json(tmp_path / "none" / "a.json", {})
