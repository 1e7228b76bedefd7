"""Find the files of a checkpoint in the package, on disk or on the Hub, and read their JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any

from wavefront.core.errors import CheckpointError, MissingExtraError, OptionError, did_you_mean

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
BUILTIN = Path(__file__).parents[1] / "models" / "builtin"


def builtin_checkpoints() -> dict[str, Path]:
    """Return the directories of the checkpoints that come with the package, by name."""
    return {file.parent.name: file.parent for file in sorted(BUILTIN.glob(f"*/{CONFIG}"))}


def locate(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    weights: bool = True,
) -> Path:
    """Return the directory of a checkpoint, after fetching it from the Hub if necessary.

    Args:
        path: A built-in name, a local directory, or a Hub id such as `org/name`.
        revision: The Hub revision; by default `main`.
        offline: Use only files that are already in the Hub's cache.
        weights: Fetch the weights too.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(
            f"A model must be a name or a path, not {path!r}.", option="model", value=path
        )
    name, built_in = os.fsdecode(path), builtin_checkpoints()
    if name in built_in:
        return built_in[name]
    directory = _expand(name)
    if directory and directory.is_dir():
        return directory
    if name == "toy":
        raise CheckpointError(
            "The 'toy' has no files; use wavefront.load('toy'), or wavefront.models.toy.toy() "
            "for a model without a tokenizer."
        )
    hub_id = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    if directory is None or directory.exists() or not hub_id:
        known = (*built_in, "toy")
        raise CheckpointError(
            f"{name!r} is not a directory{did_you_mean(name, known)}; give a folder that holds "
            f"{CONFIG}, a built-in name ({', '.join(known)}), or a Hub id such as 'org/name'."
        )
    found = _fetch(name, (CONFIG, GENERATION, INDEX, *TEXT_FILES), revision, offline=offline)
    if not weights:
        return found
    shards = set(weight_map(found).values()) if (found / INDEX).is_file() else {WEIGHTS}
    return _fetch(name, shards, revision, offline=offline)


def _expand(name: str) -> Path | None:
    """Return the path that `name` stands for, or None if it cannot be a path."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # a name that is too long, or the home of an unknown user
        return None
    return path


def _fetch(name: str, files: Iterable[str], revision: str | None, *, offline: bool) -> Path:
    """Fetch some files of a Hub repository, and return their directory."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError(
            f"{name!r} is not a local directory, and fetching it from the Hub needs "
            "huggingface_hub: pip install 'wavefront[hub]'."
        ) from None
    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=list(files), local_files_only=offline
        )
    # The Hub's client and its network stack can raise anything; report all of it the same way.
    except Exception as error:
        reason = shorten(str(error), 200, placeholder=" …").rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"{name!r} is not a local directory and could not be fetched from the Hub "
            f"(revision {revision or 'main'}{', offline' if offline else ''}): {reason}."
        ) from error
    return Path(found)


def read_json(file: Path, *, required: bool = True) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty object, unless it is required."""
    if not file.is_file():
        if not required:
            return {}
        raise CheckpointError(f"{file} is missing; a checkpoint needs {CONFIG} beside its weights.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}); fetch the file again."
        ) from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} must hold a JSON object; fetch the file again.")
    return values


def weight_map(directory: Path) -> dict[str, str]:
    """Return the shard file of each tensor, from the index; each must be a plain file name."""
    index = directory / INDEX
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no 'weight_map'; fetch the file again.")
    for tensor, shard in shards.items():
        plain = isinstance(shard, str) and re.fullmatch(r"\w[^/\\:]*\.safetensors", shard)
        if not plain:
            raise CheckpointError(
                f"{index} maps tensor {tensor!r} to {shard!r}, which is not the name of a "
                "safetensors file beside it; do not trust this checkpoint."
            )
    return shards
