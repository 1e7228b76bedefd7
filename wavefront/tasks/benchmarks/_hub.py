"""Read the benchmark data from the Hugging Face Hub.

The Hub stores it in other files, so the check compares content: the fields that we use must equal
those of the published files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from wavefront.core.errors import MissingExtraError, OptionError, install_command


class HubLocation(NamedTuple):
    """Where the rows of a data file are on the Hub, and which of their fields we use."""

    dataset: str
    files: tuple[str, ...]
    fields: tuple[str, ...]


def _parquet(folder: str, *splits: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{split}-00000-of-00001.parquet" for split in splits)


_MBPP = "google-research-datasets/mbpp"
_MBPP_SPLITS = ("prompt", "test", "validation", "train")  # in the order of task ids
_EVAL = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
LOCATIONS = {
    "gsm8k/test.jsonl": HubLocation(
        "openai/gsm8k", _parquet("main", "test"), ("question", "answer")
    ),
    "gsm8k/train.jsonl.gz": HubLocation(
        "openai/gsm8k", _parquet("main", "train"), ("question", "answer")
    ),
    "humaneval/HumanEval.jsonl": HubLocation(
        "openai/openai_humaneval", _parquet("openai_humaneval", "test"), _EVAL
    ),
    "mbpp/mbpp.jsonl": HubLocation(
        _MBPP, _parquet("full", *_MBPP_SPLITS), ("task_id", "text", "code", "test_list")
    ),
    "mbpp/sanitized-mbpp.json": HubLocation(
        _MBPP, _parquet("sanitized", *_MBPP_SPLITS), ("task_id", "prompt", "code", "test_list")
    ),
    "math/math500.jsonl": HubLocation(
        "HuggingFaceH4/MATH-500", ("test.jsonl",), ("problem", "solution", "answer", "unique_id")
    ),
}


def locate(name: str) -> HubLocation:
    """Return where a data file is on the Hub. Raise OptionError if it is not there."""
    if name.startswith("bbh/") and name.endswith(".json"):
        subset = name.removeprefix("bbh/").removesuffix(".json")
        return HubLocation("lukaemon/bbh", _parquet(subset, "test"), ("input", "target"))
    if name not in LOCATIONS:
        raise OptionError(
            f"{name} is not available on the Hub. Get it as docs/tasks.md says, and set data= or"
            " WAVEFRONT_DATA to its folder."
        )
    return LOCATIONS[name]


def rows(name: str, *, any_data: bool = False) -> list[dict[str, Any]]:
    """Download the rows of a data file from the Hub, and check them."""
    where = locate(name)
    found = [row for file in where.files for row in _read(_fetch(where.dataset, file))]
    if "task_id" in where.fields and "mbpp" in name:
        found.sort(key=lambda row: row["task_id"])
    if not any_data and content_digest(found, where.fields) != published_digests()[name]:
        raise OptionError(
            f"{where.dataset} on the Hub differs from the published {name}. Use the published file,"
            " or pass any_data=True to use it anyway."
        )
    return found


def content_digest(found: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """Return the sha256 of the fields that we use, however the rows are stored."""
    kept = [[row[field] for field in fields] for row in found]
    return sha256(json.dumps(kept, separators=(",", ":")).encode()).hexdigest()


@cache
def published_digests() -> dict[str, str]:
    """Map every data file to the digest of its content."""
    lines = (Path(__file__).parent / "contents.sha256").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _fetch(dataset: str, file: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtraError(
            f"Data from the Hub needs huggingface_hub: {install_command('hub')}."
        ) from None
    try:
        return Path(hf_hub_download(dataset, file, repo_type="dataset"))
    # The client and its network stack raise many types; report all of them in one sentence.
    except Exception as error:
        reason = shorten(str(error), 200, placeholder=" …").rstrip(".") or type(error).__name__
        raise OptionError(f"{file} of {dataset} could not be downloaded: {reason}.") from error


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    try:
        from pyarrow.parquet import read_table  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtraError(
            f"Reading {path.name} needs pyarrow: pip install pyarrow."
        ) from None
    return read_table(path).to_pylist()
