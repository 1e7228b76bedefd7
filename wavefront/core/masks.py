"""Mask algebra on (B, L) boards: distance, near, density, ordered, marked, put, rank, top, first.

Every choice of places in the project goes through `top`, because its order is exact: higher score
first, equal scores to the smaller position, NaN and -inf last among the eligible. `topk` and
`argmax` promise no order among ties, and confidences do saturate. Compiled, places are ordered by
counting in place of sorting, and found by comparing in place of scattering: the same results in
code that fuses, where a sort or a scatter is several kernels that wait for each other.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch.nn import functional as F

FAR = 1 << 30  # further than any place on any board
SHIFTS = 8  # a radius up to which compiled code looks at every place around, and not at all places


def positions(board: Tensor) -> Tensor:
    """(1, L) long: 0 … L-1, to broadcast against the board."""
    return torch.arange(board.shape[-1], device=board.device)[None, :]


def distance(mask: Tensor) -> Tensor:
    """(B, L) long: steps to the nearest True of the row; at least FAR where there is none."""
    here = positions(mask)
    if torch.compiler.is_compiling():  # one kernel, where two scans wait for each other
        here = here.int()  # half the work of long, all pairs of places being looked at
        away = (here[:, None, :] - here[:, :, None]).abs()
        return torch.where(mask[:, None, :], away, FAR).amin(-1).long()
    left = torch.where(mask, here, -FAR).cummax(-1).values
    right = torch.where(mask, here, 2 * FAR).flip(-1).cummin(-1).values.flip(-1)
    return torch.minimum(here - left, right - here)


def density(mask: Tensor, sigma: float) -> Tensor:
    """(B, L) float32 in (0, 1]: the share of True around each place, weighted by a Gaussian.

    `sigma` is its width in places; it ends at three times that, and not before the next place.
    What lies left of the board counts as True, and what lies right of it as False.
    """
    candidates = max(1, int(3 * sigma))
    offsets = torch.arange(-candidates, candidates + 1, device=mask.device, dtype=torch.float32)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    around = F.pad(F.pad(mask.float(), (candidates, 0), value=1.0), (0, candidates))
    # A product and a sum in place order: the same number at a place whatever the board's length.
    share = (around.unfold(-1, 2 * candidates + 1, 1) * (weights / weights.sum())).sum(-1)
    return share.clamp(1e-30, 1.0)


def near(mask: Tensor, radius: int) -> Tensor:
    """(B, L) bool: the places within `radius` of a True of the row."""
    if torch.compiler.is_compiling():
        if radius > SHIFTS:
            return distance(mask) <= radius
        # Shifted boards fuse with all around them, a sum does not.
        length, board = mask.shape[-1], F.pad(mask, (radius, radius))
        return reduce(or_, (board[:, at : at + length] for at in range(2 * radius + 1)))
    radius = min(radius, mask.shape[-1])
    # A True lies within the radius when it is counted between one end and the other.
    counted = F.pad(mask, (radius + 1, radius)).cumsum(-1)
    return counted[:, 2 * radius + 1 :] > counted[:, : -2 * radius - 1]


def ordered(keys: Tensor, count: int) -> Tensor:
    """(B, count) long: the places with the smallest keys, equal ones from the left."""
    if torch.compiler.is_compiling():
        places = torch.arange(count, device=keys.device)
        mine = _counts(_before(keys))[:, None, :] == places[:, None]
        return torch.where(mine, positions(keys), 0).sum(-1)
    return keys.argsort(dim=-1, stable=True)[:, :count]


def marked(at: Tensor, length: int) -> Tensor:
    """(B, length) bool: the places `at` (B, Q)."""
    if torch.compiler.is_compiling():
        return _which(at, length) >= 0
    return torch.zeros((len(at), length), dtype=torch.bool, device=at.device).scatter(-1, at, True)


def placed(board: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """The board (B, L) with `values` (B, Q) at the places `at` (B, Q), each of them once."""
    if torch.compiler.is_compiling():
        which = _which(at, board.shape[-1])
        return torch.where(which >= 0, values.gather(-1, which.clamp(min=0)), board)
    return board.scatter(-1, at, values)


def _which(at: Tensor, length: int) -> Tensor:
    """(B, length) long: which of `at` each place is; -1 for none."""
    here = torch.arange(length, device=at.device)
    return torch.where(at[:, None, :] == here[:, None], positions(at), -1).amax(-1)


def rank(scores: Tensor, among: Tensor, next_active_step: Tensor | None = None) -> Tensor:
    """(B, L) long: 0 = best of `among`, after its last the best of `then`; FAR outside both."""
    # NaN would sort first; it and -inf share the last rank of the eligible.
    clean = scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    if torch.compiler.is_compiling():
        before, all_among = _before(-clean), among[:, None, :]
        ranks = _counts(before & all_among).long()
        late = (
            None
            if next_active_step is None
            else _counts(before & next_active_step[:, None, :] | all_among).long()
        )
    else:
        order = clean.argsort(dim=-1, descending=True, stable=True)
        ranks = _counted(among, order)
        late = None if next_active_step is None else _counted(next_active_step & ~among, order)
        late = None if late is None else late + among.sum(-1, keepdim=True)
    if next_active_step is None or late is None:
        return torch.where(among, ranks, FAR)
    return torch.where(among, ranks, torch.where(next_active_step, late, FAR))


def _counted(mask: Tensor, order: Tensor) -> Tensor:
    """(B, L) long: how many True of `mask` come before each place, and are not it, in `order`."""
    place = mask.gather(-1, order).cumsum(-1) - 1
    return torch.empty_like(place).scatter_(-1, order, place)


def _counts(pairs: Tensor) -> Tensor:
    """(B, L) int32: the sum over the last dimension, at half the work of long."""
    return pairs.sum(-1, dtype=torch.int32)


def _before(keys: Tensor) -> Tensor:
    """(B, L, L) bool: [i, j] where j comes before i, by its key or, of equal ones, from the left.

    Compiled, a sum over it is one kernel and it is never in memory; a sort would be several that
    wait for each other. As it stands it would be memory, so only compiled code asks for it.
    """
    one, other = keys[:, :, None], keys[:, None, :]
    here = positions(keys).int()
    return (other < one) | ((other == one) & (here[:, None, :] < here[:, :, None]))


def top(scores: Tensor, among: Tensor, k: int | Tensor) -> Tensor:
    """(B, L) bool: the k best of `among` per row; k is an int or (B,) long."""
    return rank(scores, among) < per_row(k)


def first(mask: Tensor, n: int | Tensor) -> Tensor:
    """(B, L) bool: the n leftmost True per row."""
    return mask & (mask.cumsum(-1) <= per_row(n))


def per_row(k: int | Tensor) -> int | Tensor:
    """A count per row as a column, ready to compare with a board; an int stays one."""
    return k[:, None] if isinstance(k, Tensor) else k


def extent(scope: Tensor, slot: Tensor, block: int = 1) -> Tensor:
    """Return (B, L) bool: every position from the first to the last of `scope`, in whole blocks.

    Args:
        scope: (B, L) bool, the candidate positions.
        slot: (B, L) long, the number of each hole within its row, -1 outside the holes.
        block: Block size. The span grows outward to whole blocks, which count by slot.
    """
    low = torch.where(scope, slot, FAR).amin(-1, keepdim=True) // block * block
    high = torch.where(scope, slot, -1).amax(-1, keepdim=True) // block * block + block
    inside = (slot >= low) & (slot < high) & scope.any(-1, keepdim=True)
    after_first = inside.cumsum(-1) > 0
    before_last = inside.flip(-1).cumsum(-1).flip(-1) > 0
    return after_first & before_last
