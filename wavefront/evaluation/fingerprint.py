"""Fingerprints of everything that determines an answer, and a description of the machine."""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import socket
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import wavefront
from wavefront.lm import LM
from wavefront.models.loader import Publishable
from wavefront.storage.fingerprint import of_files, of_sources, of_tensors, of_value
from wavefront.storage.hub import CONFIG, GENERATION, INDEX, TEXT_FILES, WEIGHTS, weight_map

PACKAGE = Path(wavefront.__file__).parent
# The modules that determine an answer. Everything else may change while a run is unfinished.
DECODING_SOURCES = (
    "core/*.py",
    "kernels/*.py",
    "strategies/**/*.py",
    "text/*.py",
    "models/**/*.py",
    "engine/*.py",
    "lm.py",
    "completion.py",
    "evaluation/batches.py",
    "evaluation/worker.py",
)


def of_weights(lm: LM, directory: Path | None = None) -> str:
    """Return the fingerprint of the checkpoint's files; without files, of the tensors."""
    if directory is None:
        tensors = {}
        if isinstance(lm.model, Publishable):
            tensors = lm.model.published_weights()
        elif isinstance(lm.model, torch.nn.Module):
            tensors = lm.model.state_dict()
        return of_value([type(lm.model).__name__, lm.model.family, of_tensors(tensors)])
    sharded = (directory / INDEX).is_file() and not (directory / WEIGHTS).is_file()
    names = {*weight_map(directory).values()} if sharded else {WEIGHTS}
    names |= {CONFIG, GENERATION}
    return of_files(file for name in names if (file := directory / name).is_file())


def of_tokenizer(lm: LM, directory: Path | None = None) -> str:
    """Return the fingerprint of the tokenizer's files; without files, of what it encodes."""
    if directory is None:
        tokenizer = lm.tokenizer
        special = sorted(tokenizer.special_ids)
        return of_value([tokenizer.to_json(), tokenizer.template, tokenizer.opening, special])
    return of_files(file for name in TEXT_FILES if (file := directory / name).is_file())


def of_template(lm: LM) -> str | None:
    """Return the fingerprint of the chat template, or None if there is no template."""
    return None if lm.tokenizer.template is None else of_value(lm.tokenizer.template)


@cache
def of_code() -> str:
    """Return the fingerprint of the modules that determine an answer.

    Editing a comment or a docstring does not change it.
    """
    return of_sources(PACKAGE, DECODING_SOURCES)


def of_strategy(strategy: object) -> str | None:
    """Return the fingerprint of the source files of a user's strategy and its parts.

    None if all of them belong to wavefront: `of_code` covers those.
    """
    parts = [strategy, *getattr(strategy, "__dict__", {}).values()]
    kinds = {type(part) for part in parts if part is strategy or hasattr(part, "spec_name")}
    files = set()
    for kind in kinds:
        if kind.__module__.partition(".")[0] != "wavefront":
            with contextlib.suppress(OSError, TypeError):  # defined at a prompt: no file
                files.add(Path(inspect.getfile(kind)))
    digests = sorted(sha256(file.read_bytes()).hexdigest() for file in files)
    return of_value(digests) if digests else None


def environment(lm: LM) -> dict[str, Any]:
    """Describe the machine and its libraries: what may change the last bits of a number."""
    model = lm.model
    cuda = model.device.type == "cuda"
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(model.device) if cuda else _processor(),
        "device type": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "attention": _attention_kernels(cuda),
        "float32 products": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if cuda:
        found |= {"cuda": torch.version.cuda, "driver": _driver()}
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def _attention_kernels(cuda: bool) -> str:
    """Name the fused attention kernels that torch may use."""
    if not cuda:
        return "torch sdpa"
    kinds = ("flash", "mem_efficient", "math", "cudnn")
    enabled = [kind for kind in kinds if getattr(torch.backends.cuda, f"{kind}_sdp_enabled")()]
    return f"torch sdpa ({', '.join(enabled)})"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    with contextlib.suppress(OSError, IndexError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    return None


def process_name() -> str:
    """Return a name for this process that is unique in a cluster."""
    return f"{socket.gethostname()}:{os.getpid()}"
