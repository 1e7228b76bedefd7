"""What each word of `speed` costs: quality and computed positions against the exact decode.

    python runs/speed_table.py --model ripple --items 64 --out ripple.md
    python runs/speed_table.py --model tale --items 64 --out tale.md

ripple solves held-out word problems, and quality is the share of correct answers. tale continues
held-out stories, and quality is the judge's negative log-likelihood in nats per token. Differences
are paired with the exact decode of the same prompts. *Computed* is the share of the positions that
the exact decode computes. A setting is a word of `speed`, a cache such as `wave(refresh=8)`, or a
precision such as `bfloat16`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from cache_table import agreement
from shared import draw_items

import wavefront
from wavefront import tasks
from wavefront.engine.options import SPEEDS
from wavefront.models.judge import Judge
from wavefront.results.paired import compare
from wavefront.results.table import Table
from wavefront.storage.hub import builtin_checkpoints
from wavefront.text.tokenizer import prompt_ids

SETTINGS = ("exact", "balanced", "fast")
PRECISIONS = ("float32", "bfloat16", "float16")


class Item(NamedTuple):
    """A prompt, and the sample that grades its answer; None for a story."""

    id: str
    ids: list[int]
    sample: Any = None


def read_items(lm: wavefront.LM, count: int, seed: int) -> list[Item]:
    """Return held-out prompts: stories for tale, word problems for every other model."""
    if lm.name == "tale":
        lines = (builtin_checkpoints()["tale"] / "prompts.jsonl").read_text("utf-8").splitlines()
        return [Item(str(n), json.loads(line)["ids"]) for n, line in enumerate(lines[:count])]
    found = draw_items("gsm", "test", count, seed=seed)
    return [Item(one.id, prompt_ids(lm.tokenizer, one.prompt), one) for one in found]


def decode(lm: wavefront.LM, items: list[Item], options: dict[str, Any], rows: int) -> Any:
    """Return the tokens of every item, and how many positions were computed."""
    found: dict[str, list[int]] = {}
    computed = 0
    for start in range(0, len(items), rows):
        some = items[start : start + rows]
        made = wavefront.generate_ids(lm.model, [one.ids for one in some], **options)
        computed += made.token_forwards
        for one, tokens in zip(some, made.tokens, strict=True):
            ends = [at for at, token in enumerate(tokens) if token in lm.stop_ids]
            found[one.id] = tokens[: ends[0]] if ends else tokens
    return found, computed


def score(lm: wavefront.LM, items: list[Item], answers: dict[str, list[int]]) -> dict[str, float]:
    """Return the quality of every answer: nats per token of a story, or 1 for a correct answer."""
    if lm.name == "tale":
        rows = [[*one.ids, *answers[one.id], lm.stop_ids[0]] for one in items]
        judge = Judge.load(builtin_checkpoints()["tale"] / "judge", device=lm.model.device)
        scores = judge.score(rows, [len(one.ids) for one in items])
        return {one.id: found.mean for one, found in zip(items, scores, strict=True)}
    grader = tasks.load("gsm")
    texts = {one.id: lm.tokenizer.decode(answers[one.id]) for one in items}
    return {one.id: float(grader.grade(one.sample, texts[one.id]).correct) for one in items}


def main() -> None:
    """Measure every setting and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tale")
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16, help="decoded together")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--strategy", default="wavefront")
    parser.add_argument("--eos", default="stop")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0, help="of drawing the items")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lm = wavefront.load(given.model, device=given.device)
    items = sorted(read_items(lm, given.items, given.seed), key=lambda one: len(one.ids))
    options = {
        "strategy": given.strategy,
        "max_new_tokens": given.max_new_tokens,
        "eos": given.eos,
        "stop_ids": lm.stop_ids,
    }
    decoded, positions = decode(lm, items, options, given.rows)
    base = score(lm, items, decoded)
    lines = []
    for setting in dict.fromkeys(["exact", *given.settings]):
        model, extra = lm, {"cache": setting}
        if setting in SPEEDS:
            model = wavefront.load(given.model, device=given.device, speed=setting)
            extra = {"speed": setting}
        elif setting in PRECISIONS:
            model, extra = wavefront.load(given.model, device=given.device, dtype=setting), {}
        answers, computed = decoded, positions
        if setting != "exact":
            answers, computed = decode(model, items, options | extra, given.rows)
        values = score(lm, items, answers)
        gap = compare(base, values).gap
        lines.append(
            [
                f"`{setting}`",
                f"{fmean(values.values()):.3f}",
                f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]",
                f"{100 * fmean(agreement(answers[k], decoded[k]) for k in base):.1f}",
                f"{computed / positions:.2f}",
            ]
        )
        print(*lines[-1], file=sys.stderr, flush=True)
    what = "nats per token" if lm.name == "tale" else "correct"
    columns = ["setting", what, "- exact [95 %]", "same tokens %", "computed"]
    text = (
        f"`{' '.join(sys.argv)}`: {lm.name}, {len(items)} items, {given.strategy}, "
        f"N = T = {given.max_new_tokens}, eos {given.eos}, {lm.model.dtype}, torch "
        f"{torch.__version__}, {lm.model.device}\n\n"
        f"{Table(lm.name, columns, lines).markdown()}\n"
    )
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
