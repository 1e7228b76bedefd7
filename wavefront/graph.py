"""Graphs: a step recorded once on the device and replayed, one launch in place of a thousand.

A step is a pure function of a tree of tensors (`Rows`, and what a cache stored), has no shape that
depends on data and never waits, so it can be captured as it stands. This file owns static copies of
that tree: it is the only one that overwrites the state of a decode, at the end of the captured
region. What a consumer receives is copied out, because the next replay overwrites it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from wavefront.engine import Advance, Flags, advance
from wavefront.model import Model
from wavefront.rows import Config, Rows, Step

# A step as a function of its tree: the tree after it, and what it hands out.
Pure = Callable[[Any], tuple[Any, Any]]
Call = Callable[[Hashable, Pure, Any], tuple[Any, Any]]

_WARM_UPS = 2  # kernels are chosen and workspaces made before anything is recorded


def eagerly(key: Hashable, step: Pure, tree: Any) -> tuple[Any, Any]:
    """Run a step as it is."""
    return step(tree)


class Graphs:
    """A `Call` that captures each step at its first use, by key, and replays it from then on."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, key: Hashable, step: Pure, tree: Any) -> tuple[Any, Any]:
        shape = tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))
        graph = self._made.get((key, shape))
        if graph is None:
            graph = self._made[key, shape] = _Graph(step, tree, self._pool)
        return graph(tree)


class _Graph:
    """One captured step, its static tree and what it hands out."""

    def __init__(self, step: Pure, tree: Any, pool: Any) -> None:
        self._static = copied(tree)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step(self._static)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._out = step_in_place(step, self._static)

    def __call__(self, tree: Any) -> tuple[Any, Any]:
        write(self._static, tree)
        self._graph.replay()
        return self._static, copied(self._out)


def step_in_place(step: Pure, static: Any) -> Any:
    """Make a step of the tree `static`, overwrite it with the tree after it: what is handed out."""
    after, out = step(static)
    # What is handed out may be the static tree itself, as it was before the step.
    mine = memory(static)
    out = mapped(out, lambda t: t.clone() if place(t) in mine else t)
    write(static, after)
    return out


def graphed(call: Call) -> Advance:
    """`engine.advance`, called through `call`."""

    def run(
        model: Model, config: Config, rows: Rows, width: int, padded: bool
    ) -> tuple[Rows, Sequence[Step], Flags]:
        def step(tree: Any) -> tuple[Any, Any]:
            after, steps, flags = advance(model, config, tree, width, padded)
            return after, (steps, flags)

        after, (steps, flags) = call((config, width, padded), step, rows)
        return after, steps, flags

    return run


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a nest of tuples and lists, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return []


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with every tensor changed; whatever is no tensor stays."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list):
        return [mapped(part, change) for part in tree]
    if isinstance(tree, tuple):
        parts = [mapped(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def copied(tree: Any) -> Any:
    return mapped(tree, Tensor.clone)


def write(static: Any, tree: Any) -> None:
    """Overwrite the tensors of `static`; those that are the same already are left alone.

    What a tree says may stand elsewhere in `static`: a full step stores the tokens and the step
    that it began with. So that is saved before anything is overwritten.
    """
    mine = memory(static)
    pairs = zip(leaves(static), leaves(tree), strict=True)
    moved = [(old, new) for old, new in pairs if old.data_ptr() != new.data_ptr()]
    saved = [(old, new.clone() if place(new) in mine else new) for old, new in moved]
    for old, new in saved:
        old.copy_(new)


def memory(tree: Any) -> set[int]:
    """Where the tensors of a tree lie."""
    return {place(leaf) for leaf in leaves(tree)}


def place(tensor: Tensor) -> int:
    """Where a tensor lies; a part of another lies where that does."""
    return tensor.untyped_storage().data_ptr()
