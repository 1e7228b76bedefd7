"""Mask algebra on (B, L) boards: distance, density, rank, top, first.

Every choice of places in the project goes through `top`, because its order is exact: higher score
first, equal scores to the smaller position, NaN and -inf last among the eligible. `topk` and
`argmax` promise no order among ties, and confidences do saturate.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FAR = 1 << 30  # further than any place on any board


def positions(board: Tensor) -> Tensor:
    """(1, L) long: 0 … L-1, to broadcast against the board."""
    return torch.arange(board.shape[-1], device=board.device)[None, :]


def distance(mask: Tensor) -> Tensor:
    """(B, L) long: steps to the nearest True of the row; at least FAR where there is none."""
    here = positions(mask)
    left = torch.where(mask, here, -FAR).cummax(-1).values
    right = torch.where(mask, here, 2 * FAR).flip(-1).cummin(-1).values.flip(-1)
    return torch.minimum(here - left, right - here)


def density(mask: Tensor, sigma: float) -> Tensor:
    """(B, L) float32 in (0, 1]: the share of True around each place, weighted by a Gaussian.

    `sigma` is its width in places; it ends at three times that, and not before the next place.
    What lies left of the board counts as True, and what lies right of it as False.
    """
    reach = max(1, int(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, device=mask.device, dtype=torch.float32)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    around = F.pad(F.pad(mask.float(), (reach, 0), value=1.0), (0, reach))
    # A product and a sum in place order: the same number at a place whatever the board's length.
    share = (around.unfold(-1, 2 * reach + 1, 1) * (weights / weights.sum())).sum(-1)
    return share.clamp(1e-30, 1.0)


def rank(scores: Tensor, among: Tensor) -> Tensor:
    """(B, L) long: 0 = best of `among`; FAR outside it."""
    # NaN would sort first; it and -inf share the last rank of the eligible.
    clean = torch.where(scores.isnan(), float("-inf"), scores)
    order = clean.argsort(dim=-1, descending=True, stable=True)
    place = among.gather(-1, order).long().cumsum(-1) - 1
    return torch.where(among, torch.zeros_like(place).scatter(-1, order, place), FAR)


def top(scores: Tensor, among: Tensor, k: int | Tensor) -> Tensor:
    """(B, L) bool: the k best of `among` per row; k is an int or (B,) long."""
    return rank(scores, among) < per_row(k)


def first(mask: Tensor, n: int | Tensor) -> Tensor:
    """(B, L) bool: the n leftmost True per row."""
    return mask & (mask.long().cumsum(-1) <= per_row(n))


def per_row(k: int | Tensor) -> int | Tensor:
    """A count per row as a column, ready to compare with a board; an int stays one."""
    return k[:, None] if isinstance(k, Tensor) else k
