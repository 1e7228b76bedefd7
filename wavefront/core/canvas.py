"""Canvas: the board that a decode fills, a prompt followed by (or mixed with) places to decide.

Masked is state. Nothing here or elsewhere asks whether `token == mask_id`: a mask id typed into a
prompt is a token like any other, and a place that was decided stays decided whatever stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core.masks import positions


class Canvas(NamedTuple):
    """A batch of boards. Padding is neither masked nor known."""

    tokens: Tensor  # (B, L) long; the mask id where masked
    masked: Tensor  # (B, L) bool: still to be decided
    known: Tensor  # (B, L) bool: real and decided, prompt or answer
    slot: Tensor  # (B, L) long: 0 … N-1 over the places to fill, left to right; -1 elsewhere

    @property
    def real(self) -> Tensor:
        """(B, L) bool: everything but padding; what attention may look at."""
        return self.masked | self.known

    def commit(self, where: Tensor, what: Tensor) -> Canvas:
        """The canvas with `what` written at `where`."""
        tokens = torch.where(where, what, self.tokens)
        return Canvas(tokens, self.masked & ~where, self.known | where, self.slot)

    def take_back(self, where: Tensor, mask_id: int) -> Canvas:
        """The canvas with the places `where` undecided again."""
        tokens = self.tokens.masked_fill(where, mask_id)
        return Canvas(tokens, self.masked | where, self.known & ~where, self.slot)


def blank(
    prompts: Sequence[Sequence[int]],
    length: int | Sequence[int],
    *,
    mask_id: int,
    pad_id: int,
    device: torch.device | str = "cpu",
) -> Canvas:
    """Prompts followed by `length` masked places, left-padded so that the answers line up."""
    lengths = [length] * len(prompts) if isinstance(length, int) else list(length)
    rows = [[*prompt, *[mask_id] * n] for prompt, n in zip(prompts, lengths, strict=True)]
    holes = [[False] * len(p) + [True] * n for p, n in zip(prompts, lengths, strict=True)]
    before = max(len(prompt) for prompt in prompts)
    left = [before - len(prompt) for prompt in prompts]
    return _board(rows, holes, left, pad_id, device)


def infill(
    rows: Sequence[Sequence[int]],
    holes: Sequence[Sequence[bool]],
    *,
    mask_id: int,
    pad_id: int,
    device: torch.device | str = "cpu",
) -> Canvas:
    """Given texts with holes anywhere; what stands in `rows` at a hole does not matter."""
    filled = [
        [mask_id if hole else token for token, hole in zip(row, marks, strict=True)]
        for row, marks in zip(rows, holes, strict=True)
    ]
    width = max(len(row) for row in rows)
    return _board(filled, holes, [width - len(row) for row in rows], pad_id, device)


def _board(
    rows: Sequence[Sequence[int]],
    holes: Sequence[Sequence[bool]],
    left: Sequence[int],
    pad_id: int,
    device: torch.device | str,
) -> Canvas:
    width = max(pad + len(row) for pad, row in zip(left, rows, strict=True))
    tokens = torch.full((len(rows), width), pad_id)
    masked = torch.zeros(len(rows), width, dtype=torch.bool)
    real = torch.zeros_like(masked)
    for index, (row, marks, pad) in enumerate(zip(rows, holes, left, strict=True)):
        here = slice(pad, pad + len(row))
        tokens[index, here] = torch.tensor(row, dtype=torch.long)
        masked[index, here] = torch.tensor(marks, dtype=torch.bool)
        real[index, here] = True
    slot = torch.where(masked, masked.long().cumsum(-1) - 1, -1)
    return Canvas(*(t.to(device) for t in (tokens, masked, real & ~masked, slot)))


def is_any(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """bool, shaped like tokens: the token is one of `ids`, a handful known on the host."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for one in ids:
        found = found | (tokens == one)
    return found


def finished(canvas: Canvas, final: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """(B,) bool: every hole is decided up to its first stop token, or to its end.

    Only `final` places count, so that a token which may still be taken back ends nothing.
    """
    here = positions(canvas.masked)
    inside = canvas.slot >= 0
    before = torch.nn.functional.pad(inside[:, :-1], (1, 0), value=False)
    start = torch.where(inside & ~before, here, -1).cummax(-1).values
    stop = inside & final & is_any(canvas.tokens, stop_ids)
    last_stop = torch.where(stop, here, -1).cummax(-1).values
    # A place after a stop token of its own hole is padding of the answer: nobody will read it.
    undecided = inside & ~final & (last_stop < start)
    return ~undecided.any(-1)
