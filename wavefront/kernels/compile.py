"""Compile a model's layers, and the small work of a step around its forward pass.

A step selects positions, computes statistics and decides: hundreds of operations on a few thousand
numbers. On a GPU each of them costs one kernel launch. Compiled, they are a few dozen kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from wavefront.kernels import small_batch_ops

Given = ParamSpec("Given")
Result = TypeVar("Result")

BACKEND = "inductor"  # the backend of torch.compile
RECOMPILES = 64  # variants of one function (shapes, strategies) before torch stops compiling it


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
    The code around the layers does not use this: a kernel that reads nothing would not wait, and
    a kernel that waits for it would not wait for the kernels before it.
    """
    if BACKEND != "inductor" or torch.version.cuda is None:
        return {"backend": BACKEND}
    from torch._inductor import config

    known = hasattr(config.triton, "enable_pdl")
    return {"backend": BACKEND, "options": {"triton.enable_pdl": True} if known else {}}


def compile_model(model: Any, *, dynamic: bool | None = True) -> None:
    """Compile a model's layers, and the work of a step around them, in place.

    The first step is slower and all later steps are faster. With `dynamic`, one layer's code
    serves all shapes; False generates faster code for each shape.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(RECOMPILES, config.recompile_limit)
    for layer in getattr(model, "layers", ()):
        layer.use_small_batch_ops = small_batch_ops.available(model.device)
        layer.compile(dynamic=dynamic, **_layer_compile_options())
    model.compiled = True
