"""The two reference loops, written from their published descriptions.

`llada`: every step computes all positions and all logits, takes a float64 softmax, and chooses row
by row, with or without blocks. `dual`: Fast-dLLM's dual cache, a full pass at the start of a block
and then only the block, against stored keys and values. Both yield after every step, so that they
can be timed in pieces. Neither is optimised, because the published programs are not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wavefront.bench.reference_model import Reference
from wavefront.core.errors import OptionError


def llada(
    model: Reference, tokens: Tensor, prompt_tokens: int, *, steps: int, block: int | None = None
) -> Iterator[Tensor]:
    """Fill the positions of (B, L) after the prompt in place; yield the canvas after each step."""
    length = tokens.shape[1] - prompt_tokens
    size = length if block is None else block
    _check(length, size, steps)
    each = steps * size // length
    for start in range(prompt_tokens, prompt_tokens + length, size):
        end = start + size
        counts = transfers(tokens[:, start:end] == model.mask_id, each)
        for step in range(each):
            with torch.no_grad():
                masked = tokens == model.mask_id
                logits = model(tokens)[0]
                best = logits.argmax(dim=-1)  # at temperature 0 there is no noise
                confident = confidence(logits, best)
                confident[:, end:] = float("-inf")
                commit(tokens, best, confident, masked=masked, counts=counts[:, step])
            yield tokens


def dual(
    model: Reference, tokens: Tensor, prompt_tokens: int, *, steps: int, block: int = 32
) -> Iterator[Tensor]:
    """Fill the canvas block by block. After the first step of a block, compute only the block."""
    length = tokens.shape[1] - prompt_tokens
    _check(length, block, steps)
    each = steps * block // length
    for start in range(prompt_tokens, prompt_tokens + length, block):
        end = start + block
        counts = transfers(tokens[:, start:end] == model.mask_id, each)
        with torch.no_grad():
            logits, past = model(tokens)
            best = logits.argmax(dim=-1)
            masked = tokens == model.mask_id
            masked[:, end:] = False
            confident = confidence(logits, best)
            commit(tokens, best, confident, masked=masked, counts=counts[:, 0])
            replace = torch.zeros_like(tokens, dtype=torch.bool)
            replace[:, start:end] = True
        yield tokens
        part = tokens[:, start:end]
        for step in range(1, each):
            with torch.no_grad():
                masked = part == model.mask_id
                logits = model(part, past, replace)[0]
                best = logits.argmax(dim=-1)
                confident = confidence(logits, best)
                commit(part, best, confident, masked=masked, counts=counts[:, step])
            yield tokens
            if (part == model.mask_id).sum() == 0:
                break


def confidence(logits: Tensor, best: Tensor) -> Tensor:
    """Return the (B, S) float64 probability of the best token, from a softmax of all logits."""
    probability = torch.softmax(logits.to(torch.float64), dim=-1)
    return torch.gather(probability, -1, best.unsqueeze(-1)).squeeze(-1)


def commit(
    tokens: Tensor, best: Tensor, confident: Tensor, *, masked: Tensor, counts: Tensor
) -> None:
    """Write the most confident tokens of every row, a row at a time."""
    best = torch.where(masked, best, tokens)
    confident = torch.where(masked, confident, float("-inf"))
    chosen = torch.zeros_like(best, dtype=torch.bool)
    for row in range(confident.shape[0]):
        _, index = torch.topk(confident[row], k=int(counts[row]))
        chosen[row, index] = True
    tokens[chosen] = best[chosen]


def transfers(masked: Tensor, steps: int) -> Tensor:
    """Return (B, steps): how many positions each step commits; the first steps get the rest."""
    total = masked.sum(dim=1, keepdim=True)
    counts = torch.zeros(len(masked), steps, device=masked.device, dtype=torch.int64)
    counts += total // steps
    for row in range(len(masked)):
        counts[row, : int(total[row] % steps)] += 1
    return counts


def _check(length: int, block: int, steps: int) -> None:
    if length < 1 or length % block or (steps * block) % length or steps * block < length:
        raise OptionError(
            f"The reference loops need equal blocks and equal steps: {length} positions in blocks "
            f"of {block} cannot take {steps} steps; choose multiples."
        )
