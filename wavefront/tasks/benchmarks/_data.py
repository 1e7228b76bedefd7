"""The evaluation data: found under a folder or on the hub, checked by its sha256, and read."""

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
    """The first of these files that exists under `data`, or under WAVEFRONT_DATA."""
    root = data or os.environ.get(VARIABLE)
    if not root:
        raise OptionError(
            f"{VARIABLE} is not set: point it (or data=, --data) at the folder that holds"
            f" {names[0]!r}; docs/tasks.md says where every file comes from"
        )
    for name in names:
        if (path := Path(root).expanduser() / name).is_file():
            return path
    origin = f"data={data!r}" if data else f"{VARIABLE}={root!r}"
    raise OptionError(
        f"none of {', '.join(map(repr, names))} is under {origin}: get it as docs/tasks.md says,"
        " or check the folder"
    )


@cache
def sums() -> dict[str, str]:
    """File -> the sha256 it must have."""
    lines = (Path(__file__).parent / "files.sha256").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def read_bytes(name: str, *, data: str = "", any_data: bool = False) -> bytes:
    """A data file, unpacked; one that is not the published file is refused."""
    path = data_file(name, data=data)
    content = path.read_bytes()
    if not any_data and sha256(content).hexdigest() != sums()[name]:
        raise OptionError(
            f"{path} is not the published {name} (its sha256 differs): fetch it again, or pass"
            " any_data=True to use it as it is"
        )
    return gzip.decompress(content) if name.endswith(".gz") else content


def read_rows(name: str, *, data: str = "", any_data: bool = False) -> list[dict[str, Any]]:
    """The rows of a JSON or JSON-lines file."""
    text = read_bytes(name, data=data, any_data=any_data).decode("utf-8")
    try:
        if name.endswith(".json"):
            whole = json.loads(text)
            return whole["examples"] if isinstance(whole, dict) else whole
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, KeyError) as error:
        raise OptionError(f"{name} is not what it should be ({error}): fetch it again.") from None


def real_bbh(name: str, *, style: Style = "bare") -> Iterator[Sample]:
    """The real items of a BBH subset, in file order, without worked answers."""
    for index, item in enumerate(examples(name)):
        question = item["input"]
        prompt = question if style == "bare" else paper_prompt(name, question)
        yield Sample(f"{name}/real/{index}", prompt, "", item["target"])


def examples(name: str) -> list[dict[str, str]]:
    """A BBH file's items as they stand there."""
    return json.loads(data_file(f"bbh/{name}.json").read_text("utf-8"))["examples"]
