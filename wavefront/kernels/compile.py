"""Compile a model's layers, and the small work of a step around its forward pass.

A step selects positions, computes statistics and decides: hundreds of operations on a few thousand
numbers. On a GPU each of them costs one kernel launch. After compilation only a few dozen kernels
remain.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")

BACKEND = "inductor"  # the backend of torch.compile
RECOMPILES = 64  # variants of one function (shapes, strategies) before torch stops compiling it
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own
CACHE_LIMIT = 4 << 30  # bytes of compiled code on disk
LOG = logging.getLogger("wavefront")


def compiled_with_model(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Compile a pure function whose first argument is a model, if `model.compiled` is True."""
    compiled: dict[str, Callable[Given, Result]] = {}

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        if torch.compiler.is_compiling() or not getattr(given[0], "compiled", False):
            return function(*given, **named)
        if BACKEND not in compiled:  # on first use: importing the compiler takes seconds
            compiled[BACKEND] = torch.compile(function, dynamic=False, backend=BACKEND)
        return compiled[BACKEND](*given, **named)

    return run


def _layer_compile_options() -> dict[str, Any]:
    """Return torch.compile's options for a layer: programmatic dependent launch where available.

    A kernel then starts while the previous one still runs, and waits where it reads its results.
    The code around the layers does not use this. A kernel without inputs would not wait, so a
    kernel that waits for it could run before the earlier kernels have finished.
    """
    if BACKEND != "inductor" or torch.version.cuda is None:
        return {"backend": BACKEND}
    from torch._inductor import config

    known = hasattr(config.triton, "enable_pdl")
    return {"backend": BACKEND, "options": {"triton.enable_pdl": True} if known else {}}


def cache_directory() -> Path:
    """Return where compiled code is kept between starts.

    This is $TORCHINDUCTOR_CACHE_DIR, or `wavefront/compiled` in the user's cache directory.
    """
    if chosen := _chosen_directory():
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wavefront" / "compiled"


def _chosen_directory() -> str:
    """Return the directory in TORCHINDUCTOR_CACHE_DIR, or "" if it is torch's temporary one.

    torch itself sets the variable when its compiler is imported.
    """
    given = os.environ.get(CACHE_VARIABLE, "")
    usual = os.path.join(tempfile.gettempdir(), "torchinductor_")
    return "" if given.startswith(usual) else given


def use_cache_directory() -> None:
    """Let torch keep compiled code in `cache_directory`, within CACHE_LIMIT.

    Otherwise torch uses a temporary directory, as it does if `cache_directory` is not writable. A
    directory that you chose with TORCHINDUCTOR_CACHE_DIR is not pruned.
    """
    if _chosen_directory():
        return
    directory = cache_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # its files are run as code
    except OSError:
        return
    if os.access(directory, os.W_OK | os.X_OK):
        prune(directory, CACHE_LIMIT)
        os.environ[CACHE_VARIABLE] = str(directory)


def prune(directory: Path, limit: int) -> None:
    """Delete the least recently used files, until the others have at most `limit` bytes.

    torch compiles again what it does not find.
    """
    found: list[tuple[float, int, Path]] = []
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # another process may delete files too
            if path.is_file() and not path.is_symlink():
                about = path.stat()
                found.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        left -= size


def compile_model(model: Any, *, dynamic: bool | None = True) -> None:
    """Compile a model's layers, and the work of a step around them, in place.

    The first step is slower and all later steps are faster. With `dynamic`, one layer's code
    serves all shapes; False generates faster code for each shape. The compiled code is kept in
    `cache_directory`, so the next start is faster.
    """
    if BACKEND == "inductor":
        use_cache_directory()
        LOG.info(
            "Compiling the model: the first steps take a minute or two, and less at the next "
            "start. Compiled code is kept in %s.",
            cache_directory(),
        )
    config = torch._dynamo.config
    config.recompile_limit = max(RECOMPILES, config.recompile_limit)
    for layer in getattr(model, "layers", ()):
        layer.compile(dynamic=dynamic, **_layer_compile_options())
    model.compiled = True
