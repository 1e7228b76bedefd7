"""Fuse: the small work around a forward, compiled for a model that is compiled.

A step's choice of places, its statistics and its decision are hundreds of operations on a few
thousand numbers: on a GPU each costs its launch and nothing else. Compiled, they are a few dozen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from wavefront.kernels import small_batch_ops

Given = ParamSpec("Given")
Result = TypeVar("Result")

BACKEND = "inductor"  # torch's own
RECOMPILES = 64  # variants of one function (shapes, strategies) before torch gives up on it


def compiled_with_model(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A pure function whose first argument is a model: compiled if the model is `compiled`."""
    made: dict[str, Callable[Given, Result]] = {}

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        if torch.compiler.is_compiling() or not getattr(given[0], "compiled", False):
            return function(*given, **named)
        if BACKEND not in made:  # at its first use: importing the compiler takes seconds
            made[BACKEND] = torch.compile(function, dynamic=False, backend=BACKEND)
        return made[BACKEND](*given, **named)

    return run


def _chained() -> dict[str, Any]:
    """For a block: where torch can, a kernel is launched while the one before still runs, and waits
    for its results where it reads them. Not for what is around the blocks: a kernel that reads
    nothing would not wait, and who waits for it would not wait for those before.
    """
    if BACKEND != "inductor" or torch.version.cuda is None:
        return {"backend": BACKEND}
    from torch._inductor import config

    known = hasattr(config.triton, "enable_pdl")
    return {"backend": BACKEND, "options": {"triton.enable_pdl": True} if known else {}}


def compile_model(model: Any, *, dynamic: bool | None = True) -> None:
    """Compile a model's blocks, and what a step does around them, in place.

    Slower to the first step, faster from the second on. `dynamic`: one block's code serves all
    shapes; False makes faster code for each.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(RECOMPILES, config.recompile_limit)
    for block in getattr(model, "blocks", ()):
        block.lean = small_batch_ops.available(model.device)
        block.compile(dynamic=dynamic, **_chained())
    model.compiled = True
