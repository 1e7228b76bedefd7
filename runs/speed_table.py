"""What each word of `speed` and each quantisation costs, against the exact decode.

    python runs/speed_table.py --model tale --items 64 --out tale.md
    python runs/speed_table.py --model ripple --items 64 --settings balanced fast --out ripple.md

There is one table per strategy: by default the default strategy, and `wavefront`. A setting is a
word of `speed`, a quantisation, a cache such as `wave(refresh=8)`, or a precision such as
`bfloat16`. `fp8-inputs` rounds the inputs of fp8 layers as a GPU does; `fp8` on a CPU does not.

tale continues held-out stories. The judge scores them in nats per token, and a lower number counts
only if length and distinct trigrams are not worse, also over the first 64 tokens. ripple solves
held-out word problems, and quality is the share of correct answers. Differences are paired with the
exact decode of the same prompts. *Computed* is the share of the positions that the exact decode
computes. `--out` is written after every row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from cache_table import agreement
from shared import QUANTIZATIONS, draw_items, load_quantized

import wavefront
from wavefront import tasks
from wavefront.analysis.quality import QualityJudge, ScoredText, TextQuality, differences, estimates
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.engine.options import SPEEDS
from wavefront.results.interval import Interval
from wavefront.results.paired import compare
from wavefront.results.table import Table
from wavefront.storage.hub import builtin_checkpoints
from wavefront.storage.provenance import commit
from wavefront.text.tokenizer import prompt_ids

EXACT = "exact"
PRECISIONS = ("float32", "bfloat16", "float16")
# Measures of a story, with the number of decimals.
STORY = {"nats": 3, "first_nats": 3, "length": 1, "distinct": 3, "first_distinct": 3}
STORY_COLUMNS = ["nats per token", "nats of the first 64", "length", "distinct trigrams",
                 "distinct of the first 64"]  # fmt: skip


class Item(NamedTuple):
    """A prompt, and the sample that grades its answer; None for a story."""

    id: str
    ids: list[int]
    sample: Any = None


class Answer(NamedTuple):
    """The visible tokens of an answer, and whether a stop token ended it."""

    tokens: list[int]
    ended: bool


class Decoded(NamedTuple):
    """The answers of one setting, and how many positions were computed."""

    answers: list[Answer]  # in the order of the items
    computed: int


Score = Callable[[list[Answer]], list[Any]]  # a TextQuality, or 1.0 for a correct answer


def read_items(lm: wavefront.LM, count: int, seed: int) -> list[Item]:
    """Return held-out prompts: stories for tale, word problems for every other model."""
    if lm.name == "tale":
        lines = (builtin_checkpoints()["tale"] / "prompts.jsonl").read_text("utf-8").splitlines()
        return [Item(str(n), json.loads(line)["ids"]) for n, line in enumerate(lines[:count])]
    found = draw_items("gsm", "test", count, seed=seed)
    return [Item(one.id, prompt_ids(lm.tokenizer, one.prompt), one) for one in found]


def decode(lm: wavefront.LM, items: list[Item], options: dict[str, Any], rows: int) -> Decoded:
    """Decode every item, `rows` at a time."""
    answers, computed = [], 0
    for start in range(0, len(items), rows):
        some = [one.ids for one in items[start : start + rows]]
        made = wavefront.generate_ids(lm.model, some, **options)
        computed += made.token_forwards
        for tokens in made.tokens:
            ends = [at for at, token in enumerate(tokens) if token in lm.stop_ids]
            answers.append(Answer(tokens[: ends[0]] if ends else tokens, bool(ends)))
    return Decoded(answers, computed)


def score_stories(items: list[Item], device: torch.device) -> Score:
    """Return what measures the quality of stories."""
    judge = QualityJudge.load("tale", device=device)

    def score(answers: list[Answer]) -> list[TextQuality]:
        texts = [
            ScoredText([*item.ids, *tokens, *([judge.end] if ended else [])], len(item.ids))
            for item, (tokens, ended) in zip(items, answers, strict=True)
        ]
        return judge.measure_texts(texts)

    return score


def score_problems(items: list[Item], lm: wavefront.LM) -> Score:
    """Return what grades answers to word problems."""
    grader = tasks.load("gsm")

    def score(answers: list[Answer]) -> list[float]:
        texts = [lm.tokenizer.decode(answer.tokens) for answer in answers]
        pairs = zip(items, texts, strict=True)
        return [float(grader.grade(item.sample, text).correct) for item, text in pairs]

    return score


def shown(found: Any, digits: int, *, signed: bool = False) -> str:
    """Return an estimate, with its interval if it is a difference."""
    if found is None:
        return ""  # every text is too short
    sign, value = "+" if signed else "", getattr(found, "value", found)
    text = f"{value:{sign}.{digits}f}"
    if not signed or not isinstance(found, Interval):
        return text
    return f"{text} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def cells(base: Sequence[Any], found: Sequence[Any]) -> list[str]:
    """Return the cells of a setting: each measure, and its paired difference to the exact one."""
    if isinstance(found[0], TextQuality):
        means, gaps, digits = estimates(found), differences(base, found), STORY
    else:
        gap = compare(dict(enumerate(base)), dict(enumerate(found))).gap
        means, gaps, digits = {"correct": fmean(found)}, {"correct": gap}, {"correct": 3}
    rows = []
    for name, count in digits.items():
        text = shown(means[name], count)
        if found is not base and text:
            text += f"; {shown(gaps[name], count, signed=True)}"
        rows.append(text)
    return rows


def model_of(setting: str, lm: wavefront.LM, given: argparse.Namespace) -> wavefront.LM:
    """Load the model as a setting does."""
    chosen = {"device": given.device}
    if setting in QUANTIZATIONS:
        return load_quantized(given.model, setting, **chosen)
    if setting in SPEEDS:
        return wavefront.load(given.model, speed=setting, **chosen)
    if setting in PRECISIONS:
        return wavefront.load(given.model, dtype=setting, **chosen)
    return lm


def options_of(setting: str) -> dict[str, Any]:
    """Return the decoding options of a setting."""
    if setting in SPEEDS:
        return {"speed": setting}
    return {} if setting in (*QUANTIZATIONS, *PRECISIONS) else {"cache": setting}


def main() -> None:
    """Measure every setting under every strategy and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tale")
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16, help="decoded together")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--strategies", nargs="+", default=[DEFAULT_STRATEGY, "wavefront"])
    parser.add_argument("--eos", default="stop")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0, help="of drawing the items")
    parser.add_argument("--settings", nargs="+", default=[*SPEEDS, *QUANTIZATIONS])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lm = wavefront.load(given.model, device=given.device)
    items = sorted(read_items(lm, given.items, given.seed), key=lambda one: len(one.ids))
    tale = lm.name == "tale"
    score = score_stories(items, lm.model.device) if tale else score_problems(items, lm)
    columns = ["setting", *(STORY_COLUMNS if tale else ["correct"]), "same tokens %", "computed"]
    text = (
        f"`{' '.join(sys.argv)}`, commit `{commit()}`: {lm.name}, {len(items)} items, "
        f"N = T = {given.max_new_tokens}, eos {given.eos}, {lm.model.dtype}, torch "
        f"{torch.__version__}, {lm.model.device}. After a semicolon: the paired difference to "
        "`exact` [95 %].\n"
    )
    for strategy in given.strategies:
        table = ""
        options = {"strategy": strategy, "max_new_tokens": given.max_new_tokens}
        options |= {"eos": given.eos, "stop_ids": lm.stop_ids}
        exact = decode(lm, items, options, given.rows)
        base = score(exact.answers)
        lines: list[list[str]] = []
        for setting in dict.fromkeys([EXACT, *given.settings]):
            made, values = exact, base
            if setting != EXACT:
                model = model_of(setting, lm, given)
                made = decode(model, items, options | options_of(setting), given.rows)
                values = score(made.answers)
            pairs = zip(made.answers, exact.answers, strict=True)
            same = 100 * fmean(agreement(one.tokens, two.tokens) for one, two in pairs)
            share = f"{made.computed / exact.computed:.2f}"
            lines.append([f"`{setting}`", *cells(base, values), f"{same:.1f}", share])
            print(*lines[-1], file=sys.stderr, flush=True)
            table = f"\n`{strategy}`:\n\n{Table(lm.name, columns, lines).markdown()}\n"
            if given.out:
                given.out.write_text(text + table)
        text += table
    print(text)


if __name__ == "__main__":
    main()
