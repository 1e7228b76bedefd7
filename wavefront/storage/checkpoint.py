"""Checkpoints as published: safetensors and config.json, read and written.

Everything that can be wrong with the files is told here, in one sentence that names the file or
tensor; it is told from the headers, before memory is spent. Pickled weights are never opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wavefront.core.errors import CheckpointError
from wavefront.storage.hub import CONFIG, GENERATION, INDEX, WEIGHTS, locate, read_json, weight_map

FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Part of the names of rotary tables, which some files store and every model computes.
COMPUTED = ".rotary_emb."


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
        files = ("added_tokens.json", "tokenizer_config.json", "tokenizer.json")
        plain, settings, tokenizer = (
            read_json(self.directory / file, required=False) for file in files
        )
        try:
            decoder = (settings.get("added_tokens_decoder") or {}).items()
            found = [plain[content]] if content in plain else []
            found += [int(number) for number, token in decoder if token["content"] == content]
            listed = tokenizer.get("added_tokens") or ()
            found += [token["id"] for token in listed if token["content"] == content]
        except (AttributeError, LookupError, TypeError, ValueError):
            found = [None]
        if any(type(number) is not int for number in found):
            raise CheckpointError(
                f"The added tokens of {self.directory} are not as we know them; "
                "fetch the tokenizer's files again."
            )
        return found[0] if found else None


def open_checkpoint(
    path: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False
) -> Checkpoint:
    """A checkpoint by any name that `locate` takes; no weight is read yet."""
    directory = locate(path, revision=revision, offline=offline)
    config = read_json(directory / CONFIG)
    generation = read_json(directory / GENERATION, required=False)
    return Checkpoint(directory, config, generation, _entries(directory))


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
    return _sharded(directory / INDEX, weight_map(directory))


def _sharded(index: Path, shards: Mapping[str, str]) -> dict[str, Entry]:
    """The entries of all shards; each tensor must be where the index says, and nowhere else."""
    headers: dict[str, dict[str, Entry]] = {}
    for shard in sorted(set(shards.values())):
        file = index.parent / shard
        if not file.is_file():
            raise CheckpointError(f"{index} names {shard}, which is missing; fetch it.")
        headers[shard] = _header(file)
    stored = {(tensor, shard) for shard, header in headers.items() for tensor in header}
    lost = sorted(shards.items() - stored)
    stray = sorted(place for place in stored - shards.items() if COMPUTED not in place[0])
    if lost or stray:
        tensor, shard = (lost or stray)[0]
        says, does = ("says", "does not") if lost else ("does not say", "does")
        raise CheckpointError(
            f"{index} {says} that {shard} holds {tensor!r}, which it {does}; "
            "index and shards are of different versions, so fetch all of them again."
        )
    return {tensor: headers[shard][tensor] for tensor, shard in shards.items()}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
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
    entries: Mapping[str, Entry], wanted: Mapping[str, Tensor], repeats: Mapping[str, str]
) -> None:
    """Refuse a checkpoint whose tensors are not exactly those the model has room for.

    `repeats` maps a name that may be stored besides to the wanted tensor that it then repeats.
    """
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise CheckpointError(
            f"Tensor {missing[0]!r} is missing from the weights ({len(missing)} missing in all); "
            f"the files are incomplete or {CONFIG} describes another model."
        )
    for name, entry in entries.items():
        if COMPUTED in name:
            continue
        room = wanted.get(repeats.get(name, name))
        if room is None:
            raise CheckpointError(
                f"{entry.file} holds tensor {name!r}, which a model of this {CONFIG} does not "
                "have; the weights belong to another model."
            )
        if entry.shape != tuple(room.shape):
            raise CheckpointError(
                f"Tensor {name!r} in {entry.file} has shape {list(entry.shape)}, but {CONFIG} "
                f"asks for {list(room.shape)}; they belong to different models."
            )
        if entry.dtype not in FLOATS:
            raise CheckpointError(
                f"Tensor {name!r} in {entry.file} is stored as {entry.dtype}; only "
                f"{', '.join(FLOATS)} are read, so use an unquantised checkpoint."
            )


def read_tensors(entries: Mapping[str, Entry], into: Mapping[str, Tensor]) -> None:
    """Copy each stored tensor straight into its place; at most one is held besides.

    NaN and infinities are refused here, because they need not reach the logits: the fused attention
    of a CPU takes a NaN score for zero, and a damaged model would decode as if it were whole.
    """
    finite: dict[str, Tensor] = {}
    for file in sorted({entries[name].file for name in into}):
        with _opened(file) as tensors:
            for name in (name for name in into if entries[name].file == file):
                into[name].copy_(tensors.get_tensor(name))
                # The extremes tell in one pass without a temporary; NaN is passed on as either.
                finite[name] = torch.stack(into[name].aminmax()).isfinite().all()
    # Looked at once, after all copies are under way: on a GPU every look waits for the device.
    for name, whole in zip(finite, torch.stack(list(finite.values())).tolist(), strict=True):
        if not whole:
            raise CheckpointError(
                f"Tensor {name!r} in {entries[name].file} holds NaN, infinity or a number too "
                f"large for {into[name].dtype}; fetch the file again, or load with a wider dtype."
            )


def check_repeats(entries: Mapping[str, Entry], repeats: Mapping[str, str]) -> None:
    """Refuse a tensor that should repeat another, as a tied head does, and is different."""
    for name, original in repeats.items():
        if name in entries and not (_read(entries, name) == _read(entries, original)).all():
            raise CheckpointError(
                f"Tensor {name!r} in {entries[name].file} differs from {original!r}, but {CONFIG} "
                "says that the two are tied; correct the key for tied weights."
            )


def _read(entries: Mapping[str, Entry], name: str) -> Tensor:
    with _opened(entries[name].file) as tensors:
        return tensors.get_tensor(name)


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
