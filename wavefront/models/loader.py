"""Load models from checkpoints and save them.

Each module in `families/` holds everything that the loader needs to know about a family. A family
is found by the checkpoint's `architectures`, and by its `model_type` if they name no family.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wavefront.core.errors import (
    CheckpointError,
    OptionError,
    check_choice,
    check_int,
    did_you_mean,
    quote,
)
from wavefront.models.architecture import SIZE_LIMIT, Architecture
from wavefront.models.experts import ExpertWeights
from wavefront.models.protocol import Model, Publishable
from wavefront.models.quantize import (
    KEY,
    StoredQuantization,
    check_kind,
    logical_entries,
    quantization_of,
    quantize_tensors,
    quantized_parts,
    read_weights,
    replace_linears,
    stored_quantization,
    weight_bytes,
)
from wavefront.models.transformer import Names, Transformer
from wavefront.storage.checkpoint import (
    Checkpoint,
    TensorEntry,
    check_entries,
    check_repeats,
    open_checkpoint,
    write_checkpoint,
)
from wavefront.storage.hub import GENERATION, listed_ids

FAMILIES = "wavefront.models.families"
ATTENTIONS = ("bidirectional", "block")
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
    mask_id: int | None = None,
    attention: str | None = None,
    block_size: int | None = None,
    quantize: str | None = None,
) -> Model:
    """Load a checkpoint, ready to run.

    Args:
        path: A built-in name, a local directory, or a Hub id such as `org/name`.
        device: Where to load it; by default CUDA, then MPS, then the CPU.
        dtype: The dtype of the weights. By default, CUDA uses the stored half precision or
            bfloat16, and other devices use float32.
        revision: The Hub revision; by default `main`.
        offline: Use only files that are already in the Hub's cache, as HF_HUB_OFFLINE=1 does.
        mask_id: The id of the mask token. By default it comes from config.json, from the
            tokenizer's mask token, or from the family's mask token in the vocabulary.
        attention: "bidirectional" or "block". The default depends on the family.
        block_size: The number of positions in an attention block. By default it comes from
            config.json or the family.
        quantize: Quantise the linear layers: "int8", "fp8" or "int4". Each tensor is quantised as
            it is read, so the unquantised model never exists. By default, a checkpoint that was
            saved quantised stays so, and any other is not quantised.

    Raises:
        CheckpointError: The checkpoint is missing, damaged or of an unsupported architecture, or
            its weights do not fit into the memory.
        OptionError: The device or dtype is unknown or not available, the quantisation differs from
            the one that the checkpoint was saved with, or another option is wrong.
    """
    target = resolve_device(device)
    precision = resolve_dtype(dtype)
    check_kind(quantize)
    files = open_checkpoint(path, revision=revision, offline=offline, check=find_family)
    family = find_family(files.config)
    settings = dict(files.config)
    settings["mask_token_id"] = find_mask_id(files, family, given=mask_id)
    found = [
        *listed_ids(settings, "eos_token_id"),
        *listed_ids(files.generation, "eos_token_id", file=GENERATION),
    ]
    settings["eos_token_id"] = [
        number for place, number in enumerate(found) if number not in found[:place]
    ]
    config = set_attention(
        family.Config.from_json(settings), family, attention=attention, block_size=block_size
    )
    kind = _running_kind(stored_quantization(files.config), quantize)
    model = empty_model(files, family, config)
    if precision is None:
        precision = _default_dtype(target, files.dtype)
    check_memory(model, precision, kind, device=target)
    model = model.to(precision)
    if kind is not None:
        replace_linears(model, kind)
    model = model.to_empty(device=target)
    read_weights(files.entries, model.weights())
    check_repeats(files.entries, model.repeats())
    return model.eval()


def empty_model(files: Checkpoint, family: Any, config: Architecture) -> Any:
    """Build the model of a checkpoint without its numbers, if the stored weights fit it.

    Raises:
        CheckpointError: The weights belong to another model. The sizes are compared first.
    """
    check_sizes(files.entries, config, family.Net.names)
    model = family.Net(config)
    check_weights(files, model)
    return model


def find_mask_id(files: Checkpoint, family: Any, *, given: int | None) -> Any:
    """Return the id of the mask token, from the first source that has it.

    Args:
        files: The checkpoint.
        family: The family's module, with the text of its mask token.
        given: The id that the user gave; it comes first.

    Raises:
        CheckpointError: No source has it. A guess would decode nonsense without any error.
        OptionError: The given id is not a token id.
    """
    if given is not None:
        stored = files.entries.get(f"{family.Net.names.embedding}.weight")
        rows = stored.shape[0] if stored is not None and stored.shape else SIZE_LIMIT
        check_int("mask_id", given, 0, high=rows - 1)
        return given
    if files.config.get("mask_token_id") is not None:
        return files.config["mask_token_id"]  # checked with the other keys
    token = family.MASK_TOKEN
    for text in (files.mask_token(), token):
        found = None if text is None else files.token_id(text)
        if found is not None:
            return found
    raise CheckpointError(
        f"The mask token of {files.directory} is unknown: config.json has no 'mask_token_id', "
        f"and the tokenizer has no mask token and no {token!r}; give mask_id (--mask-id)."
    )


def set_attention(
    config: Any, family: Any, *, attention: str | None, block_size: int | None
) -> Any:
    """Return the config with the attention that the user requested.

    Args:
        config: The family's config.
        family: The family's module; its `BLOCK_SIZE` is the default.
        attention: "bidirectional", "block" or None for the config's own.
        block_size: The number of positions in a block, or None.

    Raises:
        OptionError: The two contradict each other, or the block size is not possible.
    """
    if attention is not None:
        check_choice("attention", attention, ATTENTIONS)
    by_block = config.block_size is not None if attention is None else attention == "block"
    if not by_block:
        if block_size is not None:
            raise OptionError(
                "A block_size is given, but the model attends to all positions; add "
                "attention='block' (--attention block), or use block_length for the strategy.",
                option="block_size",
                value=block_size,
            )
        return replace(config, block_size=None)
    size = block_size if block_size is not None else config.block_size or family.BLOCK_SIZE
    if size is None:
        raise OptionError(
            f"The family {family.Net.family} has no block size; attention='block' needs "
            "block_size (--block-size).",
            option="block_size",
        )
    check_int("block_size", size, 1)
    if config.max_length % size:
        raise OptionError(
            f"block_size = {size} does not divide the model's {config.max_length} positions; "
            "use the block size that the model was trained with.",
            option="block_size",
            value=size,
        )
    return replace(config, block_size=size)


def _running_kind(stored: StoredQuantization | None, quantize: str | None) -> str | None:
    """Return how the model is quantised: as requested, or as the checkpoint was saved."""
    if stored is None or stored.storage_only:
        return quantize
    if quantize not in (None, stored.kind):
        raise OptionError(
            f"The checkpoint holds {stored.kind} weights, so it cannot be loaded with "
            f"quantize={quantize!r}; leave the option out, or load the unquantised checkpoint.",
            option="quantize",
            value=quantize,
        )
    return stored.kind


def check_weights(files: Checkpoint, model: Transformer) -> None:
    """Raise unless the stored tensors are exactly those that the model needs."""
    wanted, entries = model.weights(), files.entries
    if stored_quantization(files.config) is not None:
        entries = logical_entries(entries, wanted)
    check_entries(entries, wanted, model.repeats())


def check_sizes(entries: Mapping[str, TensorEntry], config: Architecture, names: Names) -> None:
    """Raise unless the stored weights have the sizes of the config.

    This runs before the model is built, because a model of a billion layers would not fit into
    memory even without its weights. `check_entries` compares the other shapes.
    """
    before, after = f"{names.attention_norm}.weight".split("{}")
    numbers = (name[len(before) :].removesuffix(after) for name in entries)
    layers = {number for number in numbers if f"{before}{number}{after}" in entries}
    found: dict[str, int] = {"layers": len(layers)}
    shapes = {
        ("vocab_size", "width"): f"{names.embedding}.weight",
        ("mlp_width", "width"): f"{names.gate.format(0)}.weight",
    }
    for sizes, name in shapes.items():
        # The columns of an int4 tensor are packed; `check_weights` compares them.
        packed = name in entries and entries[name].dtype == "U8"
        if name in entries and not packed and len(entries[name].shape) == len(sizes):
            found |= zip(sizes, entries[name].shape, strict=True)
    for size, stored in found.items():
        if getattr(config, size) != stored:
            key = config.size_keys[size]
            raise CheckpointError(
                f"config.json: {key} = {getattr(config, size)}, but the weights have {stored}; "
                "they belong to different models."
            )


def check_memory(
    model: nn.Module, dtype: torch.dtype, kind: str | None, *, device: torch.device
) -> None:
    """Raise if the weights do not fit into the free memory of a GPU, or the memory of a CPU."""
    if device.type == "cuda":
        memory, phrase = free_cuda_memory(device), "{:.1f} GB are free on " + str(device)
    elif (found := host_memory()) is not None:
        memory, phrase = found, f"{device} has {{:.1f}} GB"
    else:
        return
    problem = memory_problem(model, dtype, kind, memory=memory)
    if problem is None:
        return
    several = device.type == "cuda" and torch.cuda.device_count() > 1
    raise CheckpointError(
        problem.format(memory=phrase.format(memory / 1e9))
        + (" A model is not split over several GPUs." if several else "")
    )


def host_memory() -> int | None:
    """Return the bytes of this machine's memory; None if the system does not report it."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_cuda_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate on a GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    free, total = torch.cuda.mem_get_info(index)
    used = torch.cuda.memory_allocated(index)
    cached = torch.cuda.memory_reserved(index) - used
    # `set_per_process_memory_fraction` may limit the process; older torch does not report it.
    find_limit = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    share = 1.0 if find_limit is None else find_limit(index)
    return min(free + cached, int(total * share) - used)


def memory_problem(
    model: nn.Module, dtype: torch.dtype, kind: str | None, *, memory: int
) -> str | None:
    """Return why the weights do not fit into `memory` bytes, or None if they fit.

    The sentence names the largest smaller option that fits, and has a field `{memory}`.
    """
    needed = weight_bytes(model, dtype, kind)
    if needed <= memory:
        return None
    options = {f"quantize={name!r}": weight_bytes(model, dtype, name) for name in ("int8", "int4")}
    if dtype.itemsize > 2:
        options["dtype='bfloat16'"] = weight_bytes(model, torch.bfloat16, kind)
    smaller = sorted(
        ((size, option) for option, size in options.items() if size < needed), reverse=True
    )
    fitting = [f"use {option} ({size / 1e9:.1f} GB)" for size, option in smaller if size <= memory]
    if fitting:
        advice = fitting[0]
    elif smaller:
        size, option = smaller[-1]
        advice = f"even {option} needs {size / 1e9:.1f} GB, so use a smaller model"
    else:
        advice = "use a smaller model"
    smallest = min([needed, *options.values()])
    experts = _expert_bytes(model, dtype)
    if not fitting and experts and smallest - experts <= memory:
        kept = str(dtype).removeprefix("torch.")
        advice += f". Its experts are not quantised and need {experts / 1e9:.1f} GB in {kept}"
    name = kind or str(dtype).removeprefix("torch.")
    return f"The weights need {needed / 1e9:.1f} GB in {name}, and {{memory}}: {advice}."


def _expert_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes of the experts of a mixture, which are never quantised."""
    experts = (part for part in model.modules() if isinstance(part, ExpertWeights))
    numbers = sum(weight.numel() for part in experts for weight in part.parameters())
    return numbers * dtype.itemsize


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
    storage: str | None = None,
) -> None:
    """Write a model in its family's published layout.

    A quantised model is written as it is, and loads again without `quantize=`.

    Args:
        model: The model.
        directory: Where to write config.json and model.safetensors.
        dtype: The dtype of the tensors; by default the model's own.
        storage: Store the matrices quantised: "int8", "fp8" or "int4". Loading dequantises them.

    Raises:
        OptionError: The model has no published layout, or is quantised and `storage` is given.
        CheckpointError: The weights cannot be written, for example because the disk is full.
    """
    write_checkpoint(directory, *checkpoint_contents(model, dtype=dtype, storage=storage))


def checkpoint_contents(
    model: Model, *, dtype: str | torch.dtype | None = None, storage: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors that `save_checkpoint` writes."""
    precision, kind = resolve_dtype(dtype) or model.dtype, quantization_of(model)
    check_kind(storage)
    if storage is not None and kind is not None:
        raise OptionError(
            f"The model is already in {kind}, so storage={storage!r} is not possible.",
            option="storage",
            value=storage,
        )
    published = published_state_dict(model)
    parts = quantized_parts(published)
    # A weight that is kept in another dtype than the model's, such as a router's bias, stays in it.
    tensors = {
        name: part if name in parts or part.dtype != model.dtype else part.to(precision)
        for name, part in published.items()
    }
    if storage is not None:
        tensors = quantize_tensors(published, storage, precision)
    # Copy: the file format refuses views that share memory, and fused matrices give such views.
    tensors = {name: part.to("cpu", copy=True).contiguous() for name, part in tensors.items()}
    config = model.config.to_json() if isinstance(model, Publishable) else {}
    config["torch_dtype"] = str(precision).removeprefix("torch.")
    if kind is not None or storage is not None:
        found = StoredQuantization(kind or str(storage), storage_only=kind is None)
        config[KEY] = found.to_json()
    return config, tensors


def families() -> list[str]:
    """Return the names of all families."""
    found = pkgutil.iter_modules(importlib.import_module(FAMILIES).__path__)
    return sorted(entry.name for entry in found)


def family_modules() -> dict[str, Any]:
    """Return the module of every family, by the family's name."""
    return {name: importlib.import_module(f"{FAMILIES}.{name}") for name in families()}


def family_module(name: str, architectures: Sequence[object] = ()) -> Any:
    """Return the module of a family, by the family's name or a `model_type`.

    Raises:
        CheckpointError: There is no such family. The message suggests a similar name only without
            `architectures`: with them, a similar name, such as qwen2 for qwen3, is another model.
    """
    modules = family_modules()
    for family, module in modules.items():
        if name.lower() in (family, *module.MODEL_TYPES):
            return module
    known = sorted(kind for module in modules.values() for kind in module.MODEL_TYPES)
    hint = "" if architectures else did_you_mean(name[:80].lower(), known)
    named = f" and the architecture {quote(architectures[0])}" if architectures else ""
    raise CheckpointError(
        f"config.json says model_type {quote(name)}{named}, which no family supports; known: "
        f"{', '.join(known)}{hint}. See `wavefront list models`."
    )


# Families that cannot be decoded here (docs/models.md), by a part of the `model_type` or the
# architecture.
UNSUPPORTED = {
    "nemotronlabsdiffusion": ("Nemotron-Labs-Diffusion", "its context is causal"),
    "diffusiongemma": ("DiffusionGemma", "it has no mask token"),
    "refusion": ("ReFusion", "it fills slots of several tokens"),
    "sumi": ("Sumi", "it has no mask token"),
    "twotower": ("Nemotron-Labs-TwoTower", "a second model reads its context"),
    "wedlm": ("WeDLM", "its attention is causal and reorders the canvas"),
}


def _refuse_known(kind: str, architectures: Sequence[object]) -> None:
    """Raise with a sentence of its own for a model that is known not to work."""
    names = [str(one).lower().replace("_", "").replace("-", "") for one in (kind, *architectures)]
    for part, (family, reason) in UNSUPPORTED.items():
        if any(part in name for name in names):
            raise CheckpointError(
                f"{family} is not supported, because {reason}; docs/models.md says more, and "
                "`wavefront list models` lists the families that are."
            )
    if "qwen3forcausallm" in names or names == ["qwen3"]:
        key = "architecture 'Qwen3ForCausalLM'" if architectures else f"model_type {quote(kind)}"
        raise CheckpointError(
            f"config.json has the {key}, which is not a diffusion model; "
            "load a checkpoint that was adapted from it, such as Tiny-A2D, or make one from a "
            "Llama or Qwen2 with `wavefront train adapt`."
        )


def find_family(config: Mapping[str, Any]) -> Any:
    """Return the module of a checkpoint's family, from the content of its config.json.

    `architectures` comes first, because some families publish the `model_type` of another one.
    """
    if (foreign := config.get("quantization_config")) is not None:
        method = foreign.get("quant_method") if isinstance(foreign, Mapping) else None
        raise CheckpointError(
            f"config.json has a quantization_config ({quote(method or 'unknown')}), whose weights "
            "cannot be read; load the unquantised checkpoint, and add quantize='int8' "
            "(--quantize int8) to save memory."
        )
    listed = config.get("architectures")
    architectures = listed if isinstance(listed, list) else []
    for module in family_modules().values():
        if any(name in module.ARCHITECTURES for name in architectures):
            return module
    if config.get("model_type") is None:
        raise CheckpointError(
            "config.json has no 'model_type', which names the family; "
            "add the key from the published config."
        )
    _refuse_known(str(config["model_type"]), architectures)
    if str(config["model_type"]).lower() == "llama":
        given = quote(architectures[0]) if architectures else "none"
        raise CheckpointError(
            "config.json says model_type 'llama', which is a diffusion model only with the "
            f"architecture 'StableDiffcoderForCausalLM', not {given}; `wavefront train adapt` "
            "makes a diffusion model from a Llama."
        )
    return family_module(str(config["model_type"]), architectures)


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device if it is available; by default the best available one."""
    if device is None or device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        known = ("cpu", "cuda", "mps")
        raise OptionError(
            f"Device {quote(device)} is unknown; use cpu, cuda, cuda:N or mps"
            f"{did_you_mean(device, known) if isinstance(device, str) else ''}.",
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
    name = dtype[:80] if isinstance(dtype, str) else quote(dtype)
    if name not in DTYPES:
        raise OptionError(
            f"There is no dtype {name!r} for a model; "
            f"known: auto, {', '.join(DTYPES)}{did_you_mean(name, DTYPES)}.",
            option="dtype",
            value=dtype,
        )
    return DTYPES[name]


def computes_bfloat16(device: torch.device) -> bool:
    """Return whether this is a CPU with instructions for bfloat16. Others compute it slowly."""
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and supported is not None and bool(supported())


def _default_dtype(device: torch.device, stored: torch.dtype) -> torch.dtype:
    """Return the dtype to load in when none is requested."""
    if device.type != "cuda":
        return torch.float32
    return stored if stored in (torch.bfloat16, torch.float16) else torch.bfloat16
