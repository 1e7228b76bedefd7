"""How many positions a step commits, as pure arithmetic per row.

The loop plans with Python ints, and a step computes with (B,) tensors. Both use the same
expressions, so they cannot disagree.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Count = TypeVar("Count", int, Tensor)


def even(length: Count, steps: Count, step: Count) -> Count:
    """Return k_t = floor(N / T) + [t <= N mod T], with step = t - 1. It is 0 if T > N and t > N."""
    return length // steps + (step < length % steps) * 1


def dream_fraction(steps: Tensor, step: Tensor, eps: float) -> Tensor:
    """Return (B,) float32: 1 - t_{i+1} / t_i, Dream's share of masked positions; 1 at the end."""
    return torch.where(
        step >= steps - 1, 1.0, 1 - _time(steps, step + 1, eps) / _time(steps, step, eps)
    )


def _time(steps: Tensor, index: Tensor, eps: float) -> Tensor:
    """Return the published grid from 1 down to eps, bit for bit: torch's float32 linspace.

    linspace steps by a float32 gap from both ends and rounds once; float64 reproduces that.
    """
    exact = torch.float32 if steps.device.type == "mps" else torch.float64  # mps has no float64
    # A tensor on the device: a scalar would synchronise.
    end = torch.full_like(steps, eps, dtype=torch.float32)
    gap = ((end - 1) / steps.float()).to(exact)
    rising = (1 + gap * index).float()
    falling = (end.to(exact) - gap * (steps - index)).float()
    return torch.where(index < (steps + 1) // 2, rising, falling)


def dream(left: Tensor, steps: Tensor, step: Tensor, *, eps: float) -> Tensor:
    """Return (B,) long: Dream's truncated count, from each row's own `left` masked positions."""
    return (left.float() * dream_fraction(steps, step, eps)).long()


@lru_cache(maxsize=256)
def dream_plan(length: int, steps: int, eps: float) -> tuple[int, ...]:
    """Return Dream's count at every step of a row that starts with `length` masked positions."""
    step = torch.arange(steps)
    shares = dream_fraction(torch.full_like(step, steps), step, eps).tolist()
    left, counts = length, []
    for share in shares:
        # The product of two float32 is exact in a double, so this rounds once, like `dream`.
        counts.append(int(torch.tensor(left * share, dtype=torch.float32)))
        left -= counts[-1]
    return tuple(counts)


def rounded_share(left: Tensor, steps: Tensor, steps_left: Tensor) -> Tensor:
    """Return (B,) long: left / steps_left, rounded as Tiny-A2D's published code rounds it.

    The published code gets the share from float32 ratios. So a few halves round the other way.
    """
    exact = torch.float32 if left.device.type == "mps" else torch.float64  # mps has no float64
    now = steps_left.to(exact) / steps
    then = (steps_left - 1).to(exact) / steps
    now, then = now.float(), then.float()
    ratio = (1 - (1 - then)) / (1 - (1 - now))
    return (left * (1 - ratio.to(exact))).round().long()
