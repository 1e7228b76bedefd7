"""Held-out loss at fixed masking probabilities: what training is judged by while it runs.

Examples come from the tasks' held-out split, which training never draws from. All numbers are means
over masked places, without the 1/t weight: nats, and how often the likeliest token is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wavefront.models.transformer import Transformer
from wavefront.train.config import DataConfig
from wavefront.train.corruption import corrupt, draws, surprise
from wavefront.train.data import Source
from wavefront.train.train_step import Rows, upload

LEVELS = (0.15, 0.4, 0.7, 1.0)
GROUP = 4  # batches


def held_out_rows(
    config: DataConfig, device: torch.device, *, share: int = 8
) -> tuple[list[Rows], Source]:
    """Some batches of held-out examples, each of 1/share of a training step's tokens."""
    size = max(config.buckets[-1], config.tokens_per_step // share)
    small = replace(config, tokens_per_step=size, group=GROUP, text=None, text_share=0.0)
    source = Source(small, split="held-out")
    return [upload(batch, device) for batch in source.make_group(0)], source


@torch.no_grad()
def held_out_loss(
    model: Transformer, batches: Sequence[Rows], source: Source, levels: Sequence[float] = LEVELS
) -> dict[str, Any]:
    """`loss`: nats at the answers' own places, mean over `levels`; the rest in detail."""
    by_level: dict[str, dict[str, float]] = {}
    tasks = torch.zeros(len(source.tasks), 2, device=model.device, dtype=torch.float64)
    # Compiling for evaluation too would cost more than it saves.
    with torch.compiler.set_stance("force_eager"):
        for number, level in enumerate(levels):
            total = torch.zeros(5, device=model.device, dtype=torch.float64)
            for index, rows in enumerate(batches):
                total += _tally(
                    model, rows, level, source.encoder.special.eos, tasks, number * 997 + index
                )
            nats, right, places, all_nats, all_places = total.tolist()
            by_level[f"{level:g}"] = {
                "nats": nats / max(1.0, places),
                "accuracy": right / max(1.0, places),
                "canvas_nats": all_nats / max(1.0, all_places),
            }
    means = [entry["nats"] for entry in by_level.values()]
    by_task = {
        name: float(nats / count)
        for name, (nats, count) in zip(source.tasks, tasks.tolist(), strict=True)
        if count
    }
    return {"loss": sum(means) / len(means), "levels": by_level, "tasks": by_task}


def _tally(
    model: Transformer, rows: Rows, level: float, eos: int, tasks: Tensor, draw: int
) -> Tensor:
    """(5,): nats, right and places of the answers proper; nats and places of the whole canvas."""
    tokens, maskable = rows.tokens, rows.maskable
    probability = torch.full((len(tokens),), level, device=tokens.device)
    noise = draws(1, draw, tokens)
    noisy = corrupt(tokens, maskable, probability, draw=noise, mask_id=model.mask_id)
    logits = model(noisy.tokens).float()
    nats = surprise(logits, tokens, model.mask_id)
    logits[..., model.mask_id] = float("-inf")
    right = logits.argmax(-1) == tokens
    proper = noisy.masked & (tokens != eos)
    tasks.index_add_(
        0, rows.task, torch.stack([(nats * proper).sum(1), proper.sum(1).float()], 1).double()
    )
    return torch.stack(
        [
            (nats * proper).sum(),
            (right & proper).sum(),
            proper.sum(),
            (nats * noisy.masked).sum(),
            noisy.masked.sum(),
        ]
    ).double()
