"""Graphs: a step recorded once on the device and replayed, one launch in place of a thousand.

A step is a pure function of a tree of tensors (`Rows`, and what a cache stored), has no shape that
depends on data and never waits, so it can be captured as it stands. This file owns a static copy of
that tree: it is the only one that overwrites the state of a decode, at the end of the captured
region. What a consumer receives is copied out, because the next replay overwrites it.
"""

from __future__ import annotations

from collections import OrderedDict
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
Made = Callable[[Any], tuple[Any, Any]]  # a step that is ready to be run on a tree

_WARM_UPS = 2  # kernels are chosen and workspaces made before anything is recorded


def eagerly(key: Hashable, step: Pure, tree: Any) -> tuple[Any, Any]:
    """Run a step as it is."""
    return step(tree)


class Graphs:
    """A `Call` that captures each step at its first use, by key, and replays it from then on.

    Those used last are kept: a server meets more strategies and shapes than memory can hold.
    """

    KEPT = 64

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, Made] = OrderedDict()
        self._pool = self._new_pool()

    def __call__(self, key: Hashable, step: Pure, tree: Any) -> tuple[Any, Any]:
        known = key, tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))
        graph = self._made.pop(known, None) or self._capture(step, tree)
        self._made[known] = graph
        if len(self._made) > self.KEPT:
            self._made.popitem(last=False)
        return graph(tree)

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def _capture(self, step: Pure, tree: Any) -> Made:
        return _Graph(step, tree, self._pool)


class _Graph:
    """One captured step, and the frame it works in."""

    def __init__(self, step: Pure, tree: Any, pool: Any) -> None:
        self._frame = Frame(tree)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step(self._frame.tree)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._frame.make(step)

    def __call__(self, tree: Any) -> tuple[Any, Any]:
        self._frame.load(tree)
        self._graph.replay()
        return self._frame.tree, self._frame.shown()


class Frame:
    """A tree in memory of its own, which a step overwrites with the tree after it.

    The memory is one tensor a dtype: a step writes a few of them and not a tree of thirty, each
    with its launch. What a step says may stand elsewhere in the tree it overwrites (a full step
    stores the tokens it began with), so all of it is put together before anything is overwritten.
    """

    def __init__(self, tree: Any) -> None:
        self._form = Form(tree)
        self._memory = self._form.pack(tree)
        self.tree = self._form.unpack(self._memory)
        self._shown: tuple[Form, list[Tensor]] | None = None

    def load(self, tree: Any) -> None:
        """Go on from another tree; from its own, nothing is to be done."""
        pairs = zip(leaves(self.tree), leaves(tree), strict=True)
        if any(mine.data_ptr() != other.data_ptr() for mine, other in pairs):
            self._overwrite(self._form.pack(tree))

    def make(self, step: Pure) -> None:
        """The step itself, and what it hands out put aside."""
        after, out = step(self.tree)
        form, fresh = Form(out), self._form.pack(after)
        self._shown = form, form.pack(out)
        self._overwrite(fresh)

    def shown(self) -> Any:
        """What the last step handed out, in memory that the next one leaves alone."""
        assert self._shown is not None
        form, memory = self._shown
        return form.unpack([part.clone() for part in memory])

    def _overwrite(self, fresh: Sequence[Tensor]) -> None:
        for old, new in zip(self._memory, fresh, strict=True):
            old.copy_(new)


class Form:
    """How the tensors of a tree lie in one tensor a dtype, each at a multiple of ALIGNED."""

    ALIGNED = 16  # elements: compiled code reads faster where a tensor begins at a whole address

    def __init__(self, tree: Any) -> None:
        self._like = mapped(tree, lambda leaf: leaf.new_empty(leaf.shape, device="meta"))
        self._kinds = [(leaf.dtype, leaf.shape) for leaf in leaves(tree)]
        self._dtypes = list(dict.fromkeys(dtype for dtype, _ in self._kinds))

    def pack(self, tree: Any) -> list[Tensor]:
        """The tensors of a tree of this form, a copy of each."""
        parts: dict[torch.dtype, list[Tensor]] = {dtype: [] for dtype in self._dtypes}
        for leaf, (dtype, _) in zip(leaves(tree), self._kinds, strict=True):
            flat = leaf.to(dtype).reshape(-1)
            parts[dtype].append(flat)
            if gap := -len(flat) % self.ALIGNED:
                parts[dtype].append(flat[:1].expand(gap))  # anything: nobody reads it
        return [torch.cat(flats) for flats in parts.values()]

    def unpack(self, memory: Sequence[Tensor]) -> Any:
        """The tree, its tensors parts of `memory`."""
        flats, starts = dict(zip(self._dtypes, memory, strict=True)), dict.fromkeys(self._dtypes, 0)
        kinds = iter(self._kinds)

        def part(_: Tensor) -> Tensor:
            dtype, shape = next(kinds)
            start, size = starts[dtype], shape.numel()
            starts[dtype] += size + -size % self.ALIGNED
            return flats[dtype][start : start + size].view(shape)

        return mapped(self._like, part)


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
