"""Batches: which items are decoded together, and in which shape.

Floating-point sums depend on the shape of the canvas. So the shape in which an item is decoded
must not depend on how a run was interrupted or divided. Prompts are padded to one of a few
widths, and a batch has one row per item. The list of items alone determines which items share a
batch. A resumed run and a sharded run therefore make exactly the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wavefront.core.errors import OptionError, check_int

RULE = 3  # version of this division; increase it when a run would be divided differently
MIN_WIDTH = 32


class Batch(NamedTuple):
    """Items that are decoded together."""

    number: int
    width: int  # positions before the answer: prompts are padded to it
    items: tuple[int, ...]  # item numbers, the longest prompt first


class Division(NamedTuple):
    """All items of a run."""

    batches: list[Batch]  # the largest first, so that out-of-memory errors appear at once
    too_long: list[int]  # items whose prompt and answer exceed the model


class Shard(NamedTuple):
    """Part `number`, counted from 0, of `parts`; batches go to the shards in turn."""

    number: int = 0
    parts: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard that is written as "2/8"."""
        number, slash, parts = text.partition("/")
        if not (slash and number.isdecimal() and parts.isdecimal()) or int(number) >= int(parts):
            raise OptionError(
                f"A shard is written i/n with i from 0 to n - 1, not {text!r}.",
                option="shard",
                value=text,
            )
        return cls(int(number), int(parts))

    def has(self, batch: Batch) -> bool:
        """Return whether a batch belongs to this shard."""
        return batch.number % self.parts == self.number


ALL = Shard()


def width_of(length: int) -> int:
    """Return the width for a prompt of `length` tokens: 32, 48, 64, 96, 128, 192, …"""
    width = MIN_WIDTH
    while width < length:
        half = width + width // 2
        width = half if half >= length else 2 * width
    return width


def divide(
    lengths: Sequence[int],
    *,
    rows: int,
    new_tokens: int,
    max_length: int,
    kinds: Sequence[str] | None = None,
) -> Division:
    """Divide prompts of these lengths into batches of `rows`, or fewer in the last of a width.

    `new_tokens` masked positions follow every prompt; the model holds `max_length` positions.
    Items of different `kinds` never share a batch; None means that all have the same kind.
    """
    check_int("batch_size", rows, 1)
    longest = max_length - new_tokens
    too_long = [item for item, length in enumerate(lengths) if length > longest]
    parts: dict[tuple[int, str], list[int]] = {}
    for item, length in enumerate(lengths):
        if length <= longest:
            kind = "" if kinds is None else kinds[item]
            parts.setdefault((min(width_of(length), longest), kind), []).append(item)
    batches: list[Batch] = []
    for width, kind in sorted(parts, reverse=True):
        items = sorted(parts[width, kind], key=lambda item: (-lengths[item], item))
        for start in range(0, len(items), rows):
            batches.append(Batch(len(batches), width, tuple(items[start : start + rows])))
    return Division(batches, too_long)
