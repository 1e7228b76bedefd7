"""Batches: which items are decoded together, on a board of which size.

Floating-point sums depend on the shape of the board, so the shape an item is decoded in must not
depend on how a run was cut up. It follows from the item alone: prompts are padded to one of a few
widths, and every batch has the same number of rows, the last of a width being filled up with
copies. Which items share a batch follows from the list of items, so that a run that goes on, or one
that is shared out, makes the very same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wavefront.core.errors import OptionError, check_int

RULE = 1  # of all this; goes up when a run would be cut otherwise
NARROWEST = 32


class Batch(NamedTuple):
    """Items that are decoded at once."""

    number: int
    width: int  # places before the answer: what prompts are padded to
    items: tuple[int, ...]  # by their numbers; the longest prompt first


class Division(NamedTuple):
    """All items of a run."""

    batches: list[Batch]  # the largest boards first: if memory is short, it shows at once
    too_long: list[int]  # prompts that the model has no room for


class Shard(NamedTuple):
    """One of `parts`, counted from 0; batches are dealt out like cards."""

    number: int = 0
    parts: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "2/8"."""
        number, slash, parts = text.partition("/")
        if not (slash and number.isdecimal() and parts.isdecimal()) or int(number) >= int(parts):
            raise OptionError(f"A shard is written i/n with i from 0 to n - 1, not {text!r}.")
        return cls(int(number), int(parts))

    def has(self, batch: Batch) -> bool:
        """Whether a batch is of this part."""
        return batch.number % self.parts == self.number


WHOLE = Shard()


def width_of(length: int) -> int:
    """The width for a prompt: 32, 48, 64, 96, 128, 192, …; a half more or a third more each."""
    width = NARROWEST
    while width < length:
        half = width + width // 2
        width = half if half >= length else 2 * width
    return width


def divide(lengths: Sequence[int], *, rows: int, places: int, room: int) -> Division:
    """Batches of `rows` prompts with these lengths, before `places` to fill, in `room` places."""
    check_int("batch_size", rows, 1)
    most = room - places
    too_long = [item for item, length in enumerate(lengths) if length > most]
    widths: dict[int, list[int]] = {}
    for item, length in enumerate(lengths):
        if length <= most:
            widths.setdefault(min(width_of(length), most), []).append(item)
    cut: list[tuple[int, tuple[int, ...]]] = []
    for width in sorted(widths, reverse=True):
        listed = sorted(widths[width], key=lambda item: (-lengths[item], item))
        cut += [(width, tuple(listed[at : at + rows])) for at in range(0, len(listed), rows)]
    return Division([Batch(number, *one) for number, one in enumerate(cut)], too_long)
