"""The numbers that the paper prints (paper.toml), and which of our tasks and models they go with.

Our tasks are not the paper's data sets. Each task is shown next to the most similar data set, but
the problems and models differ.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

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
PROCEDURAL = ("gsm", "code")  # our tasks that stand for a data set of another name
BBH_LIKE = "BBH-like"  # our tasks that are named after subsets of BBH
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
DEFAULT_MODEL = "LLaDA-8B-Instruct"  # shown next to models that the paper does not have


@cache
def _paper() -> dict[str, dict[str, Any]]:
    text = files("wavefront.paper").joinpath("paper.toml").read_text("utf-8")
    return tomllib.loads(text)


def place_in_paper(name: str) -> str:
    """Return the table or figure of an experiment, such as "Table 1"."""
    return _paper()[name]["where"] if name in _paper() else "none"


def published_table(name: str) -> Table | None:
    """Return the paper's own table, every cell as printed."""
    found = _paper().get(name, {})
    if "rows" not in found:
        return None
    return Table(f"The paper's numbers ({found['where']})", found["head"], found["rows"])


def caveats_table(name: str) -> Table | None:
    """Return what to know before comparing with the paper's numbers."""
    found = _paper().get(name, {}).get("points", [])
    return Table("Points of the paper", ["point"], [[one] for one in found]) if found else None


def published_cell(name: str, column: str, **where: str) -> str | None:
    """Return a cell of the paper's table, of the first row whose columns begin with these texts."""
    found = _paper().get(name, {})
    head = found.get("head", [])
    if column not in head:
        return None
    for row in found["rows"]:
        if all(row[head.index(part)].startswith(text) for part, text in where.items()):
            return row[head.index(column)]
    return None


def dataset(task: str) -> str:
    """Return the paper's data set that is the same as or nearest to a task or a data name."""
    return DATASETS.get(task.partition("(")[0].lower(), "BBH")


def data_name(task: str) -> str:
    """Return the name of a task's data in tables: the data set, or what stands for it here.

    Our procedural tasks do not get the name of a data set.
    """
    name = task.partition("(")[0]
    if name in (*PROCEDURAL, "stories"):
        return name
    if name in DATASETS or name.startswith("bbh"):
        return dataset(name)
    return BBH_LIKE


def subset(task: str) -> str:
    """Return the subset of BBH that a task is, or is named after."""
    return task.partition("(")[0].removeprefix("bbh_")


def published_strategy(spec: str) -> str:
    """Return the paper's name of a strategy."""
    from wavefront.analysis.figures import kind  # needs matplotlib

    if "speculate=" in spec:
        return SPECULATIVE
    return STRATEGIES.get(kind(spec), spec)


def published_model(name: str) -> str:
    """Return the paper's name of a model, or its first model if it does not have this one."""
    return next((theirs for part, theirs in MODELS.items() if part in name), DEFAULT_MODEL)


def first_number(text: str | None) -> float | None:
    """Return the leading number of a printed cell: 82.03 of "82.03 ± 0.00"."""
    return None if text is None else float(text.split()[0])
