"""Read and write checkpoints in the published layout: safetensors and config.json.

Files are checked by their headers, before any weight is loaded; an error names the file or tensor.
Pickled weights are never opened.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wavefront.core.errors import CheckpointError, quote
from wavefront.storage.hub import (
    CONFIG,
    GENERATION,
    INDEX,
    WEIGHTS,
    check_link,
    locate,
    read_json,
    weight_map,
)
from wavefront.storage.read_file import MIB, open_regular
from wavefront.storage.write_file import replacing, write_text

FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
# Suffixes of the tensors that belong to a quantised tensor; `models.quantize` defines them.
SCALE, MINIMUM = ".scale", ".minimum"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Part of the names of rotary tables; some files store them, but every model computes them.
COMPUTED = ".rotary_emb."
HEADER_LIMIT = 16 * MIB  # bytes of the header of one safetensors file


class TensorEntry(NamedTuple):
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
    entries: dict[str, TensorEntry]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of most tensors that are not quantised."""
        plain = (name for name in self.entries if not name.endswith((SCALE, MINIMUM)))
        kinds = [kind for name in plain if (kind := self.entries[name].dtype) in FLOATS]
        return FLOATS[max(set(kinds), key=kinds.count)] if kinds else torch.float32

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

    def mask_token(self) -> str | None:
        """Return the text of the tokenizer's mask token, or None."""
        settings = read_json(self.directory / "tokenizer_config.json", required=False)
        token = settings.get("mask_token")
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) else None

    def token_id(self, content: str) -> int | None:
        """Return the id of a token in the tokenizer's files: an added token, or any other."""
        added = self.added_token(content)
        if added is not None:
            return added
        model = read_json(self.directory / "tokenizer.json", required=False).get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if vocabulary is None:
            vocabulary = read_json(self.directory / "vocab.json", required=False)
        if isinstance(vocabulary, list):  # a Unigram model lists pairs of token and score
            tokens = [pair[0] for pair in vocabulary if isinstance(pair, list) and pair]
            return tokens.index(content) if content in tokens else None
        found = vocabulary.get(content) if isinstance(vocabulary, dict) else None
        return found if type(found) is int else None


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> Checkpoint:
    """Open a checkpoint by any name that `locate` accepts, without loading weights.

    The arguments are those of `locate`.
    """
    directory = locate(path, revision=revision, offline=offline, check=check)
    config = read_json(directory / CONFIG)
    generation = read_json(directory / GENERATION, required=False)
    return Checkpoint(directory, config, generation, _entries(directory))


def _entries(directory: Path) -> dict[str, TensorEntry]:
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


def _sharded(index: Path, shards: Mapping[str, str]) -> dict[str, TensorEntry]:
    """Return the tensors of all shards. Raise unless the index and the shards agree."""
    headers: dict[str, dict[str, TensorEntry]] = {}
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
            f"{index} {says} that {shard} holds {quote(tensor)}, which it {does}; "
            "the index and the shards have different versions, so fetch all of them again."
        )
    return {tensor: headers[shard][tensor] for tensor, shard in shards.items()}


@contextmanager
def _open_tensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file. Raise `CheckpointError` if it is damaged."""
    try:
        try:
            opened = safe_open(file, framework="pt")
        except RuntimeError as error:  # torch refuses to map a file larger than the memory
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{file} cannot be opened ({reason}).") from None
        with opened as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{file} is cut short or is not a safetensors file ({reason}); fetch it again."
        ) from None


def _header(file: Path) -> dict[str, TensorEntry]:
    """Return the tensors that one file stores.

    The library checks that the tensors lie one after the other and fill the file.
    """
    check_link(file)
    with open_regular(file, error=CheckpointError) as handle:
        size = int.from_bytes(handle.read(8), "little")
    if size > HEADER_LIMIT:
        raise CheckpointError(
            f"{file} is not a safetensors file: its header would have {size} bytes; fetch it again."
        )
    with _open_tensors(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {
            name: TensorEntry(file, tuple(part.get_shape()), part.get_dtype())
            for name, part in slices.items()
        }


class HasShape(Protocol):
    """A weight of a model, quantised or not."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def check_entries(
    entries: Mapping[str, TensorEntry], wanted: Mapping[str, HasShape], repeats: Mapping[str, str]
) -> None:
    """Raise unless the stored tensors are exactly those that the model needs.

    Args:
        entries: The stored tensors.
        wanted: The model's weights, by published name.
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
                f"{entry.file} holds tensor {quote(name)}, which {CONFIG} does not describe; "
                "the weights belong to another model."
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


def stream_tensors(
    entries: Mapping[str, TensorEntry], names: Iterable[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the named tensors one by one, file by file, so that only one is in memory."""
    wanted = list(names)
    for file in sorted({entries[name].file for name in wanted}):
        with _open_tensors(file) as tensors:
            for name in (name for name in wanted if entries[name].file == file):
                yield name, tensors.get_tensor(name)


def check_finite(entries: Mapping[str, TensorEntry], read: Mapping[str, Tensor]) -> None:
    """Raise if a tensor of the model holds NaN or infinity after it was read.

    These may not show in the logits. The fused attention on a CPU treats a NaN score as zero, so a
    damaged model would decode without any error.

    Args:
        entries: The stored tensors, for their files.
        read: The model's tensors, by published name; the scales of a quantised one.
    """
    # Minimum and maximum need one pass and no temporary; both are NaN if a value is.
    found = [torch.stack(part.aminmax()).isfinite().all() for part in read.values()]
    # Compared once: on a GPU every comparison waits for the device.
    for (name, part), finite in zip(read.items(), torch.stack(found).tolist(), strict=True):
        if not finite:
            raise CheckpointError(
                f"Tensor {name!r} in {entries[name].file} holds NaN, infinity or a number too "
                f"large for {part.dtype}; fetch the file again, or load with a wider dtype."
            )


def check_repeats(entries: Mapping[str, TensorEntry], repeats: Mapping[str, str]) -> None:
    """Raise if a tensor that should repeat another, such as a tied head, differs from it."""
    for name, original in repeats.items():
        if (
            name in entries
            and not (read_tensor(entries, name) == read_tensor(entries, original)).all()
        ):
            raise CheckpointError(
                f"Tensor {name!r} in {entries[name].file} differs from {original!r}, but {CONFIG} "
                "says that the two are tied; correct the key for tied weights."
            )


def read_tensor(entries: Mapping[str, TensorEntry], name: str) -> Tensor:
    """Return one stored tensor as it is."""
    if name not in entries:
        raise CheckpointError(f"Tensor {name!r} is missing from the weights; fetch them again.")
    with _open_tensors(entries[name].file) as tensors:
        return tensors.get_tensor(name)


def write_checkpoint(
    directory: str | os.PathLike[str], config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json and model.safetensors; an interrupted write keeps the old files.

    Raises:
        CheckpointError: The weights cannot be written, for example because the disk is full.
    """
    folder = Path(directory)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS, error=CheckpointError) as part:
        try:
            save_file(dict(tensors), part, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(errno.EIO, " ".join(str(error).split())[:200]) from None
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    write_text(folder / CONFIG, text, error=CheckpointError)
