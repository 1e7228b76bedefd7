"""What a language model is to the rest of the package, and how one is loaded and saved.

The families stand on the shelf `models/`, found by the checkpoint's `model_type`: nothing outside
that folder knows their names or their differences.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from wavefront.core.errors import CheckpointError, OptionError, did_you_mean
from wavefront.storage.checkpoint import (
    check_entries,
    check_repeats,
    open_checkpoint,
    read_tensors,
    write_checkpoint,
)

FAMILIES = "wavefront.models.families"
# Checkpoints that have a family's shape under another name.
ALSO = {"qwen2": "dream"}
DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp64": torch.float64,
    "float64": torch.float64,
}


class KV(NamedTuple):
    """Stored keys and values, one (B, Hkv, L, head_dim) buffer of each per layer.

    Separate tensors rather than one, so that a compiled pass which writes one need not copy all.
    They are written in place by `hidden`, and by nothing else.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class Model(Protocol):
    """A bidirectional model over a canvas of places; rows never influence each other.

    One that computes whole canvases only says so by `windows = False`.
    """

    family: str
    vocab_size: int
    mask_id: int
    pad_id: int
    stop_ids: tuple[int, ...]  # end of sequence first; a tokenizer may add its end of turn
    max_length: int

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def hidden(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor,
        *,
        window: Tensor | None = None,
        kv: KV | None = None,
    ) -> Tensor:
        """(B, Q, D) hidden states such that `head` of [b, q] describes the token AT place at[b, q].

        tokens (B, L) long; attend (B, L) bool, the real places, None when all are; at (B, Q) long.
        With kv alone the whole canvas is computed and kv filled. With kv and window (B, W) long,
        only the window's places are computed and written to kv, and all others are read from it;
        the window must hold every place of `at`, and may hold a place twice. With a window alone
        its places see one another and nothing else; it holds each once, and all that `at` is read
        from.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """(..., V) logits in the model's dtype, as trained: the mask token is not forbidden here.

        Apart from `hidden`, so that logits can be reduced in chunks and never exist all at once.
        """
        ...

    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """(B, L, V): the published model's own output, unshifted, the mask token untouched."""
        ...

    def new_kv(self, batch: int, length: int) -> KV: ...


@runtime_checkable
class Publishable(Protocol):
    """A model that can name its weights as its family publishes them."""

    config: Any

    def published(self) -> dict[str, Tensor]: ...


def load_model(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Model:
    """A checkpoint, ready to run: a built-in name, a local directory, or a hub id like `org/name`.

    On CUDA in the stored half precision, or bfloat16; elsewhere in float32. With `offline`, or
    HF_HUB_OFFLINE=1, only what the hub's cache already holds is used.
    """
    target = resolve_device(device)
    precision = resolve_dtype(dtype)
    files = open_checkpoint(path, revision=revision, offline=offline)
    if files.config.get("model_type") is None:
        raise CheckpointError(
            f"{files.directory / 'config.json'} has no 'model_type', which names the family; "
            "add the key from the published config."
        )
    shelf = family_module(str(files.config["model_type"]))
    settings = dict(files.config)
    if settings.get("mask_token_id") is None:
        settings["mask_token_id"] = files.added_token(shelf.MASK_TOKEN)
    settings["eos_token_id"] = _merged(settings, files.generation, key="eos_token_id")
    model = shelf.Net(shelf.Config.from_json(settings))
    check_entries(files.entries, model.published(), model.repeats())
    if precision is None:
        precision = _default_dtype(target, files.dtype)
    model = model.to(precision).to_empty(device=target)
    read_tensors(files.entries, model.published())
    check_repeats(files.entries, model.repeats())
    return model.eval()


def published_state_dict(model: Model) -> dict[str, Tensor]:
    """Every weight under its published name, as views that share the model's memory."""
    if not isinstance(model, Publishable):
        raise OptionError(f"{type(model).__name__} has no published weight names to save under.")
    return model.published()


def save_checkpoint(
    model: Model,
    directory: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
) -> None:
    """Write a model as its family publishes it; stored in its own dtype unless another is asked."""
    precision = resolve_dtype(dtype) or model.dtype
    # Copies: the file format refuses views that share memory, which fused matrices are made of.
    tensors = {
        name: part.to("cpu", precision, copy=True).contiguous()
        for name, part in published_state_dict(model).items()
    }
    config = model.config.to_json() if isinstance(model, Publishable) else {}
    name = str(precision).removeprefix("torch.")
    write_checkpoint(directory, config | {"torch_dtype": name}, tensors)


def families() -> list[str]:
    """The names of the shelf's families."""
    found = pkgutil.iter_modules(importlib.import_module(FAMILIES).__path__)
    return sorted(entry.name for entry in found)


def family_module(model_type: str) -> Any:
    """The shelf's file for a `model_type`: its `Config`, `Net`, `MASK_TOKEN` and `TOY`."""
    name = model_type.lower()
    name = ALSO.get(name, name)
    if name not in families():
        taken = sorted([*families(), *ALSO])
        raise CheckpointError(
            f"config.json says model_type {model_type!r}, which no family takes; "
            f"known: {', '.join(taken)}{did_you_mean(name, taken)}."
        )
    return importlib.import_module(f"{FAMILIES}.{name}")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, checked to be there; by default the best there is."""
    if device is None or device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        known = ("cpu", "cuda", "mps")
        raise OptionError(
            f"Device {device!r} is unknown; use cpu, cuda, cuda:N or mps"
            f"{did_you_mean(str(device), known)}."
        ) from None
    present = torch.cuda.device_count()
    if chosen.type == "cuda" and (chosen.index or 0) >= present:
        raise OptionError(
            f"Device {str(chosen)!r} was asked for, but torch sees {present} CUDA devices; "
            "use device='cpu', or install a driver and a CUDA build of torch."
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError("Device 'mps' was asked for, but there is none here; use device='cpu'.")
    return chosen


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The floating dtype asked for; None when the choice is left to us."""
    if dtype is None or dtype == "auto":
        return None
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    name = str(dtype)
    if name not in DTYPES:
        raise OptionError(
            f"There is no dtype {name!r} for a model; "
            f"known: auto, {', '.join(DTYPES)}{did_you_mean(name, DTYPES)}."
        )
    return DTYPES[name]


def _default_dtype(device: torch.device, stored: torch.dtype) -> torch.dtype:
    if device.type != "cuda":
        return torch.float32
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16


def _merged(*settings: dict[str, Any], key: str) -> list[Any]:
    """The ids under `key` in each file, each once, in the order found; one id or a list of them."""
    found: list[Any] = []
    for values in settings:
        ids = values.get(key)
        listed = ids if isinstance(ids, list) else [ids]
        found += [number for number in listed if number is not None and number not in found]
    return found
