"""Read and write checkpoints in the published layout: safetensors and config.json.

Files are checked by their headers, before any weight is loaded; an error names the file or tensor.
Pickled weights are never opened.
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
# Part of the names of rotary tables; some files store them, but every model computes them.
COMPUTED = ".rotary_emb."


class Entry(NamedTuple):
    """One stored tensor, as the header of its file describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory and the headers of its weight files."""

    directory: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    entries: dict[str, Entry]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of most stored tensors."""
        kinds = [entry.dtype for entry in self.entries.values()]
        return FLOATS.get(max(set(kinds), key=kinds.count), torch.float32)

    def added_token(self, content: str) -> int | None:
        """Return the id of an added token from any of the tokenizer's files, or None."""
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
                f"The added tokens of {self.directory} have an unknown format; "
                "fetch the tokenizer's files again."
            )
        return found[0] if found else None


def open_checkpoint(
    path: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False
) -> Checkpoint:
    """Open a checkpoint by any name that `locate` accepts, without loading weights."""
    directory = locate(path, revision=revision, offline=offline)
    config = read_json(directory / CONFIG)
    generation = read_json(directory / GENERATION, required=False)
    return Checkpoint(directory, config, generation, _entries(directory))


def _entries(directory: Path) -> dict[str, Entry]:
    """Return the tensors of a checkpoint, in one file or in shards."""
    single = directory / WEIGHTS
    if single.is_file():
        return _header(single)
    if not (directory / INDEX).is_file():
        pickled = sorted(file.name for file in directory.iterdir() if file.suffix in PICKLES)
        if pickled:
            raise CheckpointError(
                f"{directory} has only pickled weights ({pickled[0]}), which can run code when "
                "opened; convert them to safetensors first."
            )
        raise CheckpointError(f"{directory} has no weights; it needs {WEIGHTS} or {INDEX}.")
    return _sharded(directory / INDEX, weight_map(directory))


def _sharded(index: Path, shards: Mapping[str, str]) -> dict[str, Entry]:
    """Return the tensors of all shards. Raise unless the index and the shards agree."""
    headers: dict[str, dict[str, Entry]] = {}
    for shard in sorted(set(shards.values())):
        file = index.parent / shard
        if not file.is_file():
            raise CheckpointError(f"{index} names {shard}, which is missing; fetch it.")
        headers[shard] = _header(file)
    stored = {(tensor, shard) for shard, header in headers.items() for tensor in header}
    missing = sorted(shards.items() - stored)
    extra = sorted(pair for pair in stored - shards.items() if COMPUTED not in pair[0])
    if missing or extra:
        tensor, shard = (missing or extra)[0]
        says, does = ("says", "does not") if missing else ("does not say", "does")
        raise CheckpointError(
            f"{index} {says} that {shard} holds {tensor!r}, which it {does}; "
            "index and shards are of different versions, so fetch all of them again."
        )
    return {tensor: headers[shard][tensor] for tensor, shard in shards.items()}


@contextmanager
def _open_tensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file. Raise `CheckpointError` if it is damaged."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} is cut short or is not a safetensors file ({error}); fetch it again."
        ) from None


def _header(file: Path) -> dict[str, Entry]:
    """Return the tensors that one file stores."""
    with _open_tensors(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {
            name: Entry(file, tuple(part.get_shape()), part.get_dtype())
            for name, part in slices.items()
        }


def check_entries(
    entries: Mapping[str, Entry], wanted: Mapping[str, Tensor], repeats: Mapping[str, str]
) -> None:
    """Raise unless the stored tensors are exactly those that the model needs.

    Args:
        entries: The stored tensors.
        wanted: The model's tensors, by published name.
        repeats: Names that may be stored in addition, with the tensor that each repeats.
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
        target = wanted.get(repeats.get(name, name))
        if target is None:
            raise CheckpointError(
                f"{entry.file} holds tensor {name!r}, which a model of this {CONFIG} does not "
                "have; the weights belong to another model."
            )
        if entry.shape != tuple(target.shape):
            raise CheckpointError(
                f"Tensor {name!r} in {entry.file} has shape {list(entry.shape)}, but {CONFIG} "
                f"asks for {list(target.shape)}; they belong to different models."
            )
        if entry.dtype not in FLOATS:
            raise CheckpointError(
                f"Tensor {name!r} in {entry.file} is stored as {entry.dtype}; only "
                f"{', '.join(FLOATS)} are read, so use an unquantised checkpoint."
            )


def read_tensors(entries: Mapping[str, Entry], into: Mapping[str, Tensor]) -> None:
    """Copy each stored tensor into the model; only one is in memory in addition.

    NaN and infinity are refused here, because they need not reach the logits. The fused attention
    on a CPU treats a NaN score as zero, so a damaged model would decode without any error.
    """
    finite: dict[str, Tensor] = {}
    for file in sorted({entries[name].file for name in into}):
        with _open_tensors(file) as tensors:
            for name in (name for name in into if entries[name].file == file):
                into[name].copy_(tensors.get_tensor(name))
                # Minimum and maximum need one pass and no temporary; both are NaN if a value is.
                finite[name] = torch.stack(into[name].aminmax()).isfinite().all()
    # Checked once, after all copies have started: on a GPU every check waits for the device.
    for name, is_finite in zip(finite, torch.stack(list(finite.values())).tolist(), strict=True):
        if not is_finite:
            raise CheckpointError(
                f"Tensor {name!r} in {entries[name].file} holds NaN, infinity or a number too "
                f"large for {into[name].dtype}; fetch the file again, or load with a wider dtype."
            )


def check_repeats(entries: Mapping[str, Entry], repeats: Mapping[str, str]) -> None:
    """Raise if a tensor that should repeat another, such as a tied head, differs from it."""
    for name, original in repeats.items():
        if name in entries and not (_read(entries, name) == _read(entries, original)).all():
            raise CheckpointError(
                f"Tensor {name!r} in {entries[name].file} differs from {original!r}, but {CONFIG} "
                "says that the two are tied; correct the key for tied weights."
            )


def _read(entries: Mapping[str, Entry], name: str) -> Tensor:
    """Return one stored tensor."""
    with _open_tensors(entries[name].file) as tensors:
        return tensors.get_tensor(name)


def write_checkpoint(
    directory: str | os.PathLike[str], config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json and model.safetensors; an interrupted write keeps the old files."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{WEIGHTS}.partial"
    save_file(dict(tensors), partial, metadata={"format": "pt"})
    partial.replace(folder / WEIGHTS)
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(folder / CONFIG)
