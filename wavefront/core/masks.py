"""Mask algebra on (B, L) tensors: distance, near, smallest, to_mask, rank, top, first.

Every choice of positions by score goes through `rank`, because its order is exact: higher score
first, ties to the smaller position, NaN and -inf last among the candidates. `topk` and `argmax` do
not guarantee an order among ties, and saturated confidences do tie.

Compiled code orders positions by counting instead of sorting, and finds them by comparing instead
of scattering. The compiler fuses this code, whereas a sort or a scatter takes several dependent
kernels. Both paths return the same results: if you change the order in one, change the other too.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch.nn import functional as F

FAR = 1 << 30  # further than any distance between positions, and than any option: see bounds.py
SHIFTS = 8  # up to this radius, compiled code compares shifted masks instead of all pairs


def positions(board: Tensor) -> Tensor:
    """Return (1, L) long: 0 … L-1, to broadcast against a (B, L) tensor."""
    return torch.arange(board.shape[-1], device=board.device)[None, :]


def distance(mask: Tensor) -> Tensor:
    """Return (B, L) long: the distance to the nearest True in the row; at least FAR if none."""
    here = positions(mask)
    if torch.compiler.is_compiling():  # one kernel instead of two dependent scans
        here = here.int()  # half the work of long, over all pairs of positions
        away = (here[:, None, :] - here[:, :, None]).abs()
        return torch.where(mask[:, None, :], away, FAR).amin(-1).long()
    left = torch.where(mask, here, -FAR).cummax(-1).values
    right = torch.where(mask, here, 2 * FAR).flip(-1).cummin(-1).values.flip(-1)
    return torch.minimum(here - left, right - here)


def near(mask: Tensor, radius: int) -> Tensor:
    """Return (B, L) bool: the positions within `radius` of a True in the row."""
    if torch.compiler.is_compiling():
        if radius > SHIFTS:
            return distance(mask) <= min(radius, FAR - 1)
        # Shifted masks fuse with the surrounding code; a cumulative sum does not.
        length, padded = mask.shape[-1], F.pad(mask, (radius, radius))
        return reduce(or_, (padded[:, at : at + length] for at in range(2 * radius + 1)))
    radius = min(radius, mask.shape[-1])
    # A True lies within the radius if the count differs between the two ends of the radius.
    counted = F.pad(mask, (radius + 1, radius)).cumsum(-1)
    return counted[:, 2 * radius + 1 :] > counted[:, : -2 * radius - 1]


def smallest(keys: Tensor, count: int) -> Tensor:
    """Return (B, count) long: the positions with the smallest keys, ties from the left."""
    if torch.compiler.is_compiling():
        ranks = torch.arange(count, device=keys.device)
        has_rank = _counts(_before(keys))[:, None, :] == ranks[:, None]
        return torch.where(has_rank, positions(keys), 0).sum(-1)
    return keys.argsort(dim=-1, stable=True)[:, :count]


def to_mask(at: Tensor, length: int) -> Tensor:
    """Return (B, length) bool: True at the positions `at` (B, Q)."""
    if torch.compiler.is_compiling():
        return _which(at, length) >= 0
    return torch.zeros((len(at), length), dtype=torch.bool, device=at.device).scatter(-1, at, True)


def write_at(old: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """Return `old` (B, L) with `values` (B, Q) at the positions `at` (B, Q), each given once."""
    if torch.compiler.is_compiling():
        which = _which(at, old.shape[-1])
        return torch.where(which >= 0, values.gather(-1, which.clamp(min=0)), old)
    return old.scatter(-1, at, values)


def _which(at: Tensor, length: int) -> Tensor:
    """Return (B, length) long: the index in `at` of each position; -1 if it is not there."""
    here = torch.arange(length, device=at.device)
    return torch.where(at[:, None, :] == here[:, None], positions(at), -1).amax(-1)


def best_first(scores: Tensor) -> Tensor:
    """Return (B, L) long: the positions in the order of `rank`, if all were candidates."""
    return _clean(scores).argsort(dim=-1, descending=True, stable=True)


def _clean(scores: Tensor) -> Tensor:
    """Return the scores without NaN, which would sort first. NaN and -inf both come last."""
    return scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))


def rank(
    scores: Tensor,
    candidates: Tensor,
    fallback: Tensor | None = None,
    *,
    order: Tensor | None = None,
) -> Tensor:
    """Return (B, L) long: 0 for the best candidate, FAR outside the candidates and the fallback.

    The fallback positions follow the last candidate, best first. The eager path (a stable sort) and
    the compiled path (`_before`) must break ties in the same way, so change them together. If you
    rank the same scores several times, pass `order`, their `best_first`.
    """
    if torch.compiler.is_compiling():
        before, chosen = _before(-_clean(scores)), candidates[:, None, :]
        ranks = _counts(before & chosen).long()
        late = None
        if fallback is not None:
            late = _counts(before & fallback[:, None, :] | chosen).long()
    else:
        order = best_first(scores) if order is None else order
        ranks = rank_in_order(candidates, order)
        late = None if fallback is None else rank_in_order(fallback & ~candidates, order)
        late = None if late is None else late + candidates.sum(-1, keepdim=True)
    if fallback is None or late is None:
        return torch.where(candidates, ranks, FAR)
    return torch.where(candidates, ranks, torch.where(fallback, late, FAR))


def rank_in_order(mask: Tensor, order: Tensor) -> Tensor:
    """Return (B, L) long: for each True of `mask`, how many True come before it in `order`."""
    ranks = mask.gather(-1, order).cumsum(-1) - 1
    return torch.empty_like(ranks).scatter_(-1, order, ranks)


def _counts(pairs: Tensor) -> Tensor:
    """Return (B, L) int32: the sum over the last dimension, at half the work of long."""
    return pairs.sum(-1, dtype=torch.int32)


def _before(keys: Tensor) -> Tensor:
    """Return (B, L, L) bool: [i, j] is True if j comes before i, by key, then from the left.

    Only compiled code calls this. There, a sum over the result is one kernel that never stores it,
    whereas a sort takes several dependent kernels.
    """
    one, other = keys[:, :, None], keys[:, None, :]
    here = positions(keys).int()
    return (other < one) | ((other == one) & (here[:, None, :] < here[:, :, None]))


def top(
    scores: Tensor, candidates: Tensor, k: int | Tensor, *, order: Tensor | None = None
) -> Tensor:
    """Return (B, L) bool: the k best candidates per row; k is an int or (B,) long.

    `order` is the scores' `best_first`, if you have it.
    """
    return rank(scores, candidates, order=order) < per_row(k)


def first(mask: Tensor, n: int | Tensor) -> Tensor:
    """Return (B, L) bool: the n leftmost True per row."""
    return mask & (mask.cumsum(-1) <= per_row(n))


def per_row(k: int | Tensor) -> int | Tensor:
    """Return a (B,) count as a (B, 1) column, to compare with (B, L); an int is at most FAR."""
    return k[:, None] if isinstance(k, Tensor) else min(k, FAR)


def extent(candidates: Tensor, slot: Tensor, block: int = 1) -> Tensor:
    """Return (B, L) bool: every position from the first to the last candidate, in whole blocks.

    Args:
        candidates: (B, L) bool.
        slot: (B, L) long, the number of each hole within its row, -1 outside the holes.
        block: Block size. The span grows outward to whole blocks, which count by slot.
    """
    low = torch.where(candidates, slot, FAR).amin(-1, keepdim=True) // block * block
    high = torch.where(candidates, slot, -1).amax(-1, keepdim=True) // block * block + block
    inside = (slot >= low) & (slot < high) & candidates.any(-1, keepdim=True)
    after_first = inside.cumsum(-1) > 0
    before_last = inside.flip(-1).cumsum(-1).flip(-1) > 0
    return after_first & before_last
