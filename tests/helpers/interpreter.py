"""Triton's interpreter, with a GPU's rounding, and with a check of every access to memory.

Import this before `wavefront.kernels.triton_kernels`, in a process with TRITON_INTERPRET=1.
"""

# Triton is not installed everywhere.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

Builder = interpreter.InterpreterBuilder
TORCH = {
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
    tl.float16: (torch.float16, torch.int16),
    tl.bfloat16: (torch.bfloat16, torch.int16),
    tl.float32: (torch.float32, torch.int32),
}


def convert(data: np.ndarray, source: Any, target: Any, _rounding: Any) -> np.ndarray:
    """Return the bits of the numbers in another type, rounded to nearest even.

    The interpreter's own conversion to fp8 loses the carry when a mantissa is rounded up to the
    next power of two (1.97 becomes 1.0, not 2.0), and cuts subnormal numbers off. Its conversion
    to bfloat16 always cuts off.
    """
    (given, bits), (wanted, made_bits) = TORCH[source], TORCH[target]
    numbers = torch.from_numpy(np.ascontiguousarray(data)).view(bits).view(given)
    return numbers.to(wanted).view(made_bits).numpy().view(f"u{wanted.itemsize}")


def widen(handle: Any) -> Any:
    """Return bfloat16 numbers in float32, because numpy cannot multiply them."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    data = convert(handle.data, tl.bfloat16, tl.float32, None).view(np.float32)
    return interpreter.TensorHandle(data, tl.float32)


class Memory:
    """The tensors of one launch, and which program reads and writes which of their numbers.

    Programs run at the same time on a GPU. So a program may not read or write what another one
    writes, unless it waited for it: it counted itself after the other one, at the same address.
    """

    current: Memory | None = None

    def __init__(self, tensors: list[Tensor], programs: int) -> None:
        self.areas: list[tuple[int, int, np.ndarray, np.ndarray]] = []
        for tensor in tensors:
            numbers = 1 + sum(
                (size - 1) * stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            if tensor.numel():
                readers, writers = (np.zeros(numbers, np.int64) for _ in range(2))
                self.areas.append((tensor.data_ptr(), tensor.element_size(), readers, writers))
        self.counted: dict[int, list[int]] = {}
        self.several = programs + 1  # the mark of numbers that several programs read
        self.program, self.known = 0, np.empty(0, bool)

    def start(self, program: int) -> None:
        """Begin a program, numbered from 1. It knows its own numbers, and those nobody wrote."""
        self.program, self.known = program, np.zeros(self.several + 1, bool)
        self.known[[0, program]] = True

    def find(self, addresses: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the readers and writers of a tensor, and the indices of its numbers in both."""
        left = addresses.astype(np.int64)
        for base, size, readers, writers in self.areas:
            inside = (left >= base) & (left < base + size * len(readers))
            if inside.any():
                places, rest = np.divmod(left[inside] - base, size)
                assert not rest.any(), "an address is between two numbers"
                yield readers, writers, places
                left = left[~inside]
        assert not len(left), "an access is outside of all tensors"

    def read(self, addresses: np.ndarray) -> None:
        for readers, writers, places in self.find(addresses):
            assert self.known[writers[places]].all(), "a program reads what another one writes"
            alone = np.isin(readers[places], (0, self.program))
            readers[places] = np.where(alone, self.program, self.several)

    def write(self, addresses: np.ndarray) -> None:
        assert len(np.unique(addresses)) == len(addresses), "a number is written twice at once"
        for readers, writers, places in self.find(addresses):
            assert self.known[writers[places]].all(), "two programs write the same number"
            assert self.known[readers[places]].all(), "a program writes what another one reads"
            writers[places] = self.program

    def count(self, addresses: np.ndarray) -> None:
        """Note an atomic operation: this program knows what those before it at an address wrote."""
        for _, writers, places in self.find(addresses):
            assert not writers[places].any(), "a counter is counted and written"
        for address in addresses.tolist():
            self.known[self.counted.setdefault(address, [])] = True
            self.counted[address].append(self.program)


@contextmanager
def watch(tensors: list[Tensor], grid: tuple[int, ...]) -> Iterator[None]:
    """Check the accesses of a launch with these tensors."""
    Memory.current = Memory(tensors, prod(grid))
    try:
        yield
    finally:
        Memory.current = None


_backwards = False


@contextmanager
def run_backwards() -> Iterator[None]:
    """Run the programs of every grid from the last one to the first."""
    global _backwards
    _backwards = True
    try:
        yield
    finally:
        _backwards = False


def install() -> None:
    """Change the interpreter for the rest of this process, and fill new tensors with NaN."""
    torch.use_deterministic_algorithms(True)
    interpreter._convert_float = convert
    dot, load, store, atomic, place = (
        Builder.create_dot,
        Builder.create_masked_load,
        Builder.create_masked_store,
        Builder.create_atomic_rmw,
        Builder.set_grid_idx,
    )

    def set_grid_idx(self: Any, *index: int) -> None:
        if _backwards:
            index = tuple(size - 1 - at for size, at in zip(self.grid_dim, index, strict=True))
        place(self, *index)
        if Memory.current:
            Memory.current.start(1 + int(np.ravel_multi_index(index, self.grid_dim)))

    def create_dot(self: Any, one: Any, other: Any, *rest: Any) -> Any:
        return dot(self, widen(one), widen(other), *rest)

    def create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        if Memory.current:
            Memory.current.read(pointers.data[mask.data.astype(bool)])
        return load(self, pointers, mask, *rest)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if Memory.current:
            Memory.current.write(pointers.data[mask.data.astype(bool)])
        return store(self, pointers, value, mask, *rest)

    def create_atomic_rmw(self: Any, kind: Any, pointers: Any, *rest: Any) -> Any:
        if Memory.current:
            Memory.current.count(pointers.data[rest[1].data.astype(bool)])
        return atomic(self, kind, pointers, *rest)

    for function in (
        set_grid_idx,
        create_dot,
        create_masked_load,
        create_masked_store,
        create_atomic_rmw,
    ):
        setattr(Builder, function.__name__, function)
