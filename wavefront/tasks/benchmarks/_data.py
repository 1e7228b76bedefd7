"""Find the evaluation data in a folder, check its sha256, and read it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError
from wavefront.tasks.base import Sample, Style, paper_prompt

VARIABLE = "WAVEFRONT_DATA"


def data_file(*names: str, data: str = "") -> Path:
    """Return the first of these files that exists under `data`, or under WAVEFRONT_DATA."""
    root = data or os.environ.get(VARIABLE)
    if not root:
        raise OptionError(
            f"{VARIABLE} is not set. Set it (or data=, --data) to the folder that holds"
            f" {names[0]!r}; docs/tasks.md says where to get every file."
        )
    for name in names:
        if (path := Path(root).expanduser() / name).is_file():
            return path
    origin = f"data={data!r}" if data else f"{VARIABLE}={root!r}"
    raise OptionError(
        f"none of {', '.join(map(repr, names))} is under {origin}. Check the folder, or get the"
        " file as docs/tasks.md says."
    )


@cache
def published_checksums() -> dict[str, str]:
    """Map every data file to its published sha256."""
    lines = (Path(__file__).parent / "files.sha256").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def read_bytes(name: str, *, data: str = "", any_data: bool = False) -> bytes:
    """Read and unpack a data file. Raise OptionError if it is not the published file."""
    path = data_file(name, data=data)
    content = path.read_bytes()
    if not any_data and sha256(content).hexdigest() != published_checksums()[name]:
        raise OptionError(
            f"{path} is not the published {name} (its sha256 differs). Download it again, or pass"
            " any_data=True to use it anyway."
        )
    return gzip.decompress(content) if name.endswith(".gz") else content


def read_rows(name: str, *, data: str = "", any_data: bool = False) -> list[dict[str, Any]]:
    """Read the rows of a JSON or JSON-lines file."""
    text = read_bytes(name, data=data, any_data=any_data).decode("utf-8")
    try:
        if name.endswith(".json"):
            content = json.loads(text)
            return content["examples"] if isinstance(content, dict) else content
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, KeyError) as error:
        raise OptionError(f"{name} is damaged ({error}); download it again.") from None


def real_bbh(name: str, *, style: Style = "bare") -> Iterator[Sample]:
    """Yield the real items of a BBH subset, in file order, without worked answers."""
    for index, item in enumerate(examples(name)):
        question = item["input"]
        prompt = question if style == "bare" else paper_prompt(name, question)
        yield Sample(f"{name}/real/{index}", prompt, "", item["target"])


def examples(name: str) -> list[dict[str, str]]:
    """Read the items of a BBH file unchanged."""
    return json.loads(data_file(f"bbh/{name}.json").read_text("utf-8"))["examples"]
