"""The evaluation data on disk, found through the environment variable WAVEFRONT_DATA."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from wavefront.errors import OptionError
from wavefront.task import Sample, Style, paper_prompt


def data_file(*names: str) -> Path:
    """The first of these files under WAVEFRONT_DATA that exists."""
    root = os.environ.get("WAVEFRONT_DATA")
    if not root:
        raise OptionError(
            f"WAVEFRONT_DATA is not set: point it at the folder that holds {names[0]!r}"
        )
    for name in names:
        if (path := Path(root) / name).exists():
            return path
    raise OptionError(f"none of {names} is under WAVEFRONT_DATA={root!r}: check the folder")


def real_bbh(name: str, *, style: Style = "bare") -> Iterator[Sample]:
    """The real items of a BBH subset, in file order, without worked answers."""
    for index, item in enumerate(examples(name)):
        question = item["input"]
        prompt = question if style == "bare" else paper_prompt(name, question)
        yield Sample(f"{name}/real/{index}", prompt, "", item["target"])


def examples(name: str) -> list[dict[str, str]]:
    """A BBH file's items as they stand there."""
    return json.loads(data_file(f"bbh/{name}.json").read_text("utf-8"))["examples"]
