"""Masked diffusion as training sees it: the forward process q(x_t | x_0), and the loss against it.

**Forward process** (the paper's section 2.1): every maskable token becomes the mask token with
probability t, independently of the others; everything else stays. In fine-tuning the answer is
maskable and the prompt is not; in pre-training on plain text everything is.

**Fronts.** Independent masks almost never show what a decoder meets that works from the left: an
answer begun, and nothing behind it, not even its end. A share of the rows can be masked that way,
with a probability that depends on the place: 0 before a random cut, t in a window behind it, 1
beyond the window.

**Loss.** Cross-entropy at the masked places, weighted 1/t, which makes its expectation a bound on
the negative log-likelihood of the maskable tokens. The mask token is no class: its logit is left
out.

All randomness is a hash of (seed, step, row, place), so a training can be continued at any step,
and the same step masks the same places on every device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wavefront.core import noise

# Streams of `wavefront.core.noise` beside those of decoding.
PLACES, LEVEL, SHUFFLE, FRONT = 17, 18, 19, 20
ROWS = 1 << 20  # more rows than any batch has, so that rows of two seeds never share a hash


class Corrupted(NamedTuple):
    """x_t and where it differs from x_0."""

    tokens: Tensor  # (B, L) long
    masked: Tensor  # (B, L) bool


def levels(seed: int, step: int, rows: int, *, eps: float, device: torch.device | str) -> Tensor:
    """(B,) float32 in (eps, 1]: one masking probability t a row, spread evenly over the batch.

    One uniform draw u is shared: t follows (u + j/B) mod 1 for j = 0 … B-1 in a random order. Each
    row's t is uniform on its own, but the batch as a whole covers all levels, which lowers the
    variance of its loss.
    """
    shared = noise.uniform(_hash(seed, step, torch.zeros(1, 1, device=device).long(), LEVEL))
    turn = torch.arange(rows, device=device)
    order = _hash(seed, step, turn[:, None], SHUFFLE)[:, 0].argsort(stable=True)
    spread = (shared[0, 0] + order.float() / rows) % 1.0
    return 1.0 - (1.0 - eps) * spread


def corrupt(
    tokens: Tensor, maskable: Tensor, level: Tensor, *, draw: Tensor, mask_id: int
) -> Corrupted:
    """One sample of q(x_t | x_0): tokens, maskable and draw are (B, L); level is t, (B,) or (B, L).

    `draw` is uniform in (0, 1), strictly: t = 1 masks every maskable place and t = 0 none.
    """
    masked = maskable & (draw < by_place(level))
    return Corrupted(tokens.masked_fill(masked, mask_id), masked)


def fronts(level: Tensor, maskable: Tensor, share: float, *, seed: int, step: int) -> Tensor:
    """(B, L) float32: t of every place, from t of every row (B,); a `share` of the rows are fronts.

    The cut is uniform over the row's maskable places; the window has 4, 8, 16 or 32 of them.
    """
    like = torch.zeros_like(maskable[:, :3], dtype=torch.long) + torch.arange(
        3, device=level.device
    )
    chance, cut, width = noise.uniform(_hash(seed, step, like, FRONT)).unbind(1)
    place = maskable.long().cumsum(1) - 1
    behind = place - (cut * maskable.sum(1)).long()[:, None]
    window = 4 * 2 ** (4 * width).long()[:, None]
    local = torch.where(behind < window, level[:, None], 1.0).masked_fill(behind < 0, 0.0)
    return torch.where(chance[:, None] < share, local, level[:, None])


def by_place(level: Tensor) -> Tensor:
    """(B, 1) or (B, L), whichever was given for the rows or the places."""
    return level if level.dim() == 2 else level[:, None]


def draws(seed: int, step: int, like: Tensor) -> Tensor:
    """(B, L) float32 uniform in (0, 1), one for every place of `like` (B, L)."""
    rows, length = like.shape
    place = torch.arange(length, device=like.device).expand(rows, length)
    return noise.uniform(_hash(seed, step, place, PLACES))


def _hash(seed: int, step: int, place: Tensor, stream: int) -> Tensor:
    """(B, Q) int32 from place (B, Q)."""
    row = torch.arange(place.shape[0], device=place.device)
    return noise.key(seed * ROWS + row, torch.full_like(row, step), place, stream)


def surprise(logits: Tensor, tokens: Tensor, mask_id: int) -> Tensor:
    """(B, L) float32: minus the log-probability of every token, the mask token being no class."""
    classes = torch.arange(logits.shape[-1], device=logits.device)
    allowed = logits.float().masked_fill(classes == mask_id, float("-inf"))
    return F.cross_entropy(allowed.flatten(0, 1), tokens.flatten(), reduction="none").view(
        tokens.shape
    )


def bound(nats: Tensor, masked: Tensor, level: Tensor) -> Tensor:
    """(B,) float32: the sum over masked places of `nats` (B, L) / t; its mean over draws bounds the
    negative log-likelihood of the row's maskable tokens. With t by place (`fronts`) every term is
    as weighted as there, but the sum bounds nothing.
    """
    # A place with t = 0 is never masked; the floor keeps its gradient from being 0 times infinity.
    return (torch.where(masked, nats, 0.0) / by_place(level).clamp_min(1e-6)).sum(1)


def normalised(bounds: Tensor, lengths: Tensor, *, by: str = "tokens") -> Tensor:
    """Scalar: the batch's loss from each row's bound (B,) and number of maskable places (B,).

    "tokens": the sum of bounds over the sum of lengths, so that a token of the answer weighs the
    same on every canvas. "rows": the mean over rows of bound/length, as LLaDA's fine-tuning has it,
    where a token of a short canvas weighs more.
    """
    if by == "tokens":
        return bounds.sum() / lengths.sum()
    return (bounds / lengths).mean()
