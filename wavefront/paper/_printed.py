"""Printed: what the paper prints (paper.toml), its points to know, and which of it is beside what.

Our tasks are not the paper's data sets. Each has the one it is nearest to, so that a reader sees
both; the numbers are of different problems and different models all the same.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from wavefront.analysis.figures import kind
from wavefront.results.table import Table

DATASETS = {
    "gsm": "GSM8K",
    "gsm8k": "GSM8K",
    "math": "MATH",
    "math500": "MATH",
    "code": "HumanEval",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "mbpp_sanitized": "MBPP",
}
STRATEGIES = {
    "standard": "Standard Diffusion",
    "block": "BlockDiffusion",
    "wavefront": "WavefrontDiffusion",
    "tbd": "Truncated-BlockDiffusion",
    "rcr": "Running Confidence Remasking",
    "left_to_right": "Autoregressive Greedy",
}
SPECULATIVE = "Self-Speculative Decoding"
# The paper's name of a model, by a part of the name of the checkpoint.
MODELS = {"LLaDA-8B": "LLaDA-8B-Instruct", "LLaDA-1.5": "LLaDA-1.5", "Dream": "Dream-7B"}
FIRST = "LLaDA-8B-Instruct"  # stands beside a model that the paper does not have


@cache
def _paper() -> dict[str, dict[str, Any]]:
    text = files("wavefront.paper").joinpath("paper.toml").read_text("utf-8")
    return tomllib.loads(text)


def where(name: str) -> str:
    """The table or figure of the paper, such as "Table 1"."""
    return _paper()[name]["where"] if name in _paper() else "none"


def printed(name: str) -> Table | None:
    """The paper's own table, every cell as it stands there."""
    found = _paper().get(name, {})
    if "rows" not in found:
        return None
    return Table(f"The paper's numbers ({found['where']})", found["head"], found["rows"])


def points(name: str) -> Table | None:
    """What to know of the paper's numbers before they are compared with."""
    found = _paper().get(name, {}).get("points", [])
    return Table("Points of the paper", ["point"], [[one] for one in found]) if found else None


def cell(name: str, column: str, **where: str) -> str | None:
    """A cell of the paper's table: of the first row whose columns begin with these texts."""
    found = _paper().get(name, {})
    head = found.get("head", [])
    if column not in head:
        return None
    for row in found["rows"]:
        if all(row[head.index(part)].startswith(text) for part, text in where.items()):
            return row[head.index(column)]
    return None


def dataset(task: str) -> str:
    """The paper's data set that a task is, or is nearest to."""
    return DATASETS.get(task.partition("(")[0], "BBH")


def subset(task: str) -> str:
    """The subset of BBH that a task is, or is named after."""
    return task.partition("(")[0].removeprefix("bbh_")


def strategy(spec: str) -> str:
    """The paper's name of a strategy."""
    if "draft=" in spec:
        return SPECULATIVE
    return STRATEGIES.get(kind(spec), spec)


def model(name: str) -> str:
    """The paper's name of a model; of one that it does not have, its first."""
    return next((theirs for part, theirs in MODELS.items() if part in name), FIRST)
