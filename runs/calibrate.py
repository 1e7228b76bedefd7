"""Fit the temperatures of `tide(distance_temperatures=...)`, which scale confidence by distance.

    python runs/calibrate.py                 on held-out items of every task, a minute on two cores
    python runs/calibrate.py --rows 4096 --device cuda

Items are masked as a left-to-right decoder leaves them (`train.corruption.front_levels`). At
every masked position of the answer the model proposes a token, which is correct or not. For each
distance to the nearest known position, the fitted temperature divides the logit of the confidence
so that the outcomes become most likely. One set of items fits, another one tests.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import wavefront
from wavefront.analysis.measures.calibration import reliability
from wavefront.core.masks import distance
from wavefront.core.reading import log_probability
from wavefront.models.builtin import directory
from wavefront.models.transformer import Transformer
from wavefront.train.config import DataConfig
from wavefront.train.corruption import corrupt, draw_levels, front_levels, uniform_draws
from wavefront.train.data import BatchSource
from wavefront.train.train_step import upload

GRID = torch.logspace(-1, 1, 401)  # candidate temperatures


def observe(model: Transformer, data: DataConfig, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return distance, logit of the confidence, and correctness of masked positions, (n,) each."""
    source = BatchSource(data, split="held-out")
    eos, found, seen, group = source.encoder.special.eos, [], 0, 0
    while seen < rows:
        for number, batch in enumerate(source.make_group(group)):
            step = group * data.group + number
            on = upload(batch, model.device)
            level = draw_levels(data.seed, step, len(on.tokens), eps=1e-3, device=model.device)
            by_place = front_levels(level, on.maskable, 1.0, seed=data.seed, step=step)
            draw = uniform_draws(data.seed, step, on.tokens)
            noisy = corrupt(on.tokens, on.maskable, by_place, draw=draw, mask_id=model.mask_id)
            found.append(_outcomes(model, on.tokens, noisy.tokens, noisy.masked, eos))
            seen += len(on.tokens)
        group += 1
    far, odds, right = (torch.cat(part).cpu() for part in zip(*found, strict=True))
    return far, odds, right


@torch.no_grad()
def _outcomes(model: Transformer, truth: Tensor, tokens: Tensor, masked: Tensor, eos: int):
    """Return distance, odds and correctness of the masked positions of a batch."""
    logits = model(tokens).float()
    allowed = logits.clone()
    allowed[..., model.mask_id] = float("-inf")
    proposal = allowed.argmax(-1)
    logp = log_probability(logits.flatten(0, 1), proposal.flatten()).view(proposal.shape)
    odds = logp - torch.log(-torch.expm1(logp)).clamp(min=-40)
    proper = masked & (truth != eos)  # end tokens after the answer would outnumber the rest
    return distance(~masked)[proper], odds[proper], (proposal == truth)[proper]


def nats(odds: Tensor, right: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the mean negative log-likelihood under a temperature."""
    return F.binary_cross_entropy_with_logits(odds / temperature, right.float())


def error(odds: Tensor, right: Tensor) -> float:
    """Return the expected calibration error."""
    return reliability(odds.sigmoid(), right).ece


def main() -> None:
    parser = argparse.ArgumentParser(description="Temperatures by distance.")
    parser.add_argument("--model", default="ripple")
    parser.add_argument("--rows", type=int, default=512, help="items")
    parser.add_argument("--distances", type=int, default=16, help="the last one covers all beyond")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device")
    asked = parser.parse_args()
    lm = wavefront.load(asked.model, device=asked.device, dtype="float32")
    assert isinstance(lm.model, Transformer)
    folder = directory(asked.model) or Path(asked.model)
    data = DataConfig(tokenizer=folder, seed=asked.seed, tokens_per_step=16_384, group=4)
    fit = observe(lm.model, data, asked.rows)
    test = observe(lm.model, replace(data, seed=asked.seed + 1), asked.rows)
    chosen: list[float] = []
    print(
        "| distance | items | right % | ECE % | temperature | ECE %, tempered | nats | tempered |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for step in range(1, asked.distances + 1):
        here, there = (
            (far >= step) if step == asked.distances else (far == step) for far in (fit[0], test[0])
        )
        odds, right = fit[1][here], fit[2][here]
        losses = torch.stack([nats(odds, right, t) for t in GRID])
        best = float(GRID[losses.argmin()])
        chosen.append(round(best, 2))
        odds, right = test[1][there], test[2][there]
        cells = (
            f"{step}{'+' if step == asked.distances else ''}",
            len(odds),
            f"{100 * right.float().mean():.1f}",
            f"{100 * error(odds, right):.2f}",
            f"{best:.2f}",
            f"{100 * error(odds / best, right):.2f}",
            f"{nats(odds, right, 1.0):.4f}",
            f"{nats(odds, right, best):.4f}",
        )
        print("| " + " | ".join(str(cell) for cell in cells) + " |")
    print(f"\ndistance_temperatures=({', '.join(map(str, chosen))})")


if __name__ == "__main__":
    main()
