"""How many places a step may commit, as pure arithmetic per row.

The same expressions take Python ints (the loop plans with them) and (B,) tensors (a step computes
with them), so the plan and the step cannot disagree.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Count = TypeVar("Count", int, Tensor)


def even(length: Count, steps: Count, step: Count) -> Count:
    """k_t = floor(N / T) + [t <= N mod T], with step = t - 1. Zero once T exceeds N and t > N."""
    return length // steps + (step < length % steps) * 1


def dream_fraction(steps: Tensor, step: Tensor, eps: float) -> Tensor:
    """(B,) float32: 1 - t_{i+1} / t_i, the share of what is left that Dream settles; 1 at last."""
    return torch.where(
        step >= steps - 1, 1.0, 1 - _time(steps, step + 1, eps) / _time(steps, step, eps)
    )


def _time(steps: Tensor, index: Tensor, eps: float) -> Tensor:
    """The published grid from 1 down to eps, to the bit: torch's float32 linspace.

    It steps by a float32 gap from both ends and rounds once, which float64 reproduces.
    """
    exact = torch.float32 if steps.device.type == "mps" else torch.float64  # mps has no float64
    end = torch.full_like(steps, eps, dtype=torch.float32)  # on the device: a scalar would sync
    gap = ((end - 1) / steps.float()).to(exact)
    rising = (1 + gap * index).float()
    falling = (end.to(exact) - gap * (steps - index)).float()
    return torch.where(index < (steps + 1) // 2, rising, falling)


def dream(left: Tensor, steps: Tensor, step: Tensor, eps: float) -> Tensor:
    """(B,) long: Dream's count, truncated, of the `left` places of each row (not of the batch)."""
    return (left.float() * dream_fraction(steps, step, eps)).long()


@lru_cache(maxsize=256)
def dream_plan(length: int, steps: int, eps: float) -> tuple[int, ...]:
    """Dream's count at every step of a row that starts with `length` masked places."""
    step = torch.arange(steps)
    shares = dream_fraction(torch.full_like(step, steps), step, eps).tolist()
    left, counts = length, []
    for share in shares:
        # The product of two float32 is exact in a double, so this rounds once, as `dream` does.
        counts.append(int(torch.tensor(left * share, dtype=torch.float32)))
        left -= counts[-1]
    return tuple(counts)
