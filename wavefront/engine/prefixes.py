"""Keys and values of prompts, shared between the requests of a block-causal model.

A position of such a model attends to its own block and to earlier ones. So the keys and values of
a block depend on nothing but the tokens up to its end, and a second request with the same first
tokens can use those of the first one. Prompts are stored in chunks of whole blocks. A chunk is
found by the chunk before it and its own tokens, so two prompts share what they have in common.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core.errors import check_int
from wavefront.core.tree import leaves
from wavefront.models.protocol import KV, Model
from wavefront.models.quantize import quantization_of

MIN_CHUNK = 64  # positions; smaller chunks would share little more and take longer to copy


class _Chunk(NamedTuple):
    """The keys and values of one chunk of a prompt."""

    number: int  # names the chunk, and with it all tokens up to its end
    kv: Tensor  # (2 · layers, Hkv, chunk, head_dim): keys of all layers, then values


class PrefixStore:
    """Keys and values of the most recently used prompts, in at most `max_bytes`."""

    def __init__(self, model: Model, max_bytes: int) -> None:
        """Store nothing yet.

        Args:
            model: The model. Nothing is stored unless `can_share` is true for it.
            max_bytes: The maximum memory for keys and values. The least recently used prompt is
                removed first, starting from its end.
        """
        check_int("max_bytes", max_bytes, 0)
        self.chunk: int = 0  # positions; a multiple of the block size
        self.capacity: int = 0  # chunks
        self.chunk_bytes: int = 0
        if can_share(model) and model.block_size is not None:
            self.chunk = -(-MIN_CHUNK // model.block_size) * model.block_size
            one = sum(leaf.nbytes for leaf in leaves(model.new_kv(1, 1)))
            self.chunk_bytes = one * self.chunk
            self.capacity = max_bytes // self.chunk_bytes
        self._chunks: OrderedDict[Hashable, _Chunk] = OrderedDict()  # the longest unused first
        self._next = 1

    @property
    def nbytes(self) -> int:
        """The memory that is in use."""
        return len(self._chunks) * self.chunk_bytes

    def clear(self) -> None:
        """Remove everything."""
        self._chunks.clear()

    def load(self, columns: Sequence[int], kv: KV, row: int) -> int:
        """Copy the stored part of a prompt into a row of `kv`; return its number of columns.

        Args:
            columns: The tokens that are known from the first column on; -1 is padding.
            kv: The buffers of a batch.
            row: The row of the batch.
        """
        found = [chunk for _, chunk in self._find(columns)]
        if not found:
            return 0
        length = len(found) * self.chunk
        stored = torch.cat([chunk.kv for chunk in found], dim=2)
        targets = [buffer[row, :, :length] for buffer in (*kv.keys, *kv.values)]
        torch._foreach_copy_(targets, list(stored))  # pyright: ignore[reportPrivateImportUsage]
        return length

    def add(self, columns: Sequence[int], kv: KV, row: int) -> None:
        """Store the prompt of a row of `kv`, up to its last whole chunk; see `load`."""
        found = self._find(columns)
        count = min(self.capacity, len(columns) // self.chunk if self.chunk else 0)
        if len(found) >= count:
            return
        while len(self._chunks) > self.capacity - (count - len(found)):
            self._chunks.popitem(last=False)  # not one of `found`: those were used last
        span = slice(len(found) * self.chunk, count * self.chunk)
        layers = [buffer[row, :, span] for buffer in (*kv.keys, *kv.values)]
        parts = torch.stack(layers).split(self.chunk, dim=2)
        parent = found[-1][1].number if found else 0
        keys = [key for key, _ in found]
        for number, part in enumerate(parts, start=len(found)):
            key = (parent, tuple(columns[number * self.chunk : (number + 1) * self.chunk]))
            self._chunks[key] = _Chunk(self._next, part.clone())
            parent, self._next = self._next, self._next + 1
            keys.append(key)
        self._mark_used(keys)

    def _find(self, columns: Sequence[int]) -> list[tuple[Hashable, _Chunk]]:
        """Return the stored chunks of a prompt, from its first one on."""
        found = list(self._walk(columns))
        self._mark_used([key for key, _ in found])
        return found

    def _walk(self, columns: Sequence[int]) -> Iterator[tuple[Hashable, _Chunk]]:
        parent = 0
        for start in range(0, len(columns) - self.chunk + 1, self.chunk or 1):
            key = (parent, tuple(columns[start : start + self.chunk]))
            chunk = self._chunks.get(key)
            if chunk is None:
                return
            parent = chunk.number
            yield key, chunk

    def _mark_used(self, keys: Sequence[Hashable]) -> None:
        """Mark chunks as used, from the last to the first, so that the end is removed first."""
        for key in reversed(keys):
            self._chunks.move_to_end(key)


def can_share(model: Model) -> bool:
    """Return whether stored keys and values of a prompt give the same answers as new ones.

    The matrix products of fp8 weights depend on the number of positions, so they do not.
    """
    if model.block_size is None or not model.windows:
        return False
    return quantization_of(model) != "fp8"
