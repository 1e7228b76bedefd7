"""Graphs: a step recorded once on the device and replayed, one launch in place of a thousand.

A step is a pure function of a tree of tensors (`Rows`, and what a cache stored), has no shape that
depends on data and never waits, so it can be captured as it stands. This file owns a static copy of
that tree: it is the only one that overwrites the state of a decode, at the end of the captured
region. What a consumer receives is copied out, because the next replay overwrites it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.tree import leaves, map_tree

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


@cache
def _side(device: int) -> torch.cuda.Stream:
    """Where steps are warmed up: one stream, for the library of products keeps 32 MiB of scratch
    for every stream it has met.
    """
    return torch.cuda.Stream(device)


class _Graph:
    """One captured step, and the frame it works in."""

    def __init__(self, step: Pure, tree: Any, pool: Any) -> None:
        self._frame = StaticBuffers(tree)
        side = _side(torch.cuda.current_device())
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


class StaticBuffers:
    """A tree in memory of its own, which a step overwrites with the tree after it.

    The memory is one tensor: a step writes that, and not a tree of thirty, each with its launch.
    What a step says may stand elsewhere in the tree it overwrites (a full step stores the tokens it
    began with), so all of it is put together before anything is overwritten.
    """

    def __init__(self, tree: Any) -> None:
        self._form = PackedLayout(tree)
        self._memory = written(self._form.pieces(tree), self._form.size)
        self.tree = self._form.unpack(self._memory)
        self._shown: tuple[PackedLayout, Tensor] | None = None

    def load(self, tree: Any) -> None:
        """Go on from another tree; from its own, nothing is to be done."""
        pairs = zip(leaves(self.tree), leaves(tree), strict=True)
        if any(mine.data_ptr() != other.data_ptr() for mine, other in pairs):
            self._memory.copy_(written(self._form.pieces(tree), self._form.size))

    def make(self, step: Pure) -> None:
        """The step itself, and what it hands out put aside, behind the tree after it."""
        after, out = step(self.tree)
        form = PackedLayout(out, behind=self._form, holding=after)
        fresh = written([*self._form.pieces(after), *form.pieces(out)], form.size)
        self._shown = form, fresh
        self._memory.copy_(fresh[: len(self._memory)])

    def shown(self) -> Any:
        """What the last step handed out, in memory that the next one leaves alone."""
        assert self._shown is not None
        form, memory = self._shown
        return form.unpack(memory.clone())


class PackedLayout:
    """How the tensors of a tree lie in one run of bytes, each at a multiple of ALIGNED.

    It may lie `behind` another form: what the tree that is `holding` that one holds already (most
    of what a step hands out is in the tree after it) then lies there, and not twice.
    """

    ALIGNED = 16  # bytes: compiled code reads faster where a tensor begins at a whole address

    def __init__(self, tree: Any, *, behind: PackedLayout | None = None, holding: Any = ()) -> None:
        self._like = map_tree(tree, lambda leaf: leaf.new_empty(leaf.shape, device="meta"))
        self._spots: list[BufferSlice] = []
        self.size = 0 if behind is None else behind.size
        known = [] if behind is None else behind._spots
        there = dict(zip(map(_same, leaves(holding)), known, strict=True))
        for leaf in leaves(tree):
            spot = there.get(_same(leaf))
            if spot is None or spot.dtype != leaf.dtype:
                spot = BufferSlice(self.size, leaf.dtype, leaf.shape)
                self.size += spot.room
            self._spots.append(spot)
        self._first = 0 if behind is None else behind.size

    def pieces(self, tree: Any) -> list[tuple[BufferSlice, Tensor]]:
        """The bytes of a tree of this form and where they belong, as far as that is not before."""
        parts: list[tuple[BufferSlice, Tensor]] = []
        for leaf, spot in zip(leaves(tree), self._spots, strict=True):
            if spot.start < self._first:
                continue
            whole = leaf.to(spot.dtype).contiguous()
            # By as_strided: of one number alone, torch takes any stride for contiguous.
            flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
            parts.append((spot, flat))
        return parts

    def unpack(self, memory: Tensor) -> Any:
        """The tree, its tensors parts of `memory`."""
        spots = iter(self._spots)
        return map_tree(self._like, lambda _: next(spots).of(memory))


class BufferSlice(NamedTuple):
    """Where in a run of bytes a tensor lies."""

    start: int
    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    @property
    def room(self) -> int:
        return self.size + -self.size % PackedLayout.ALIGNED

    def bytes(self, memory: Tensor) -> Tensor:
        return memory[self.start : self.start + self.size]

    def of(self, memory: Tensor) -> Tensor:
        return self.bytes(memory).view(self.dtype).view(self.shape)


def written(pieces: list[tuple[BufferSlice, Tensor]], size: int) -> Tensor:
    """New memory with every piece at its spot, in one launch; between them lies anything."""
    memory = pieces[0][1].new_empty(size)
    spots, parts = zip(*pieces, strict=True)
    into = [spot.bytes(memory) for spot in spots]
    torch._foreach_copy_(into, list(parts))  # pyright: ignore[reportPrivateImportUsage]
    return memory


def _same(leaf: Tensor) -> Hashable:
    """Equal of two tensors that are the same memory, read in the same way."""
    return leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()


class HostCopy:
    """A tree of tensors on its way to the host: copied behind the step's work, read when needed."""

    def __init__(self, tree: Any) -> None:
        self._tree, self._event = tree, None
        tensors = leaves(tree)
        if tensors and tensors[0].is_cuda:
            layout = PackedLayout(tree)
            packed = written(layout.pieces(tree), layout.size)
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            host.copy_(packed, non_blocking=True)
            self._tree = layout.unpack(host)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> Any:
        """Wait for the copy, and return the tree on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._tree
