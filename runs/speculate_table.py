"""Compare speculative and stepwise decodes: how many are equal, steps per forward pass, time.

    python runs/speculate_table.py --prompts 10 --dtype float32
    python runs/speculate_table.py --prompts 200 --places 64 --device cuda --batch 200

`order` counts the decodes in which every commit (step, position, token) equals the stepwise one,
and `answer` those with equal tokens. In float64 all decodes are equal in both. In lower precision a
batch of another size rounds differently, so nearly tied positions can swap. Steps per forward pass
are counted per row, up to the pass that finished the row; the interval is a bootstrap over rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront import tasks
from wavefront.engine.session import begin
from wavefront.paper.tables import STRATEGIES
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.text.tokenizer import prompt_ids

KINDS = ("gsm", "object_counting", "boolean_expressions", "navigate", "web_of_lies")


class DecodedRow(NamedTuple):
    """The decode of one row."""

    tokens: list[int]
    commits: list[tuple[int, int, int]]  # step, position, token
    steps: int
    forwards: int  # up to the pass that finished the row


def prompts(count: int, seed: int) -> list[str]:
    """Return held-out problems, of each kind in turn."""
    found = []
    for number in range(count):
        task = tasks.load(KINDS[number % len(KINDS)])
        rng = random.Random(f"{seed} {number}")
        found.append(task.sample(rng, split="held-out").prompt)
    return found


def decode(lm: wavefront.LM, batch: list[list[int]], options: dict[str, Any]) -> list[DecodedRow]:
    """Decode a batch, and collect every commit."""
    decoding = begin(lm.model, batch, options, stop_ids=lm.stop_ids, record=True)
    ended = torch.zeros(len(batch), dtype=torch.long, device=lm.model.device)
    over = torch.zeros_like(ended, dtype=torch.bool)
    for step in decoding:
        ended, over = torch.where(over, ended, step.forwards), step.done
    trace = decoding.trace()
    assert trace is not None
    found: list[list[tuple[int, int, int]]] = [[] for _ in batch]
    for index, row, place in trace.commit.nonzero().tolist():
        number, token = int(trace.step[index, row]), int(trace.tokens[index, row, place])
        found[row].append((number, place, token))
    rows = zip(decoding.answers(), found, decoding.steps(), ended.tolist(), strict=True)
    return [DecodedRow(*row) for row in rows]


def decode_all(lm: wavefront.LM, asked: list[list[int]], size: int, options: dict[str, Any]):
    """Decode all prompts in batches; return the rows and the seconds."""
    began = time.perf_counter()
    made: list[DecodedRow] = []
    for at in range(0, len(asked), size):
        made += decode(lm, asked[at : at + size], options)
    return made, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare speculative and stepwise decodes.")
    parser.add_argument("--model", default="ripple")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1, help="prompts decoded together")
    parser.add_argument("--places", type=int, default=48)
    parser.add_argument("--ratios", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--drafts", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    asked = parser.parse_args()
    lm = wavefront.load(asked.model, device=asked.device, dtype=asked.dtype)
    texts = prompts(asked.prompts, asked.seed)
    questions = [prompt_ids(lm.tokenizer, text) for text in texts]
    print(f"`{' '.join(sys.argv)}`: {lm.model.device}, torch {torch.__version__}, {lm.model.dtype}")
    print("\n| strategy | T | draft | order | answer | steps/forward [95 %] | time, stepwise = 1 |")
    print("|---|---|---|---|---|---|---|")
    for ratio in asked.ratios:
        for strategy in asked.strategies:
            options = {
                "strategy": strategy,
                "max_new_tokens": asked.places,
                "steps": max(asked.places // ratio, 1),
                "temperature": asked.temperature,
            }
            decode_all(lm, questions[: asked.batch], asked.batch, options)  # to warm up
            base, seconds = decode_all(lm, questions, asked.batch, options)
            for draft in asked.drafts:
                drafted = options | {"speculate": draft}
                decode_all(lm, questions[: asked.batch], asked.batch, drafted)
                ahead, spent = decode_all(lm, questions, asked.batch, drafted)
                pairs = list(zip(base, ahead, strict=True))
                order = sum(b.commits == a.commits for b, a in pairs)
                answer = sum(b.tokens == a.tokens for b, a in pairs)
                rates = [a.steps / a.forwards for a in ahead]
                mean = bootstrap_mean(rates)
                rate = f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]"
                of = f"/{len(pairs)}"
                cells = (strategy, options["steps"], draft, f"{order}{of}", f"{answer}{of}", rate)
                print("|", *(f"{cell} |" for cell in cells), f"{spent / seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
