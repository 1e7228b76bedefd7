"""`wavefront models` and `wavefront version`: what is here."""

from __future__ import annotations

import importlib
import json
import platform
from importlib import metadata
from typing import Annotated, Any

import typer

import wavefront
from wavefront.cli.list_strategies import summary
from wavefront.cli.output import print_table, say_json
from wavefront.storage.provenance import commit

# Published checkpoints to meet a family by.
PUBLISHED = {
    "llada": ("GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "GSAI-ML/LLaDA-8B-Base"),
    "dream": ("Dream-org/Dream-v0-Instruct-7B", "Dream-org/Dream-v0-Base-7B"),
}


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in models, and the families whose checkpoints can be loaded."""
    built_in, families = _built_in(), _families()
    if as_json:
        say_json({"built_in": built_in, "families": families})
        return
    print_table("built in", [_row(one) for one in built_in])
    print_table("families: from a directory or the hub", [_row(one) for one in families])


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the versions that a report should name."""
    found = {"wavefront": wavefront.__version__, "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("torch", "tokenizers", "safetensors")}
    found |= {"commit": known} if (known := commit()) else {}
    if as_json:
        say_json(found)
    else:
        print("\n".join(f"{name} {number}" for name, number in found.items()))


def say_version() -> None:
    """One line for `--version`: ours, the commit if it is known, and torch."""
    also = [f"commit {known}"] if (known := commit()) else []
    also.append(f"torch {metadata.version('torch')}")
    print(f"wavefront {wavefront.__version__} ({', '.join(also)})")


def _built_in() -> list[dict[str, Any]]:
    from wavefront.models import builtin

    return [
        {"name": name, "load": [f"--model {name}"], "summary": _describe(name)}
        for name in builtin.names()
    ]


def _describe(name: str) -> str:
    from wavefront.models import builtin

    folder = builtin.directory(name)
    if folder is None:
        return "seeded random weights over bytes: decodes nonsense at once, for trying things"
    family = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6
    return f"a trained model of the family {family}, {size:.0f} MB"


def _families() -> list[dict[str, Any]]:
    from wavefront.models import loader

    return [
        {
            "name": name,
            "load": [f"--model {hub_id}" for hub_id in PUBLISHED.get(name, ("DIRECTORY",))],
            "model_types": [name, *(also for also, to in loader.ALSO.items() if to == name)],
            "summary": summary(importlib.import_module(f"{loader.FAMILIES}.{name}")),
        }
        for name in loader.families()
    ]


def _row(entry: dict[str, Any]) -> tuple[str, str, str]:
    return entry["name"], entry["load"][0], entry["summary"]
