"""Find the files of a checkpoint in the package, on disk or on the Hub, and read their JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from wavefront.core.errors import (
    CheckpointError,
    MissingExtraError,
    OptionError,
    did_you_mean,
    install_command,
    quote,
)
from wavefront.storage import read_file
from wavefront.storage.read_file import MIB

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GGUF = ".gguf"
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
BUILTIN = Path(__file__).parents[1] / "models" / "builtin"
# Maximum bytes of a checkpoint's files. The largest published files have a quarter of this.
FILE_LIMIT = 4 * MIB
FILE_LIMITS = {
    INDEX: 64 * MIB,
    "tokenizer.json": 128 * MIB,
    "tokenizer_config.json": 16 * MIB,
    "added_tokens.json": 16 * MIB,
    "vocab.json": 64 * MIB,
    "merges.txt": 64 * MIB,
}
IDS_LIMIT = 256  # token ids under one key
SHARD_LIMIT = 1000  # files of weights
SHARD_NAME = re.compile(r"\w[^/\\:\x00-\x1f]{0,200}\.safetensors")


def builtin_checkpoints() -> dict[str, Path]:
    """Return the directories of the checkpoints that come with the package, by name."""
    return {file.parent.name: file.parent for file in sorted(BUILTIN.glob(f"*/{CONFIG}"))}


def locate(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    weights: bool = True,
    factory: bool = False,
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> Path:
    """Return the directory of a checkpoint, after fetching it from the Hub if necessary.

    Args:
        path: A built-in name, a local directory, or a Hub id such as `org/name`.
        revision: The Hub revision; by default `main`.
        offline: Use only files that are already in the Hub's cache.
        weights: Fetch the weights too.
        factory: Say in errors that the caller also accepts `module:factory`.
        check: Called with the content of config.json. It may raise, before weights are fetched.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(
            f"A model must be a name or a path, not {path!r}.", option="model", value=path
        )
    name, built_in = os.fsdecode(path), builtin_checkpoints()
    if name in built_in:
        return built_in[name]
    directory = _expand(name)
    if directory and weights:
        _refuse_gguf(directory)
    if directory and directory.is_dir():
        if check is not None:
            check(read_json(directory / CONFIG))
        return directory
    if name == "toy":
        raise CheckpointError(
            "The 'toy' has no files; use wavefront.load('toy'), or wavefront.models.toy.toy() "
            "for a model without a tokenizer."
        )
    hub_id = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    if directory is None or directory.exists() or not hub_id:
        known = (*built_in, "toy")
        own = ", or your own model as 'module:factory'" if factory else ""
        if factory and name.endswith(".py"):  # a file, where an importable name is needed
            own = f", or the function of your file that makes the model, as {name[:-3]}:NAME"
        raise CheckpointError(
            f"There is no model {name!r}{did_you_mean(name, known)}; give a built-in name "
            f"({', '.join(known)}), a folder that holds {CONFIG}, or a Hub id such as "
            f"'org/name'{own}."
        )
    if name.lower().endswith("gguf"):
        raise CheckpointError(
            f"{name} holds GGUF files, which cannot be loaded; give the Hub id of the same model "
            "in safetensors."
        )
    found = _fetch(name, (CONFIG, GENERATION, INDEX, *TEXT_FILES), revision, offline=offline)
    if check is not None:
        check(read_json(found / CONFIG))
    if not weights:
        return found
    shards = set(weight_map(found).values()) if (found / INDEX).is_file() else {WEIGHTS}
    return _fetch(name, shards, revision, offline=offline)


def _refuse_gguf(path: Path) -> None:
    """Raise if a path is a GGUF file, or a folder with no other weights."""
    if path.is_dir():
        known = any((path / name).is_file() for name in (WEIGHTS, INDEX))
        is_gguf = not known and any(file.suffix.lower() == GGUF for file in path.iterdir())
    else:
        is_gguf = path.suffix.lower() == GGUF
    if is_gguf:
        raise CheckpointError(
            f"{path} is in the GGUF format, which cannot be loaded; give the folder or the Hub id "
            "of the same model in safetensors."
        )


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
            f"huggingface_hub: {install_command('hub')}."
        ) from None
    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=list(files), local_files_only=offline
        )
    # The Hub's client and its network stack can raise anything; report all of it the same way.
    except Exception as error:
        if offline and type(error).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
            raise CheckpointError(
                f"{name!r} is not on this machine, and offline=True (--offline) forbids the "
                "download; leave it out once to fetch the model."
            ) from error
        reason = _reason(error)
        raise CheckpointError(
            f"{name!r} is not a local directory and could not be fetched from the Hub "
            f"(revision {revision or 'main'}{', offline' if offline else ''}): {reason}."
        ) from error
    return Path(found)


# What an exception of the Hub's client means. Its own messages have several lines and a URL.
REASONS = {
    "GatedRepoError": "it is gated; accept its terms on its page, and run `hf auth login`",
    "RepositoryNotFoundError": "there is no such repository, or it is private and needs "
    "`hf auth login`",
    "RevisionNotFoundError": "there is no such revision",
    "LocalEntryNotFoundError": "it is not on this machine, and the Hub cannot be reached",
    "OfflineModeIsEnabled": "it is not on this machine, and HF_HUB_OFFLINE is set",
    "ConnectionError": "the Hub cannot be reached",
    "ConnectError": "the Hub cannot be reached",
    "TimeoutException": "the Hub does not answer",
    "Timeout": "the Hub does not answer",
}


def _reason(error: Exception) -> str:
    """Return why a download failed, in a few words."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    known = next((REASONS[kind] for kind in kinds if kind in REASONS), "")
    if known:
        return known
    first = str(error).strip().partition("\n")[0]
    return shorten(first, 120, placeholder=" …").rstrip(".") or type(error).__name__


def read_json(file: Path, *, required: bool = True) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty object, unless it is required."""
    if not file.is_file():
        if not required:
            return {}
        raise CheckpointError(
            f"{file} is missing; a checkpoint needs {CONFIG} next to its weights."
        )
    check_link(file)
    limit = FILE_LIMITS.get(file.name, FILE_LIMIT)
    values = read_file.read_json(file, limit=limit, error=CheckpointError)
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} must hold a JSON object; fetch the file again.")
    return values


def read_text(file: Path) -> str:
    """Read a text file of a checkpoint."""
    check_link(file)
    limit = FILE_LIMITS.get(file.name, FILE_LIMIT)
    return read_file.read_text(file, limit=limit, error=CheckpointError)


def check_link(file: Path) -> None:
    """Raise if a file of a checkpoint is a link out of its folder, such as to a private file.

    The Hub's cache is accepted: its files are links to `models--org--name/blobs`.
    """
    target = file.resolve()
    if file.parent.resolve() in target.parents:
        return
    blobs = target.parent
    if blobs.name != "blobs" or not blobs.parent.name.startswith("models--"):
        raise CheckpointError(
            f"{file} is a link to a file outside its folder; copy the file into the folder."
        )


def weight_map(directory: Path) -> dict[str, str]:
    """Return the shard file of each tensor, from the index; each must be a plain file name."""
    index = directory / INDEX
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no 'weight_map'; fetch the file again.")
    for tensor, shard in shards.items():
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise CheckpointError(
                f"{index} maps tensor {quote(tensor)} to {quote(shard)}, which is not the name of "
                "a safetensors file in the same directory; do not trust this checkpoint."
            )
    if (count := len(set(shards.values()))) > SHARD_LIMIT:
        raise CheckpointError(f"{index} names {count} shards, more than {SHARD_LIMIT}.")
    return shards


def listed_ids(values: Mapping[str, Any], key: str, *, file: str = CONFIG) -> list[Any]:
    """Return the ids stored under a key: a single id, a list of ids, or none.

    Raises:
        CheckpointError: There are too many ids.

    The ids themselves are not checked.
    """
    value = values.get(key)
    listed: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if len(listed) > IDS_LIMIT:
        raise CheckpointError(f"{file}: {key} lists {len(listed)} ids, more than {IDS_LIMIT}.")
    return listed
