"""Published settings by name and task: `preset("llada", "gsm8k")`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError, check_choice


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "presets.toml").read_text("utf-8"))


def presets() -> dict[str, list[str]]:
    """The name of every preset -> the tasks it is for."""
    return {name: sorted(table["task"]) for name, table in _table().items()}


def preset(name: str, task: str) -> dict[str, Any]:
    """Options of a decode under our own names, and `shots`, as published for this task.

    A new dictionary each time. One entry "bbh" or "countdown" serves all its subsets.
    """
    check_choice("preset", name, _table())
    table = _table()[name]
    family = next((known for known in table["task"] if task.startswith(f"{known}_")), task)
    found = table["task"].get(task, table["task"].get(family))
    if found is None:
        raise OptionError(
            f"preset {name!r} says nothing of {task!r}; it has {sorted(table['task'])}."
        )
    options = {**table.get("always", {}), **found}
    options.setdefault("steps", options["max_new_tokens"])
    return options
