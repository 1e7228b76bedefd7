"""Load models from checkpoints and save them.

The checkpoint's `model_type` names a module in `families/`, which holds everything that the loader
needs to know about a family. `ALIASES` maps other values of `model_type` to a family.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from typing import Any

import torch
from torch import Tensor

from wavefront.core.errors import CheckpointError, OptionError, did_you_mean
from wavefront.models.protocol import Model, Publishable
from wavefront.storage.checkpoint import (
    check_entries,
    check_repeats,
    open_checkpoint,
    read_tensors,
    write_checkpoint,
)

FAMILIES = "wavefront.models.families"
# A `model_type` that has the architecture of a family under another name.
ALIASES = {"qwen2": "dream"}
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


def load_model(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Model:
    """Load a checkpoint, ready to run.

    Args:
        path: A built-in name, a local directory, or a Hub id such as `org/name`.
        device: Where to load it; by default CUDA, then MPS, then the CPU.
        dtype: The dtype of the weights. By default, CUDA uses the stored half precision or
            bfloat16, and other devices use float32.
        revision: The Hub revision; by default `main`.
        offline: Use only files that are already in the Hub's cache, as HF_HUB_OFFLINE=1 does.

    Raises:
        CheckpointError: The checkpoint is missing, damaged or of an unsupported architecture.
        OptionError: The device or dtype is unknown or not available.
    """
    target = resolve_device(device)
    precision = resolve_dtype(dtype)
    files = open_checkpoint(path, revision=revision, offline=offline)
    if files.config.get("model_type") is None:
        raise CheckpointError(
            f"{files.directory / 'config.json'} has no 'model_type', which names the family; "
            "add the key from the published config."
        )
    family = family_module(str(files.config["model_type"]))
    settings = dict(files.config)
    if settings.get("mask_token_id") is None:
        settings["mask_token_id"] = files.added_token(family.MASK_TOKEN)
    settings["eos_token_id"] = _merge_ids(settings, files.generation, key="eos_token_id")
    model = family.Net(family.Config.from_json(settings))
    check_entries(files.entries, model.published_weights(), model.repeats())
    if precision is None:
        precision = _default_dtype(target, files.dtype)
    model = model.to(precision).to_empty(device=target)
    read_tensors(files.entries, model.published_weights())
    check_repeats(files.entries, model.repeats())
    return model.eval()


def published_state_dict(model: Model) -> dict[str, Tensor]:
    """Return every weight under its published name, as views that share the model's memory."""
    if not isinstance(model, Publishable):
        raise OptionError(
            f"{type(model).__name__} has no published weight names, so it cannot be saved."
        )
    return model.published_weights()


def save_checkpoint(
    model: Model,
    directory: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
) -> None:
    """Write a model in its family's published layout, in its own dtype unless `dtype` is given."""
    precision = resolve_dtype(dtype) or model.dtype
    # Copy: the file format refuses views that share memory, and fused matrices give such views.
    tensors = {
        name: part.to("cpu", precision, copy=True).contiguous()
        for name, part in published_state_dict(model).items()
    }
    config = model.config.to_json() if isinstance(model, Publishable) else {}
    name = str(precision).removeprefix("torch.")
    write_checkpoint(directory, config | {"torch_dtype": name}, tensors)


def families() -> list[str]:
    """Return the names of all families."""
    found = pkgutil.iter_modules(importlib.import_module(FAMILIES).__path__)
    return sorted(entry.name for entry in found)


def family_module(model_type: str) -> Any:
    """Return the module for a `model_type`: it has `Config`, `Net`, `MASK_TOKEN` and `TOY`."""
    name = model_type.lower()
    name = ALIASES.get(name, name)
    if name not in families():
        known = sorted([*families(), *ALIASES])
        raise CheckpointError(
            f"config.json says model_type {model_type!r}, which no family supports; "
            f"known: {', '.join(known)}{did_you_mean(name, known)}."
        )
    return importlib.import_module(f"{FAMILIES}.{name}")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device if it is available; by default the best available one."""
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
            f"{did_you_mean(str(device), known)}.",
            option="device",
            value=device,
        ) from None
    present = torch.cuda.device_count()
    if chosen.type == "cuda" and (chosen.index or 0) >= present:
        raise OptionError(
            f"Device {str(chosen)!r} was requested, but torch sees {present} CUDA devices; "
            "use device='cpu', or install a driver and a CUDA build of torch.",
            option="device",
            value=device,
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError(
            "Device 'mps' was requested, but it is not available; use device='cpu'.",
            option="device",
            value=device,
        )
    return chosen


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the requested floating dtype, or None for "auto"."""
    if dtype is None or dtype == "auto":
        return None
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    name = str(dtype)
    if name not in DTYPES:
        raise OptionError(
            f"There is no dtype {name!r} for a model; "
            f"known: auto, {', '.join(DTYPES)}{did_you_mean(name, DTYPES)}.",
            option="dtype",
            value=dtype,
        )
    return DTYPES[name]


def _default_dtype(device: torch.device, stored: torch.dtype) -> torch.dtype:
    """Return the dtype to load in when none is requested."""
    if device.type != "cuda":
        return torch.float32
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16


def _merge_ids(*settings: dict[str, Any], key: str) -> list[Any]:
    """Return the ids under `key` in all files, each once, in the order found."""
    found: list[Any] = []
    for values in settings:
        ids = values.get(key)
        listed = ids if isinstance(ids, list) else [ids]
        found += [number for number in listed if number is not None and number not in found]
    return found
