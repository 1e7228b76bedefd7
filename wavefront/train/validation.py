"""The held-out loss at fixed masking probabilities.

Examples come from the tasks' held-out split, which training never uses. All numbers are means over
masked positions, without the 1/t weight: nats, and how often the most likely token is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.models.transformer import Transformer
from wavefront.train.config import BatchConfig
from wavefront.train.corruption import corrupt, token_nll, uniform_draws
from wavefront.train.data import TrainingSource
from wavefront.train.rows import open_source
from wavefront.train.train_step import DeviceBatch, upload

LEVELS = (0.15, 0.4, 0.7, 1.0)
BATCHES = 4


def held_out_rows(
    config: BatchConfig, device: torch.device, *, share: int = 8
) -> tuple[list[DeviceBatch], TrainingSource]:
    """Make batches of held-out examples, each with 1/share of a training step's tokens."""
    small = config.held_out(config.tokens_per_step // share, BATCHES)
    source = open_source(small, split="held-out")
    return [upload(batch, device) for batch in source.make_group(0)], source


@torch.no_grad()
def held_out_loss(
    model: Transformer,
    batches: Sequence[DeviceBatch],
    source: TrainingSource,
    *,
    levels: Sequence[float] = LEVELS,
) -> dict[str, Any]:
    """Return `loss`, the mean over `levels` of nats per answer token, and details."""
    by_level: dict[str, dict[str, float]] = {}
    eos = source.end_id
    tasks = torch.zeros(len(source.tasks), 2, device=model.device, dtype=torch.float64)
    # Compiling for evaluation would cost more time than it saves.
    with torch.compiler.set_stance("force_eager"):
        for number, level in enumerate(levels):
            total = torch.zeros(5, device=model.device, dtype=torch.float64)
            for index, rows in enumerate(batches):
                measured = _measure(model, rows, level, eos=eos, step=number * 997 + index)
                total += measured.total
                tasks.index_add_(0, rows.task, measured.by_row)
            nats, right, count, all_nats, all_count = total.tolist()
            by_level[f"{level:g}"] = {
                "nats": nats / max(1.0, count),
                "accuracy": right / max(1.0, count),
                "canvas_nats": all_nats / max(1.0, all_count),
            }
    means = [entry["nats"] for entry in by_level.values()]
    by_task = {
        name: float(nats / count)
        for name, (nats, count) in zip(source.tasks, tasks.tolist(), strict=True)
        if count
    }
    return {"loss": sum(means) / len(means), "levels": by_level, "tasks": by_task}


class _Measured(NamedTuple):
    """Sums over the masked positions of one batch, in float64."""

    total: Tensor  # (5,): nats, right and count of answer tokens; nats and count of the canvas
    by_row: Tensor  # (B, 2): nats and count of answer tokens


def _measure(
    model: Transformer, rows: DeviceBatch, level: float, *, eos: int, step: int
) -> _Measured:
    tokens, maskable = rows.tokens, rows.maskable
    probability = torch.full((len(tokens),), level, device=tokens.device)
    noise = uniform_draws(1, step, tokens)
    noisy = corrupt(tokens, maskable, probability, draw=noise, mask_id=model.mask_id)
    logits = model.head(model.predictors(noisy.tokens)).float()
    nats = token_nll(logits, tokens, model.mask_id)
    logits[..., model.mask_id] = float("-inf")
    right = logits.argmax(-1) == tokens
    answer = noisy.masked & (tokens != eos)
    by_row = torch.stack([(nats * answer).sum(1), answer.sum(1).float()], 1).double()
    total = torch.stack(
        [
            (nats * answer).sum(),
            (right & answer).sum(),
            answer.sum(),
            (nats * noisy.masked).sum(),
            noisy.masked.sum(),
        ]
    ).double()
    return _Measured(total, by_row)
