"""Fingerprints: of all that decides an answer, and of the machine that gave it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import platform
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch

import wavefront
from wavefront.lm import LM
from wavefront.storage.hub import CONFIG, GENERATION, INDEX, TEXT_FILES, WEIGHTS, weight_map
from wavefront.storage.jsonl import dump, write_text

PACKAGE = Path(wavefront.__file__).parent
# The modules that decide an answer. Everything else may change while a run is unfinished.
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


def digest(value: Any) -> str:
    """32 hexadecimal digits that stand for a JSON value."""
    return sha256(dump(value).encode()).hexdigest()[:32]


def of_files(files: Iterable[Path]) -> str:
    """The same for files: their names and what is in them."""
    listed = sorted(files)
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(_file_sum, listed))
    return digest([[file.name, found] for file, found in zip(listed, sums, strict=True)])


def of_weights(lm: LM, directory: Path | None) -> str:
    """Of the checkpoint's files; of a model that has none, of its tensors."""
    if directory is None:
        return _of_tensors(lm)
    sharded = (directory / INDEX).is_file() and not (directory / WEIGHTS).is_file()
    names = {*weight_map(directory).values()} if sharded else {WEIGHTS}
    names |= {CONFIG, GENERATION}
    return of_files(file for name in names if (file := directory / name).is_file())


def _of_tensors(lm: LM) -> str:
    total = sha256()
    model: Any = lm.model
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()[:32]


def of_tokenizer(lm: LM, directory: Path | None) -> str:
    """Of the tokenizer's files; of one that has none, of its vocabulary."""
    if directory is None:
        return digest(lm.tokenizer.pieces(list(range(lm.tokenizer.vocab_size))))
    return of_files(file for name in TEXT_FILES if (file := directory / name).is_file())


def of_template(lm: LM) -> str | None:
    """Of the chat template, if there is one."""
    return None if lm.tokenizer.template is None else digest(lm.tokenizer.template)


@cache
def of_code() -> str:
    """Return the digest of the modules that decide an answer, without comments and docstrings."""
    files = sorted({file for pattern in DECODING_SOURCES for file in PACKAGE.glob(pattern)})
    return digest([[str(file.relative_to(PACKAGE)), _code_of(file)] for file in files])


def _code_of(file: Path) -> str:
    """Return the statements of a module; comments, docstrings and layout do not count."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return sha256(ast.unparse(tree).encode()).hexdigest()


def of_strategy(strategy: object) -> str | None:
    """Of the source file of a strategy from outside; ours are in `of_code`."""
    kind = type(strategy)
    if kind.__module__.partition(".")[0] == "wavefront":
        return None
    with contextlib.suppress(OSError, TypeError):
        return sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()[:32]
    return None


def _file_sum(file: Path) -> str:
    """SHA-256 of a file; of a large one it is remembered while its size and time stay."""
    real = file.resolve()
    state = real.stat()
    if state.st_size < 1 << 24:
        return sha256(real.read_bytes()).hexdigest()
    key, stamp = str(real), [state.st_size, state.st_mtime_ns, state.st_ino]
    memory = _memory()
    note = memory / f"{sha256(key.encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        told = json.loads(note.read_text())
        if told.get("file") == key and told.get("stamp") == stamp:
            return str(told["sha256"])
    with real.open("rb") as handle:
        found = file_digest(handle, "sha256").hexdigest()
    with contextlib.suppress(OSError, wavefront.RunError):
        memory.mkdir(parents=True, exist_ok=True)
        write_text(note, dump({"file": key, "stamp": stamp, "sha256": found}))
    return found


def _memory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wavefront" / "sums"


def environment(lm: LM) -> dict[str, Any]:
    """The machine and its libraries: what may change the last bits of a number."""
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
        "attention": _attention(cuda),
        "float32 products": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if cuda:
        found |= {"cuda": torch.version.cuda, "driver": _driver()}
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def _attention(cuda: bool) -> str:
    """Which of torch's fused kernels may serve."""
    if not cuda:
        return "torch sdpa"
    kinds = ("flash", "mem_efficient", "math", "cudnn")
    on = [kind for kind in kinds if getattr(torch.backends.cuda, f"{kind}_sdp_enabled")()]
    return f"torch sdpa ({', '.join(on)})"


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


def here() -> str:
    """This process among all of a cluster."""
    return f"{socket.gethostname()}:{os.getpid()}"
