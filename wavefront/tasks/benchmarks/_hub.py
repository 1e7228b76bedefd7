"""The same data from the hub, by dataset id. It comes in other files there, so what is checked is
its content: the fields we use, which must be those of the published files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from wavefront.core.errors import MissingExtraError, OptionError


class Place(NamedTuple):
    """Where the rows of one of our files are on the hub, and which of their fields count."""

    dataset: str
    files: tuple[str, ...]
    fields: tuple[str, ...]


def _parquet(folder: str, *splits: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{split}-00000-of-00001.parquet" for split in splits)


_MBPP = "google-research-datasets/mbpp"
_MBPP_SPLITS = ("prompt", "test", "validation", "train")  # in the order of task ids
_EVAL = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
PLACES = {
    "gsm8k/test.jsonl": Place("openai/gsm8k", _parquet("main", "test"), ("question", "answer")),
    "gsm8k/train.jsonl.gz": Place(
        "openai/gsm8k", _parquet("main", "train"), ("question", "answer")
    ),
    "humaneval/HumanEval.jsonl": Place(
        "openai/openai_humaneval", _parquet("openai_humaneval", "test"), _EVAL
    ),
    "mbpp/mbpp.jsonl": Place(
        _MBPP, _parquet("full", *_MBPP_SPLITS), ("task_id", "text", "code", "test_list")
    ),
    "mbpp/sanitized-mbpp.json": Place(
        _MBPP, _parquet("sanitized", *_MBPP_SPLITS), ("task_id", "prompt", "code", "test_list")
    ),
    "math/math500.jsonl": Place(
        "HuggingFaceH4/MATH-500", ("test.jsonl",), ("problem", "solution", "answer", "unique_id")
    ),
}


def place(name: str) -> Place:
    """Where a file is on the hub; some are nowhere there."""
    if name.startswith("bbh/") and name.endswith(".json"):
        subset = name.removeprefix("bbh/").removesuffix(".json")
        return Place("lukaemon/bbh", _parquet(subset, "test"), ("input", "target"))
    if name not in PLACES:
        raise OptionError(
            f"{name} is not to be had from the hub: get it as docs/tasks.md says and name its"
            " folder by data= or WAVEFRONT_DATA."
        )
    return PLACES[name]


def rows(name: str, *, any_data: bool = False) -> list[dict[str, Any]]:
    """The rows of one of our files, fetched from the hub and checked."""
    where = place(name)
    found = [row for file in where.files for row in _read(_fetch(where.dataset, file))]
    if "task_id" in where.fields and "mbpp" in name:
        found.sort(key=lambda row: row["task_id"])
    if not any_data and content(found, where.fields) != contents()[name]:
        raise OptionError(
            f"{where.dataset} on the hub does not hold what was published as {name}: use the"
            " published file, or pass any_data=True to use it as it is."
        )
    return found


def content(found: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """The sha256 of the fields that count, however the rows were stored."""
    kept = [[row[field] for field in fields] for row in found]
    return sha256(json.dumps(kept, separators=(",", ":")).encode()).hexdigest()


@cache
def contents() -> dict[str, str]:
    """File -> the digest of its content."""
    lines = (Path(__file__).parent / "contents.sha256").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _fetch(dataset: str, file: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtraError(
            "Data from the hub needs huggingface_hub: pip install 'wavefront[hub]'."
        ) from None
    try:
        return Path(hf_hub_download(dataset, file, repo_type="dataset"))
    # Whatever the hub's client or its network stack raises, the user needs the one sentence.
    except Exception as error:
        reason = shorten(str(error), 200, placeholder=" …").rstrip(".") or type(error).__name__
        raise OptionError(f"{file} of {dataset} could not be fetched: {reason}.") from error


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    try:
        from pyarrow.parquet import read_table  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtraError(f"{path.name} is read by pyarrow: pip install pyarrow.") from None
    return read_table(path).to_pylist()
