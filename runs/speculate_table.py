"""Drafted decodes beside stepwise ones: how many are the same, steps per forward, time.

    python runs/speculate_table.py --prompts 10 --dtype float32

One prompt at a time. `order` counts the decodes whose every commit (step, place, token) is the
stepwise one's, `answer` those whose tokens are. In float64 both are all of them; in less, a batch
of another size rounds in another way, and places that are all but tied can change their turn.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

import torch

import wavefront
from wavefront import tasks

SCHEDULES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
KINDS = ("gsm", "object_counting", "boolean_expressions", "navigate", "web_of_lies")


def prompts(count: int, seed: int) -> list[str]:
    """Held-out problems, of each kind in turn."""
    found = []
    for number in range(count):
        task = tasks.load(KINDS[number % len(KINDS)])
        rng = random.Random(f"{seed} {number}")
        found.append(task.sample(rng, split="held-out").prompt)
    return found


def decode(lm: wavefront.LM, prompt: str, **options: Any) -> tuple[wavefront.Completion, float]:
    began = time.perf_counter()
    made = lm.generate(prompt, trace=True, **options)
    return made, time.perf_counter() - began


def commits(made: wavefront.Completion) -> list[tuple[int, ...]]:
    trace = made.trace
    assert trace is not None
    number = trace.step[..., None].expand_as(trace.commit)
    places = torch.arange(trace.commit.shape[-1]).expand_as(trace.commit)
    found = torch.stack([number, places, trace.tokens], -1)[trace.commit]
    return [tuple(one) for one in found.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Drafted beside stepwise decodes.")
    parser.add_argument("--model", default="ripple")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--places", type=int, default=48)
    parser.add_argument("--ratios", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--drafts", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    asked = parser.parse_args()
    lm = wavefront.load(asked.model, device=asked.device, dtype=asked.dtype)
    questions = prompts(asked.prompts, asked.seed)
    lm.generate(questions[0], schedule="standard", max_new_tokens=8, draft=2)  # to warm up
    print(f"`{' '.join(sys.argv)}`: {lm.model.device}, torch {torch.__version__}, {lm.model.dtype}")
    print("\n| schedule | T | draft | order | answer | steps/forward | time, stepwise = 1 |")
    print("|---|---|---|---|---|---|---|")
    for ratio in asked.ratios:
        for schedule in asked.schedules:
            options = {
                "schedule": schedule,
                "max_new_tokens": asked.places,
                "steps": max(asked.places // ratio, 1),
                "temperature": asked.temperature,
            }
            base = [decode(lm, one, **options) for one in questions]
            for draft in asked.drafts:
                ahead = [decode(lm, one, draft=draft, **options) for one in questions]
                pairs = [(b[0], a[0]) for b, a in zip(base, ahead, strict=True)]
                order = sum(commits(b) == commits(a) for b, a in pairs)
                answer = sum(b.tokens == a.tokens for b, a in pairs)
                rate = sum(a.steps for _, a in pairs) / sum(a.forwards for _, a in pairs)
                cost = sum(a[1] for a in ahead) / sum(b[1] for b in base)
                of = f"/{len(pairs)}"
                cells = (schedule, options["steps"], draft, f"{order}{of}", f"{answer}{of}")
                print("|", *(f"{cell} |" for cell in cells), f"{rate:.2f} | {cost:.2f} |")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
