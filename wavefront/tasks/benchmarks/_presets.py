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
    """Map every preset to the tasks that it covers."""
    return {name: sorted(table["task"]) for name, table in _table().items()}


def preset(name: str, task: str) -> dict[str, Any]:
    """Return the published decoding options and `shots` for this task, as a new dictionary.

    One entry "bbh" or "countdown" covers all its subsets.
    """
    check_choice("preset", name, _table())
    table = _table()[name]
    family = next((known for known in table["task"] if task.startswith(f"{known}_")), task)
    found = table["task"].get(task, table["task"].get(family))
    if found is None:
        raise OptionError(
            f"preset {name!r} does not cover {task!r}. It covers {sorted(table['task'])}."
        )
    options = {**table.get("always", {}), **found}
    options.setdefault("steps", options["max_new_tokens"])
    return options
