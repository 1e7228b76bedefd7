"""Stateless noise: a hash of (seed, step, slot, token), computed on the tensors' device.

A generator would make a request's draws depend on its batch and on the order of calls. With a hash,
a request draws the same numbers alone, in any batch or batch slot, in a CUDA graph, and when only
some positions are scored.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Independent streams of one seed.
TOKEN, ORDER, PRIORITY, ACCEPT = 1, 2, 3, 4


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


_MULTIPLY_1 = _signed(0x7FEB352D)
_MULTIPLY_2 = _signed(0x846CA68B)
_GOLDEN = _signed(0x9E3779B9)


def _mix(x: Tensor) -> Tensor:
    """Map int32 to int32, a bijection that mixes every bit (xorshift-multiply rounds)."""
    x = x ^ ((x >> 16) & 0xFFFF)  # `>>` keeps the sign; the mask makes it a logical shift
    x = x * _MULTIPLY_1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _MULTIPLY_2
    return x ^ ((x >> 16) & 0xFFFF)


def key(seed: Tensor, step: Tensor, slot: Tensor, *, stream: int) -> Tensor:
    """Return (B, Q) int32 from seed (B,), step (B,) and slot (B, Q), all long."""
    low = (seed & 0xFFFFFFFF).to(torch.int32)
    high = (seed >> 32).to(torch.int32)
    row = _mix(_mix(_mix(low + stream * _GOLDEN) ^ high) + step.to(torch.int32))
    return _mix(row[:, None] + slot.to(torch.int32) * _GOLDEN)


def uniform(bits: Tensor) -> Tensor:
    """Return float32 strictly inside (0, 1) from hashed int32, in steps of 2^-23.

    With one more bit, the largest draw would round to 1.
    """
    return (((bits >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23


def gumbel(bits: Tensor) -> Tensor:
    """Return standard Gumbel float32. log1p keeps the precision where a draw is large."""
    return -(-torch.log1p(-uniform(bits))).log()


def over_tokens(keys: Tensor, size: int) -> Tensor:
    """Return (..., V) int32: one hash per token for each key."""
    tokens = torch.arange(size, device=keys.device, dtype=torch.int32)
    return _mix(keys[..., None] ^ _mix(tokens * _GOLDEN + 1))
