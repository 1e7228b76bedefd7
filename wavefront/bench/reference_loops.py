"""The two reference loops, from their published descriptions.

`llada`: every step computes all places and all logits, takes a float64 softmax of them, and chooses
row by row; without blocks (standard) or block after block. `dual`: Fast-dLLM's dual cache, a full
pass at the start of a block and then the block alone against stored keys and values. Both yield
after every step, so that they can be timed in pieces; neither is tuned: that is their purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wavefront.bench.reference_model import Reference
from wavefront.core.errors import OptionError


def llada(
    model: Reference, tokens: Tensor, given: int, *, steps: int, block: int | None = None
) -> Iterator[Tensor]:
    """Fill (B, L) in place from place `given` on, in `steps`; the canvas after each of them."""
    length = tokens.shape[1] - given
    size = length if block is None else block
    _check(length, size, steps)
    each = steps * size // length
    for start in range(given, given + length, size):
        end = start + size
        counts = transfers(tokens[:, start:end] == model.mask_id, each)
        for step in range(each):
            with torch.no_grad():
                open_ = tokens == model.mask_id
                logits = model(tokens)[0]
                best = logits.argmax(dim=-1)  # at temperature 0 the noise is left out
                sure = confidence(logits, best)
                sure[:, end:] = float("-inf")
                choose(tokens, best, sure, open_, counts[:, step])
            yield tokens


def dual(
    model: Reference, tokens: Tensor, given: int, *, steps: int, block: int = 32
) -> Iterator[Tensor]:
    """The same by blocks, only the block being computed after its first step."""
    length = tokens.shape[1] - given
    _check(length, block, steps)
    each = steps * block // length
    for start in range(given, given + length, block):
        end = start + block
        counts = transfers(tokens[:, start:end] == model.mask_id, each)
        with torch.no_grad():
            logits, past = model(tokens)
            best = logits.argmax(dim=-1)
            open_ = tokens == model.mask_id
            open_[:, end:] = False
            choose(tokens, best, confidence(logits, best), open_, counts[:, 0])
            replace = torch.zeros_like(tokens, dtype=torch.bool)
            replace[:, start:end] = True
        yield tokens
        part = tokens[:, start:end]
        for step in range(1, each):
            with torch.no_grad():
                open_ = part == model.mask_id
                logits = model(part, past, replace)[0]
                best = logits.argmax(dim=-1)
                choose(part, best, confidence(logits, best), open_, counts[:, step])
            yield tokens
            if (part == model.mask_id).sum() == 0:
                break


def confidence(logits: Tensor, best: Tensor) -> Tensor:
    """(B, S) float64: the probability of the best token, from a softmax of everything."""
    probability = torch.softmax(logits.to(torch.float64), dim=-1)
    return torch.gather(probability, -1, best.unsqueeze(-1)).squeeze(-1)


def choose(tokens: Tensor, best: Tensor, sure: Tensor, open_: Tensor, counts: Tensor) -> None:
    """Write the surest tokens of every row, a row at a time."""
    best = torch.where(open_, best, tokens)
    sure = torch.where(open_, sure, float("-inf"))
    chosen = torch.zeros_like(best, dtype=torch.bool)
    for row in range(sure.shape[0]):
        _, places = torch.topk(sure[row], k=int(counts[row]))
        chosen[row, places] = True
    tokens[chosen] = best[chosen]


def transfers(open_: Tensor, steps: int) -> Tensor:
    """(B, steps) long: how many places each step settles; the remainder goes to the first ones."""
    total = open_.sum(dim=1, keepdim=True)
    counts = torch.zeros(len(open_), steps, device=open_.device, dtype=torch.int64) + total // steps
    for row in range(len(open_)):
        counts[row, : int(total[row] % steps)] += 1
    return counts


def _check(length: int, block: int, steps: int) -> None:
    if length < 1 or length % block or (steps * block) % length or steps * block < length:
        raise OptionError(
            f"The reference loops need blocks of equal size and steps: {length} places in blocks "
            f"of {block} do not take {steps} steps; choose multiples."
        )
