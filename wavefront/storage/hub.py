"""The files of a checkpoint: found in the package, on disk or on the hub, and their JSON read."""

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
SHIPPED = Path(__file__).parents[1] / "models" / "builtin"


def shipped() -> dict[str, Path]:
    """The checkpoints that come with the package: name -> directory."""
    return {file.parent.name: file.parent for file in sorted(SHIPPED.glob(f"*/{CONFIG}"))}


def locate(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    weights: bool = True,
) -> Path:
    """The directory of a shipped or local checkpoint, or of one fetched by its hub id."""
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"A model is named by a string or a path; {path!r} is neither.")
    name, built_in = os.fsdecode(path), shipped()
    if name in built_in:
        return built_in[name]
    directory = _expanded(name)
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
            f"{CONFIG}, a built-in name ({', '.join(known)}), or a hub id such as 'org/name'."
        )
    found = _fetch(name, (CONFIG, GENERATION, INDEX, *TEXT_FILES), revision, offline=offline)
    if not weights:
        return found
    shards = set(weight_map(found).values()) if (found / INDEX).is_file() else {WEIGHTS}
    return _fetch(name, shards, revision, offline=offline)


def _expanded(name: str) -> Path | None:
    """The path that `name` stands for; None when it can be none on this machine."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError):  # too long a name, or the home of nobody
        return None
    return path


def _fetch(name: str, files: Iterable[str], revision: str | None, *, offline: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError(
            f"{name!r} is not a directory here, and fetching it from the hub needs "
            "huggingface_hub: pip install 'wavefront[hub]'."
        ) from None
    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=list(files), local_files_only=offline
        )
    # Whatever the hub's client or its network stack raises, the user needs the one sentence.
    except Exception as error:
        reason = shorten(str(error), 200, placeholder=" …").rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"{name!r} is not a directory here and could not be fetched from the hub "
            f"(revision {revision or 'main'}{', offline' if offline else ''}): {reason}."
        ) from error
    return Path(found)


def read_json(file: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object; a file that is not there is an empty one, unless it is required."""
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
    """Tensor name -> shard file name, from the index; a shard is a plain name in the directory."""
    index = directory / INDEX
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no 'weight_map'; fetch the file again.")
    for tensor, shard in shards.items():
        plain = isinstance(shard, str) and re.fullmatch(r"\w[^/\\:]*\.safetensors", shard)
        if not plain:
            raise CheckpointError(
                f"{index} sends tensor {tensor!r} to {shard!r}, which is not the name of a "
                "safetensors file beside it; do not trust this checkpoint."
            )
    return shards
