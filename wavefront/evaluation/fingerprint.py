"""Fingerprints of everything that determines an answer, and a description of the machine."""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import socket
import sys
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import wavefront
from wavefront.analysis.quality import judge_folder
from wavefront.kernels import cpu_product
from wavefront.lm import LM
from wavefront.models.loader import Publishable
from wavefront.storage.fingerprint import of_files, of_sources, of_tensors, of_value
from wavefront.storage.hub import CONFIG, GENERATION, INDEX, TEXT_FILES, WEIGHTS, weight_map
from wavefront.tasks.base import Task

PACKAGE = Path(wavefront.__file__).parent
# Raise this by one when a change alters the tokens, the order or the number of forward passes of a
# decode. A page of results records it; tests/project/test_results_pages.py compares the two.
# 1: everything recorded before 2026-11-18, which named no version. 2: until `tide` got cascade
# rounds, a horizon and a threshold by default.
DECODING_VERSION = 3
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

# The modules that determine a grade, besides those of the task and its base classes.
GRADING_SOURCES = ("tasks/grading/*.py",)
SANDBOX_SOURCES = ("tasks/sandbox/*.py",)  # for tasks that run code
JUDGE_SOURCES = ("analysis/quality.py", "models/judge.py")  # for tasks that a judge scores
MATHS_LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy")
GRADING_OPTIONS = ("timeout", "answers")  # options of a task that change its grades


def of_weights(lm: LM, directory: Path | None = None) -> str:
    """Return the fingerprint of the checkpoint's files, or of the tensors if it has no files."""
    if directory is None:
        tensors = {}
        if isinstance(lm.model, Publishable):
            tensors = lm.model.published_weights()
        elif isinstance(lm.model, torch.nn.Module):
            tensors = lm.model.state_dict()
        return of_value([type(lm.model).__name__, lm.model.family, of_tensors(tensors)])
    return of_weight_files(directory)


def of_weight_files(directory: Path) -> str:
    """Return the fingerprint of the weights and the configuration in a checkpoint's folder."""
    sharded = (directory / INDEX).is_file() and not (directory / WEIGHTS).is_file()
    names = {*weight_map(directory).values()} if sharded else {WEIGHTS}
    names |= {CONFIG, GENERATION}
    return of_files(file for name in names if (file := directory / name).is_file())


def of_tokenizer(lm: LM, directory: Path | None = None) -> str:
    """Return the fingerprint of the tokenizer's files, or of its JSON if it has no files."""
    if directory is None:
        tokenizer = lm.tokenizer
        special = sorted(tokenizer.special_ids)
        return of_value([tokenizer.to_json(), tokenizer.template, tokenizer.opening, special])
    return of_tokenizer_files(directory)


def of_tokenizer_files(directory: Path) -> str:
    """Return the fingerprint of the tokenizer's files in a checkpoint's folder."""
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


def of_grader(task: Task, package: Path = PACKAGE, *, versions: bool = True) -> str:
    """Return the fingerprint of everything that determines the grade of an answer to this task.

    It covers the statements of the grading modules and of the task's own modules, the options of
    the task that change grades, and the versions of libraries and Python that take part. For
    a task that the user wrote, it covers the file of its class.

    Args:
        task: The task.
        package: The folder of the package whose modules are read.
        versions: False leaves out the versions, which differ between machines.
    """
    modules = {kind.__module__ for kind in type(task).__mro__}
    own = [name.split(".", 1)[1] for name in modules if name.startswith("wavefront.tasks.")]
    patterns = {*GRADING_SOURCES, *(f"{name.replace('.', '/')}.py" for name in own)}
    found: list[Any] = []
    if task.executes:
        patterns |= {*SANDBOX_SOURCES}
        found.append(platform.python_version_tuple()[:2])
    if getattr(task, "kind", "") == "maths":
        found += [_library_version(name) for name in MATHS_LIBRARIES]
    if getattr(task, "judged", False):
        patterns |= {*JUDGE_SOURCES}
        folder = judge_folder(str(getattr(task, "model", "")))
        found.append(None if folder is None else of_files(sorted(folder.iterdir())))
    options = {name: getattr(task, name, None) for name in GRADING_OPTIONS}
    parts = [of_sources(package, patterns), found if versions else [], options]
    return of_value(parts if (own_file := of_strategy(task)) is None else [*parts, own_file])


def _library_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def of_strategy(strategy: object) -> str | None:
    """Return the fingerprint of the source files of a user's strategy or task, and of its parts.

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


def of_factory(name: str) -> str:
    """Return the fingerprint of the file of `module:factory`, a user's own model."""
    module = sys.modules[name.partition(":")[0]]
    file = getattr(module, "__file__", None)
    return of_value([name, None if file is None else sha256(Path(file).read_bytes()).hexdigest()])


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
    else:
        faster = cpu_product.ONEDNN_IS_FASTER
        found["product library"] = "oneDNN" if faster else "torch's default"
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
