"""Checkpoints as published: finding them on disk or on the hub, reading and writing safetensors.

Everything that can be wrong with the files is told here, in one sentence that names the file or
tensor; it is told from the headers, before memory is spent. Pickled weights are never opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wavefront.errors import CheckpointError, MissingExtraError

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
FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class Entry(NamedTuple):
    """One stored tensor, as its file's header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """A directory whose files were found and whose headers were read."""

    directory: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    entries: dict[str, Entry]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype most tensors are stored in."""
        kinds = [entry.dtype for entry in self.entries.values()]
        return FLOATS.get(max(set(kinds), key=kinds.count), torch.float32)

    def added_token(self, content: str) -> int | None:
        """The id of a token added to the tokenizer, wherever the tokenizer's files record it."""
        listed = _read_json(self.directory / "added_tokens.json", required=False)
        if content in listed:
            return listed[content]
        settings = _read_json(self.directory / "tokenizer_config.json", required=False)
        for number, token in settings.get("added_tokens_decoder", {}).items():
            if token["content"] == content:
                return int(number)
        tokenizer = _read_json(self.directory / "tokenizer.json", required=False)
        for token in tokenizer.get("added_tokens", ()):
            if token["content"] == content:
                return token["id"]
        return None


def open_checkpoint(
    path: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False
) -> Checkpoint:
    """A local directory, or a hub id such as `org/name`; no weight is read yet."""
    directory = locate(path, revision=revision, offline=offline)
    config = _read_json(directory / CONFIG)
    generation = _read_json(directory / GENERATION, required=False)
    return Checkpoint(directory, config, generation, _entries(directory))


def locate(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    weights: bool = True,
) -> Path:
    """The local directory of a checkpoint; fetched when `path` is a hub id and not a folder."""
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    name = str(path)
    if directory.exists() or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise CheckpointError(
            f"{name!r} is not a directory; give a folder that holds {CONFIG}, "
            "or a hub id such as 'org/name'."
        )
    found = _fetch(name, (CONFIG, GENERATION, INDEX, *TEXT_FILES), revision, offline=offline)
    if not weights:
        return found
    shards = set(_weight_map(found).values()) if (found / INDEX).is_file() else {WEIGHTS}
    return _fetch(name, shards, revision, offline=offline)


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
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"{name!r} is not a directory here and could not be fetched from the hub "
            f"(revision {revision or 'main'}{', offline' if offline else ''}): {reason}."
        ) from error
    return Path(found)


def _read_json(file: Path, *, required: bool = True) -> dict[str, Any]:
    if not file.is_file():
        if not required:
            return {}
        raise CheckpointError(f"{file} is missing; a checkpoint needs {CONFIG} beside its weights.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); fetch the file again.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds no JSON object; fetch the file again.")
    return values


def _weight_map(directory: Path) -> dict[str, str]:
    """Tensor name -> shard file name, from the index; a shard is a plain name in the directory."""
    index = directory / INDEX
    shards = _read_json(index).get("weight_map")
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


def _entries(directory: Path) -> dict[str, Entry]:
    single = directory / WEIGHTS
    if single.is_file():
        return _header(single)
    if not (directory / INDEX).is_file():
        pickled = sorted(file.name for file in directory.iterdir() if file.suffix in PICKLES)
        if pickled:
            raise CheckpointError(
                f"{directory} has pickled weights only ({pickled[0]}), which can run code when "
                "opened: safetensors only, so convert them to safetensors first."
            )
        raise CheckpointError(
            f"{directory} has no weights: neither {WEIGHTS} nor {INDEX} is there, and nothing "
            "else is read."
        )
    shards = _weight_map(directory)
    headers: dict[str, dict[str, Entry]] = {}
    for shard in sorted(set(shards.values())):
        if not (directory / shard).is_file():
            raise CheckpointError(f"{directory / INDEX} names {shard}, which is missing; fetch it.")
        headers[shard] = _header(directory / shard)
    for tensor, shard in shards.items():
        if tensor not in headers[shard]:
            raise CheckpointError(
                f"{directory / INDEX} says that {shard} holds {tensor!r}, which it does not; "
                "index and shards are of different versions, so fetch all of them again."
            )
    return {tensor: headers[shard][tensor] for tensor, shard in shards.items()}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is cut short or is not a safetensors file ({error}); fetch it again."
        ) from None


def _header(file: Path) -> dict[str, Entry]:
    with _opened(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {
            name: Entry(file, tuple(part.get_shape()), part.get_dtype())
            for name, part in slices.items()
        }


def check_entries(
    entries: Mapping[str, Entry], wanted: Mapping[str, Tensor], ignores: Callable[[str], bool]
) -> None:
    """Refuse a checkpoint whose tensors are not exactly those the model has room for."""
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise CheckpointError(
            f"Tensor {missing[0]!r} is missing from the weights ({len(missing)} missing in all); "
            f"the files are incomplete or {CONFIG} describes another model."
        )
    for name, entry in entries.items():
        if name not in wanted:
            if ignores(name):
                continue
            raise CheckpointError(
                f"{entry.file} holds tensor {name!r}, which a model of this {CONFIG} does not "
                "have; the weights belong to another model."
            )
        if entry.shape != tuple(wanted[name].shape):
            raise CheckpointError(
                f"Tensor {name!r} in {entry.file} has shape {list(entry.shape)}, but {CONFIG} "
                f"asks for {list(wanted[name].shape)}; they belong to different models."
            )
        if entry.dtype not in FLOATS:
            raise CheckpointError(
                f"Tensor {name!r} in {entry.file} is stored as {entry.dtype}; only "
                f"{', '.join(FLOATS)} are read, so use an unquantised checkpoint."
            )


def read_tensors(entries: Mapping[str, Entry], into: Mapping[str, Tensor]) -> None:
    """Copy each stored tensor straight into its place; at most one is held besides."""
    for file in sorted({entries[name].file for name in into}):
        with _opened(file) as tensors:
            for name in (name for name in into if entries[name].file == file):
                into[name].copy_(tensors.get_tensor(name))


def write_checkpoint(
    directory: str | os.PathLike[str], config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json and model.safetensors; an interrupted write leaves the old files whole."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{WEIGHTS}.partial"
    save_file(dict(tensors), partial, metadata={"format": "pt"})
    partial.replace(folder / WEIGHTS)
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(folder / CONFIG)
