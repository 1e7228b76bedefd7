"""The forward process q(x_t | x_0) of masked diffusion, and its training loss.

**Forward process** (the paper's section 2.1): every maskable token becomes the mask token with
probability t, independently of the others. All other tokens stay. In fine-tuning the answer is
maskable and the prompt is not. In pre-training on plain text every token is maskable.

**Fronts.** Left-to-right decoding often has an answer that has started and nothing after it, not
even its end. Independent masks almost never produce this state. So a share of the rows can be
masked with a probability that depends on the position: 0 before a random cut, t in a window after
it, and 1 beyond the window.

**Loss.** The cross-entropy at the masked positions, weighted by 1/t. Its expectation is a bound on
the negative log-likelihood of the maskable tokens. The mask token is not a class, so its logit is
left out.

All randomness is a hash of (seed, step, row, position). So training can resume at any step, and the
same step masks the same positions on every device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from wavefront.core import noise

# Streams of `wavefront.core.noise` that decoding does not use.
POSITIONS, LEVEL, SHUFFLE, FRONT = 17, 18, 19, 20
MAX_ROWS = 1 << 20  # per batch, so that rows of two seeds never share a hash


class CorruptedBatch(NamedTuple):
    """The noisy tokens x_t, and where they differ from x_0."""

    tokens: Tensor  # (B, L) long
    masked: Tensor  # (B, L) bool


def draw_levels(
    seed: int, step: int, rows: int, *, eps: float, device: torch.device | str
) -> Tensor:
    """Draw one masking probability t per row, (B,) float32 in (eps, 1], stratified over the batch.

    The rows share one uniform draw u: t follows (u + j/B) mod 1 for j = 0 … B-1 in a random order.
    Each t alone is uniform, but the batch covers all levels, which lowers the variance of its loss.
    """
    shared = noise.uniform(_hash(seed, step, torch.zeros(1, 1, device=device).long(), stream=LEVEL))
    turn = torch.arange(rows, device=device)
    order = _hash(seed, step, turn[:, None], stream=SHUFFLE)[:, 0].argsort(stable=True)
    spread = (shared[0, 0] + order.float() / rows) % 1.0
    return 1.0 - (1.0 - eps) * spread


def corrupt(
    tokens: Tensor, maskable: Tensor, level: Tensor, *, draw: Tensor, mask_id: int
) -> CorruptedBatch:
    """Sample x_t from q(x_t | x_0).

    Tokens, maskable and draw are (B, L); level is t, (B,) or (B, L). `draw` is uniform in the open
    interval (0, 1), so t = 1 masks every maskable position and t = 0 none.
    """
    masked = maskable & (draw < per_position(level))
    return CorruptedBatch(tokens.masked_fill(masked, mask_id), masked)


def front_levels(level: Tensor, maskable: Tensor, share: float, *, seed: int, step: int) -> Tensor:
    """Return t of every position, (B, L) float32, from t of every row (B,).

    A `share` of the rows are fronts. The cut is uniform over the row's maskable positions, and the
    window has 4, 8, 16 or 32 of them.
    """
    like = torch.zeros_like(maskable[:, :3], dtype=torch.long) + torch.arange(
        3, device=level.device
    )
    chance, cut, width = noise.uniform(_hash(seed, step, like, stream=FRONT)).unbind(1)
    index = maskable.long().cumsum(1) - 1
    behind = index - (cut * maskable.sum(1)).long()[:, None]
    window = 4 * 2 ** (4 * width).long()[:, None]
    local = torch.where(behind < window, level[:, None], 1.0).masked_fill(behind < 0, 0.0)
    return torch.where(chance[:, None] < share, local, level[:, None])


def per_position(level: Tensor) -> Tensor:
    """Return a level per row as (B, 1), or a level per position unchanged."""
    return level if level.dim() == 2 else level[:, None]


def uniform_draws(seed: int, step: int, like: Tensor) -> Tensor:
    """Return uniform numbers in (0, 1), (B, L) float32, one per position of `like` (B, L)."""
    rows, length = like.shape
    position = torch.arange(length, device=like.device).expand(rows, length)
    return noise.uniform(_hash(seed, step, position, stream=POSITIONS))


def _hash(seed: int, step: int, position: Tensor, *, stream: int) -> Tensor:
    """Hash positions (B, Q) to (B, Q) int32."""
    row = torch.arange(position.shape[0], device=position.device)
    return noise.key(seed * MAX_ROWS + row, torch.full_like(row, step), position, stream=stream)


def token_nll(logits: Tensor, tokens: Tensor, mask_id: int) -> Tensor:
    """Return the negative log-probability of every token, float32 in the shape of `tokens`.

    The mask token is not a class.
    """
    classes = torch.arange(logits.shape[-1], device=logits.device)
    allowed = logits.float().masked_fill(classes == mask_id, float("-inf"))
    return F.cross_entropy(allowed.flatten(0, -2), tokens.flatten(), reduction="none").view(
        tokens.shape
    )


def likelihood_bound(nats: Tensor, masked: Tensor, level: Tensor) -> Tensor:
    """Return the sum of `nats` (B, L) / t over the masked positions, (B,) float32.

    Its mean over draws bounds the negative log-likelihood of the row's maskable tokens. With t per
    position (`front_levels`) the terms have the same weights, but the sum is not a bound.
    """
    # A position with t = 0 is never masked. The floor avoids a gradient of 0 times infinity.
    return (torch.where(masked, nats, 0.0) / per_position(level).clamp_min(1e-6)).sum(1)


def normalise_loss(bounds: Tensor, lengths: Tensor, *, by: str = "tokens") -> Tensor:
    """Return the batch's loss from each row's bound (B,) and number of maskable positions (B,).

    "tokens" divides the sum of bounds by the sum of lengths, so every token has the same weight.
    "rows" is the mean over rows of bound/length, as in LLaDA's fine-tuning. There a token of a
    short canvas has more weight.
    """
    if by == "tokens":
        return bounds.sum() / lengths.sum()
    return (bounds / lengths).mean()
