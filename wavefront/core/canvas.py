"""The canvas that a decode fills: a prompt, followed by or mixed with masked positions.

Whether a position is masked is state. Nothing in the project tests `token == mask_id`: a mask id
in a prompt is a token like any other, and a committed position stays committed, even if its token
is the mask id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core.masks import positions
from wavefront.core.tree import count_true, plural


class Canvas(NamedTuple):
    """A batch of B canvases of length L. Padding is neither masked nor known."""

    tokens: Tensor  # (B, L) long; the mask id where masked
    masked: Tensor  # (B, L) bool: not decided yet
    known: Tensor  # (B, L) bool: decided, in the prompt or in the answer
    slot: Tensor  # (B, L) long: 0 … N-1 over the positions to fill, left to right; -1 elsewhere

    def __repr__(self) -> str:
        rows, length = self.masked.shape
        counts = f"{count_true(self.masked)} masked, {count_true(self.known)} known"
        return f"Canvas({plural(rows, 'row')} of {plural(length, 'position')}, {counts})"

    @property
    def real(self) -> Tensor:
        """(B, L) bool: every position except padding."""
        return self.masked | self.known

    def commit(self, where: Tensor, tokens: Tensor) -> Canvas:
        """Return the canvas with `tokens` (B, L) written at `where` (B, L) bool."""
        tokens = torch.where(where, tokens, self.tokens)
        return Canvas(tokens, self.masked & ~where, self.known | where, self.slot)

    def take_back(self, where: Tensor, mask_id: int) -> Canvas:
        """Return the canvas with the positions `where` (B, L) bool masked again."""
        tokens = self.tokens.masked_fill(where, mask_id)
        return Canvas(tokens, self.masked | where, self.known & ~where, self.slot)


def blank(
    prompts: Sequence[Sequence[int]],
    length: int | Sequence[int],
    *,
    mask_id: int,
    pad_id: int,
    device: torch.device | str = "cpu",
    padding: int = 0,
) -> Canvas:
    """Return prompts followed by `length` masked positions, left-padded to align the answers.

    `padding` positions of padding come before the longest prompt.
    """
    lengths = [length] * len(prompts) if isinstance(length, int) else list(length)
    rows = [[*prompt, *[mask_id] * n] for prompt, n in zip(prompts, lengths, strict=True)]
    holes = [[False] * len(p) + [True] * n for p, n in zip(prompts, lengths, strict=True)]
    before = max(len(prompt) for prompt in prompts) + padding
    left = [before - len(prompt) for prompt in prompts]
    return _build(rows, holes, left, pad_id=pad_id, device=device)


def infill(
    rows: Sequence[Sequence[int]],
    holes: Sequence[Sequence[bool]],
    *,
    mask_id: int,
    pad_id: int,
    device: torch.device | str = "cpu",
) -> Canvas:
    """Return texts with holes at any position; the token at a hole in `rows` is ignored."""
    filled = [
        [mask_id if hole else token for token, hole in zip(row, marks, strict=True)]
        for row, marks in zip(rows, holes, strict=True)
    ]
    width = max(len(row) for row in rows)
    return _build(filled, holes, [width - len(row) for row in rows], pad_id=pad_id, device=device)


def _build(
    rows: Sequence[Sequence[int]],
    holes: Sequence[Sequence[bool]],
    left: Sequence[int],
    *,
    pad_id: int,
    device: torch.device | str,
) -> Canvas:
    """Return the canvas of rows with holes, each row after `left` positions of padding."""
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
    """Return bool, shaped like `tokens`: the token is one of a few `ids`."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for id in ids:
        found = found | (tokens == id)
    return found


def is_complete(canvas: Canvas, final: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """Return (B,) bool: every hole is decided up to its first stop token, or to its end.

    Only `final` positions count, because a token that may still be remasked must not end a row.
    """
    here = positions(canvas.masked)
    answer = canvas.slot >= 0
    before = torch.nn.functional.pad(answer[:, :-1], (1, 0), value=False)
    start = torch.where(answer & ~before, here, -1).cummax(-1).values
    stop = answer & final & is_any(canvas.tokens, stop_ids)
    last_stop = torch.where(stop, here, -1).cummax(-1).values
    # A position after a stop token of its own hole is not part of the visible text.
    undecided = answer & ~final & (last_stop < start)
    return ~undecided.any(-1)
