"""Compare strategies at filling holes in stories, and print a table in Markdown.

python runs/infill_table.py --items 64            (five minutes on two cores)

Each held-out text of tale's original gets two holes of 12 tokens. The judge scores the whole text
from the first hole on, so a hole that does not fit the text after it costs nats there.
"""

from __future__ import annotations

import argparse
from random import Random
from typing import NamedTuple

import torch

import wavefront
from wavefront.analysis.quality import QualityJudge, ScoredText
from wavefront.core import canvas
from wavefront.engine.session import DecodeSession
from wavefront.results.bootstrap import bootstrap_known_means
from wavefront.results.interval import bounds
from wavefront.tasks.base import Ask
from wavefront.tasks.stories import Stories
from wavefront.text.tokenizer import prompt_ids

STRATEGIES = ("wavefront", "standard", "block", "left_to_right", "wavefront(size=4)")
HOLE, AFTER = 12, 20  # tokens of a hole, and of the text after the second one
LONGEST = 128  # tokens of a text before it is cut
BATCH = 32


class Item(NamedTuple):
    """A text with two holes."""

    ids: list[int]
    holes: list[bool]

    @property
    def start(self) -> int:
        return self.holes.index(True)


def draw(lm: wavefront.LM, count: int) -> list[Item]:
    """Cut two holes into each of the first texts that are long enough."""
    random, found = Random(0), []
    for sample in Stories().items(Ask()):
        ids = prompt_ids(lm.tokenizer, sample.extra["text"], raw=True)[:LONGEST]
        if len(ids) == LONGEST and len(found) < count:
            first = random.randrange(20, 40)
            second = random.randrange(first + HOLE + 6, first + HOLE + 30)
            ids = ids[: second + HOLE + AFTER]
            holes = [any(0 <= n - at < HOLE for at in (first, second)) for n in range(len(ids))]
            found.append(Item(ids, holes))
    return found


def fill(lm: wavefront.LM, items: list[Item], strategy: str, steps: int) -> list[list[int]]:
    """Fill the holes of every text."""
    plan = lm.plan({"strategy": strategy, "steps": steps}, length=2 * HOLE)
    mask, pad = lm.model.mask_id, lm.model.pad_id
    filled: list[list[int]] = []
    for start in range(0, len(items), BATCH):
        batch = items[start : start + BATCH]
        rows = [
            [mask if hole else id for id, hole in zip(item.ids, item.holes, strict=True)]
            for item in batch
        ]
        holes = [item.holes for item in batch]
        board = canvas.infill(rows, holes, mask_id=mask, pad_id=pad, device=lm.model.device)
        session = DecodeSession(lm.model, board, plan)
        session.drain()
        filled += session.tokens()
    return filled


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=64)
    lm = wavefront.load("tale")
    judge = QualityJudge.load("tale")
    items = draw(lm, parser.parse_args().items)

    def nats(texts: list[list[int]]) -> torch.Tensor:
        scored = [ScoredText(ids, item.start) for ids, item in zip(texts, items, strict=True)]
        return torch.tensor([[one.nats] for one in judge.measure_texts(scored)]).double()

    print("| strategy | steps | nats per token | minus `wavefront`, 95 % interval |")
    print("|---|---|---|---|")
    print(f"| the original text | | {nats([item.ids for item in items]).mean():.3f} | |")
    for steps in (2 * HOLE, HOLE // 2):
        base = None
        for strategy in STRATEGIES:
            found = nats(fill(lm, items, strategy, steps))
            base = found if base is None else base
            value, low, high = bounds(*bootstrap_known_means(found - base))
            line = "" if found is base else f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
            print(f"| `{strategy}` | {steps} | {found.mean():.3f} | {line} |", flush=True)


if __name__ == "__main__":
    main()
