"""CUDA graphs: record a step once, then replay it with one launch instead of a thousand.

A step is a pure function of a tree of tensors: the decode state and what a cache stores. Its shapes
do not depend on data and it never waits for the device, so it can be captured unchanged. With
constraints, each part of a step is captured instead. This module owns a static copy of the tree,
and the captured region overwrites that copy at its end. The output of a step is copied out, because
the next replay overwrites it.

On CUDA, steps are captured by default: see `use_cuda_graphs` and `AutomaticGraphs`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.errors import OptionError, quote
from wavefront.core.tree import leaves, map_tree

LOG = logging.getLogger("wavefront")

# A step as a function of its tree: it returns the next tree and its output.
TreeStep = Callable[[Any], tuple[Any, Any]]
# A way to run a step: the key that identifies it, the step, and the tree to run it on.
Call = Callable[[Hashable, TreeStep, Any], tuple[Any, Any]]

_WARM_UPS = 2  # torch chooses kernels and allocates workspaces before the capture
WARM_UP_SECONDS = 15.0  # spent on captures before they are limited to CAPTURE_SHARE of the time
CAPTURE_SHARE = 0.1


def use_cuda_graphs(asked: bool | None, device: torch.device) -> bool:
    """Return whether to capture steps: as requested, or by default on CUDA.

    Raises:
        OptionError: Capturing was requested on another device, or `asked` is not a bool.
    """
    if asked is not None and not isinstance(asked, bool):
        raise OptionError(
            f"cuda_graphs must be True, False or None, not {quote(asked)}.",
            option="cuda_graphs",
            value=asked,
        )
    if asked and device.type != "cuda":
        raise OptionError(
            f"cuda_graphs needs a CUDA device, and the model is on {device}.",
            option="cuda_graphs",
            value=asked,
        )
    return device.type == "cuda" if asked is None else asked


def graphs_for(asked: bool | None, device: torch.device) -> Callable[[], Call]:
    """Return what makes the `Call` of a batcher.

    Args:
        asked: True captures every step, and raises an error if that fails. None captures steps on
            CUDA, and runs a step directly if it cannot be captured. False captures nothing.
        device: The device of the model.

    Raises:
        OptionError: Capturing was requested on another device, or `asked` is not a bool.
    """
    if not use_cuda_graphs(asked, device):
        return lambda: run_eagerly
    return AutomaticGraphs if asked is None else Graphs


def run_eagerly(key: Hashable, step: TreeStep, tree: Any) -> tuple[Any, Any]:
    """Run a step directly, without a graph."""
    return step(tree)


class Graphs:
    """A `Call` that captures each step at its first use, by key, and replays it afterwards.

    Only the most recently used graphs are kept, because a server sees more strategies and shapes
    than fit into memory.
    """

    KEPT = 64

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, TreeStep] = OrderedDict()
        self._pool = self._new_pool()

    def __call__(self, key: Hashable, step: TreeStep, tree: Any) -> tuple[Any, Any]:
        """Replay the graph of `key` for trees of this shape; capture it first if it is new."""
        full_key = _with_shapes(key, tree)
        graph = self._graphs.pop(full_key, None) or self._capture(step, tree)
        self._graphs[full_key] = graph
        if len(self._graphs) > self.KEPT:
            self._graphs.popitem(last=False)
        return graph(tree)

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def _capture(self, step: TreeStep, tree: Any) -> TreeStep:
        return _Graph(step, tree, self._pool)


def _with_shapes(key: Hashable, tree: Any) -> Hashable:
    """Return the key of a step for trees of this shape."""
    return key, tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))


class AutomaticGraphs(Graphs):
    """Graphs that need no supervision. They run a step directly if it is not worth a capture.

    A step is captured at its second use, so a shape that occurs once costs nothing. Captures end
    when `may_capture` says so. If a step cannot be captured, the reason is logged once, and all
    later steps of the batcher run directly.
    """

    SEEN = 1024  # keys remembered for their second use

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._began = now()
        self._seconds = 0.0  # spent on captures
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._failed = False

    def __call__(self, key: Hashable, step: TreeStep, tree: Any) -> tuple[Any, Any]:
        """Replay or capture the step, or run it directly."""
        if self._failed:
            return step(tree)
        full_key = _with_shapes(key, tree)
        if full_key not in self._graphs and not self._is_due(full_key):
            return step(_copy(tree))
        try:
            return super().__call__(key, step, tree)
        except Exception as error:
            # If the step itself fails, this raises its error, and capturing continues. A step may
            # be repeated: it writes only keys and values in place, and the same ones again.
            result = step(_copy(tree))
            self._failed = True
            self._graphs.clear()
            log_fallback(error)
            return result

    def _is_due(self, full_key: Hashable) -> bool:
        """Return whether to capture a step that has no graph yet, and remember its use."""
        seen = full_key in self._seen
        self._seen[full_key] = None
        self._seen.move_to_end(full_key)
        if len(self._seen) > self.SEEN:
            self._seen.popitem(last=False)
        return seen and may_capture(self._seconds, self._now() - self._began)

    def _capture(self, step: TreeStep, tree: Any) -> TreeStep:
        began = self._now()
        try:
            return super()._capture(step, tree)
        finally:
            self._seconds += self._now() - began


def may_capture(seconds: float, elapsed: float) -> bool:
    """Return whether another step may be captured.

    Args:
        seconds: The time spent on captures so far.
        elapsed: The time since the batcher was made.
    """
    return seconds < max(WARM_UP_SECONDS, CAPTURE_SHARE * elapsed)


def _copy(tree: Any) -> Any:
    """Return a copy of a tree that may lie in the buffers of a graph.

    The result of a step that runs directly refers to the tree, and a later replay overwrites the
    buffers.
    """
    return map_tree(tree, torch.clone)


@cache
def _log_once(message: str) -> None:
    LOG.warning(message)


def log_fallback(error: Exception) -> None:
    """Log once why steps are not captured."""
    reason = " ".join(str(error).split()) or type(error).__name__
    _log_once(
        f"CUDA graphs are off, so steps are slower: a step could not be captured ({reason[:200]})."
    )


@cache
def _warm_up_stream(device: int) -> torch.cuda.Stream:
    """Return the stream on which steps are warmed up.

    There is only one per device, because cuBLAS keeps 32 MiB of workspace for every stream.
    """
    return torch.cuda.Stream(device)


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream on which steps are captured.

    torch's own default is one stream for all devices, on the first device that is used.
    """
    return torch.cuda.Stream(device)


def _leave_failed_capture(stream: torch.cuda.Stream) -> None:
    """Undo what torch leaves behind when a capture fails.

    It stays on the stream of the capture. Its random generator still expects a graph, until a
    capture succeeds.
    """
    torch.cuda.set_stream(stream)
    capture = _capture_stream(stream.device.index)
    with (
        contextlib.suppress(Exception),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=capture),
    ):
        torch.zeros(1, device=stream.device)
    torch.cuda.set_stream(stream)


class _Graph:
    """One captured step, and the buffers it works in."""

    def __init__(self, step: TreeStep, tree: Any, pool: Any) -> None:
        self._buffers = StaticBuffers(tree)
        self._graph = torch.cuda.CUDAGraph()
        device = leaves(tree)[0].device  # it need not be torch's current device
        with torch.cuda.device(device):
            self._capture(step, pool, torch.cuda.current_device())

    def _capture(self, step: TreeStep, pool: Any, device: int) -> None:
        outside, stream = torch.cuda.current_stream(), _warm_up_stream(device)
        stream.wait_stream(outside)
        output = None
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                _, output = step(self._buffers.tree)
        outside.wait_stream(stream)
        self._buffers.reserve(output)
        # With the default mode, a capture would fail calls of other threads, such as allocations.
        mode, stream = "thread_local", _capture_stream(device)
        try:
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode=mode):
                self._buffers.run(step)
        except Exception:
            _leave_failed_capture(outside)
            raise

    def __call__(self, tree: Any) -> tuple[Any, Any]:
        self._buffers.load(tree)
        self._graph.replay()
        return self._buffers.tree, self._buffers.copy_output()


class Borrowed(NamedTuple):
    """The output of a step that is read only before the step runs again, so it is not copied."""

    value: Any


class StaticBuffers:
    """A tree in its own memory, which each step overwrites with the next tree.

    The memory is one tensor, so a step writes it with one launch instead of one per leaf. The new
    tree and the output may refer to the memory that is overwritten. For example, a full step stores
    the tokens it began with. Therefore everything is packed before anything is overwritten.
    A step that returns the tree it was given does not change it: then only its output is packed.
    """

    def __init__(self, tree: Any) -> None:
        self._layout = PackedLayout(tree)
        self._memory = pack(self._layout.pieces(tree), self._layout.size)
        self.tree = self._layout.unpack(self._memory)
        self._leaves = leaves(self.tree)
        self._output: tuple[PackedLayout, Tensor] | None = None
        self._reserved: Tensor | None = None  # the memory of a borrowed output
        self._borrowed: Borrowed | None = None

    def load(self, tree: Any) -> None:
        """Copy `tree` into the buffers. The buffers' own tree is not copied."""
        given = leaves(tree)
        pairs = [*zip(self._leaves, given, strict=True)]
        addresses = [leaf.data_ptr() for leaf in given]
        if all(mine.data_ptr() == at for mine, at in zip(self._leaves, addresses, strict=True)):
            return
        first = self._memory.data_ptr()
        if any(first <= at < first + len(self._memory) for at in addresses):
            self._memory.copy_(pack(self._layout.pieces(tree), self._layout.size))
            return
        # Nothing is read from the memory, so it is written directly: one launch for each dtype.
        for dtype in dict.fromkeys(mine.dtype for mine in self._leaves):
            targets = [mine for mine, _ in pairs if mine.dtype == dtype]
            sources = [one for mine, one in pairs if mine.dtype == dtype]
            torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]

    def reserve(self, output: Any) -> None:
        """Allocate the memory of a borrowed output, before a capture.

        Graphs share the memory that is allocated in captures, so another graph may overwrite it.
        """
        if isinstance(output, Borrowed):
            size = PackedLayout(output).size
            self._reserved = self._memory.new_empty(size)

    def run(self, step: TreeStep) -> None:
        """Run the step, keep its output, and overwrite the tree with the next tree."""
        after, output = step(self.tree)
        if after is self.tree:
            layout = PackedLayout(output)
            pieces = layout.pieces(output)
            empty = self._memory[:0]  # of a step that returns no tensors, such as a forward pass
            packed = pack(pieces, layout.size, into=self._reserved) if pieces else empty
            self._output = layout, packed
        else:
            layout = PackedLayout(output, base=self._layout, base_tree=after)
            packed = pack([*self._layout.pieces(after), *layout.pieces(output)], layout.size)
            self._output = layout, packed
            self._memory.copy_(packed[: len(self._memory)])
        self._borrowed = layout.unpack(self._output[1]) if isinstance(output, Borrowed) else None

    def copy_output(self) -> Any:
        """Return a copy of the last step's output, which the next step does not overwrite.

        A borrowed output is not copied.
        """
        if self._borrowed is not None:
            return self._borrowed
        assert self._output is not None
        layout, memory = self._output
        return layout.unpack(memory.clone())


_PLACE = torch.empty(0, device="meta")  # stands for any tensor in the structure of a tree


class PackedLayout:
    """The positions of a tree's tensors in one byte buffer, each at a multiple of ALIGNMENT.

    A layout can extend another one, its `base`. Tensors that `base_tree` already holds are then
    read from the base and not stored twice. Most of a step's output is also in the next tree.
    """

    ALIGNMENT = 16  # bytes: compiled code reads aligned tensors faster

    def __init__(self, tree: Any, *, base: PackedLayout | None = None, base_tree: Any = ()) -> None:
        self._template = map_tree(tree, lambda _: _PLACE)
        self._slices: list[BufferSlice] = []
        self._first = self.size = 0 if base is None else base.size
        base_slices = [] if base is None else base._slices
        known = dict(zip(map(_memory_key, leaves(base_tree)), base_slices, strict=True))
        for leaf in leaves(tree):
            slice_ = known.get(_memory_key(leaf))
            if slice_ is None or slice_.dtype != leaf.dtype:
                slice_ = BufferSlice(self.size, leaf.dtype, leaf.shape)
                self.size += slice_.padded_size
            self._slices.append(slice_)

    def pieces(self, tree: Any) -> list[tuple[BufferSlice, Tensor]]:
        """Return the slices and bytes of a tree with this layout, except those in the base."""
        parts: list[tuple[BufferSlice, Tensor]] = []
        for leaf, slice_ in zip(leaves(tree), self._slices, strict=True):
            if slice_.start < self._first:
                continue
            packed = leaf.to(slice_.dtype).contiguous()
            # Use as_strided: torch calls a tensor of one element contiguous with any stride.
            flat = packed.as_strided((packed.numel(),), (1,)).view(torch.uint8)
            parts.append((slice_, flat))
        return parts

    def unpack(self, memory: Tensor) -> Any:
        """Return the tree whose tensors are views of `memory`."""
        slices, typed = iter(self._slices), dict[torch.dtype, Tensor]()

        def view(_: Tensor) -> Tensor:
            slice_ = next(slices)
            if slice_.dtype not in typed:
                typed[slice_.dtype] = memory.view(slice_.dtype)
            return slice_.view(typed[slice_.dtype])

        return map_tree(self._template, view)


class BufferSlice(NamedTuple):
    """The part of a byte buffer that holds one tensor."""

    start: int
    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        """The number of bytes of the tensor."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def padded_size(self) -> int:
        """The number of bytes up to the next aligned slice."""
        return self.size + -self.size % PackedLayout.ALIGNMENT

    def bytes(self, memory: Tensor) -> Tensor:
        """Return the bytes of the tensor."""
        return memory[self.start : self.start + self.size]

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor as a view of `memory`, the whole buffer in the tensor's dtype."""
        return memory.as_strided(
            self.shape, _strides(self.shape), self.start // self.dtype.itemsize
        )


@cache
def _strides(shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    sizes = [max(1, size) for size in shape]
    return tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))


def pack(
    pieces: list[tuple[BufferSlice, Tensor]], size: int, *, into: Tensor | None = None
) -> Tensor:
    """Copy every piece to its slice of a buffer, in one launch, and return the buffer.

    By default, the buffer is new, and its gaps are not initialised.
    """
    memory = pieces[0][1].new_empty(size) if into is None else into
    slices, parts = zip(*pieces, strict=True)
    targets = [slice_.bytes(memory) for slice_ in slices]
    torch._foreach_copy_(targets, list(parts))  # pyright: ignore[reportPrivateImportUsage]
    return memory


def _memory_key(leaf: Tensor) -> Hashable:
    """Return a key that is equal for two tensors that read the same memory in the same way."""
    return leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()


class HostCopy:
    """An asynchronous copy of a tree to the host. It waits for the device only when read."""

    def __init__(self, tree: Any) -> None:
        self._tree, self._sent = tree, None
        tensors = leaves(tree)
        if tensors and tensors[0].is_cuda:
            layout = PackedLayout(tree)
            packed = pack(layout.pieces(tree), layout.size)
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            host.copy_(packed, non_blocking=True)
            event = torch.cuda.Event()
            # Of the tensors' device, which need not be torch's current device.
            event.record(torch.cuda.current_stream(packed.device))
            self._tree, self._sent = None, (layout, host, event)

    def read(self) -> Any:
        """Wait for the copy, and return the tree on the host."""
        if self._sent is not None:
            layout, host, event = self._sent
            event.synchronize()
            self._tree, self._sent = layout.unpack(host), None
        return self._tree
