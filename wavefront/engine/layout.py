"""Where a request lies on the canvas of a block-causal model, and the blocks of its positions.

A position of such a model attends to its own block and to earlier blocks. So a canvas ends where a
block ends, and keys and values of finished blocks never change. For other models, every function
here returns values that leave the canvas unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, blank
from wavefront.core.masks import FAR, positions
from wavefront.models.protocol import Model


def padding_before(model: Model, prompt: int) -> int:
    """Return how many positions of padding come before a prompt of this length."""
    if model.block_size is None or not model.padded_blocks:
        return 0
    return -prompt % model.block_size


def masks_after(model: Model, length: int) -> int:
    """Return how many masked positions complete the last block of `length` positions."""
    if model.block_size is None or not model.whole_blocks:
        return 0
    return -length % model.block_size


def most_around(model: Model) -> tuple[int, int]:
    """Return the most padding before a prompt, and the most masks that complete a last block."""
    most = (model.block_size or 1) - 1
    return most * model.padded_blocks, most * model.whole_blocks


def room_after(model: Model, prompt: int, length: int) -> int:
    """Return how many positions fit after a prompt on a canvas of `length` positions."""
    if model.block_size is not None and model.whole_blocks:
        length -= length % model.block_size
    return length - padding_before(model, prompt) - prompt


def room_before(model: Model, answer: int) -> int:
    """Return how many tokens of a prompt fit before `answer` positions in the model's length."""
    room = room_after(model, 0, model.max_length) - answer
    if model.block_size is not None and model.padded_blocks:
        room -= room % model.block_size  # the prompt fills whole blocks
    return room


def prompt_canvas(model: Model, prompts: Sequence[Sequence[int]], length: int) -> Canvas:
    """Return prompts, each followed by `length` masked positions, or more in the last block."""
    lengths = [length + masks_after(model, len(prompt) + length) for prompt in prompts]
    longest = max(len(prompt) for prompt in prompts)
    return blank(
        prompts,
        lengths,
        mask_id=model.mask_id,
        pad_id=model.pad_id,
        device=model.device,
        padding=padding_before(model, longest),
    )


def block_numbers(model: Model, canvas: Canvas) -> Tensor:
    """Return (B, L) long: the number of the block of every position, 0 in padding."""
    assert model.block_size is not None
    here = positions(canvas.masked)
    if not model.padded_blocks:
        here = here - torch.where(canvas.real, here, FAR).amin(-1, keepdim=True)
    return here.clamp(min=0) // model.block_size


def whole_blocks(model: Model, canvas: Canvas, mask: Tensor) -> Tensor:
    """Return (B, L) bool: every real position whose block has a position of `mask`."""
    assert model.block_size is not None
    numbers = block_numbers(model, canvas).expand_as(mask)
    count = mask.shape[1] // model.block_size + 1
    marks = torch.zeros((len(mask), count), dtype=torch.int32, device=mask.device)
    marks = marks.scatter_add(1, numbers, mask.int())
    return (marks.gather(1, numbers) > 0) & canvas.real
