"""Drafted decodes beside stepwise ones: how many are the same, steps per forward, time.

    python runs/speculate_table.py --prompts 10 --dtype float32
    python runs/speculate_table.py --prompts 200 --places 64 --device cuda --batch 200

`order` counts the decodes whose every commit (step, place, token) is the stepwise one's, `answer`
those whose tokens are. In float64 both are all of them; in less, a batch of another size rounds in
another way, and places that are all but tied can change their turn. Steps per forward are counted
row by row, up to the forward that finished the row; its interval is a bootstrap over rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any, NamedTuple

import torch
from shared import bootstrap

import wavefront
from wavefront import tasks
from wavefront.engine.session import begin
from wavefront.text.tokenizer import prompt_ids

STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
KINDS = ("gsm", "object_counting", "boolean_expressions", "navigate", "web_of_lies")


class Made(NamedTuple):
    """One row's decode."""

    tokens: list[int]
    commits: list[tuple[int, int, int]]  # step, place, token
    steps: int
    forwards: int  # up to the one that finished the row


def prompts(count: int, seed: int) -> list[str]:
    """Held-out problems, of each kind in turn."""
    found = []
    for number in range(count):
        task = tasks.load(KINDS[number % len(KINDS)])
        rng = random.Random(f"{seed} {number}")
        found.append(task.sample(rng, split="held-out").prompt)
    return found


def decode(lm: wavefront.LM, batch: list[list[int]], options: dict[str, Any]) -> list[Made]:
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
    return [Made(*row) for row in rows]


def every(lm: wavefront.LM, asked: list[list[int]], size: int, options: dict[str, Any]):
    began = time.perf_counter()
    made: list[Made] = []
    for at in range(0, len(asked), size):
        made += decode(lm, asked[at : at + size], options)
    return made, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Drafted beside stepwise decodes.")
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
            every(lm, questions[: asked.batch], asked.batch, options)  # to warm up
            base, seconds = every(lm, questions, asked.batch, options)
            for draft in asked.drafts:
                drafted = options | {"draft": draft}
                every(lm, questions[: asked.batch], asked.batch, drafted)
                ahead, spent = every(lm, questions, asked.batch, drafted)
                pairs = list(zip(base, ahead, strict=True))
                order = sum(b.commits == a.commits for b, a in pairs)
                answer = sum(b.tokens == a.tokens for b, a in pairs)
                rates = [a.steps / a.forwards for a in ahead]
                low, high = bootstrap(rates)
                rate = f"{sum(rates) / len(rates):.2f} [{low:.2f}, {high:.2f}]"
                of = f"/{len(pairs)}"
                cells = (strategy, options["steps"], draft, f"{order}{of}", f"{answer}{of}", rate)
                print("|", *(f"{cell} |" for cell in cells), f"{spent / seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
