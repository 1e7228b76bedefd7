"""Accuracy of a small model by task and by strategy, with paired intervals.

    python runs/ripple_table.py generate --model DIR --out answers.jsonl.gz     (best on a GPU)
    python runs/ripple_table.py grade answers.jsonl.gz --out table.md      (runs the code tasks)

Generating and grading are apart, so that model-written code runs where you want. Canvases: the
smallest of 64, 96, 128, 192 and 256 places that holds every reference answer of the task (`fit`),
or a multiple of it (`--canvas 2 4`). Steps: places divided by each of `--ratios`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from shared import (
    batches,
    bootstrap,
    common_options,
    fit,
    header,
    items_of,
    judge,
    load_lm,
    read_answers,
    samples,
)

import wavefront
from wavefront import tasks
from wavefront.core.canvas import is_any
from wavefront.engine.session import begin
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import visible

STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
LEFT_OUT = {"english"}


def decode(lm: wavefront.LM, prompts: list[list[int]], options: dict[str, Any]):
    """Answers and, per row, when EOS first came and how many commits were EOS."""
    decoding = begin(lm.model, prompts, options, stop_ids=lm.stop_ids)
    count = len(prompts)
    ends = torch.zeros(count, dtype=torch.long, device=lm.model.device)
    first = torch.full_like(ends, -1)
    for step in decoding:
        stops = step.decision.commit & is_any(step.view.proposal, lm.stop_ids)
        first = torch.where((first < 0) & stops.any(-1), step.number, first)
        ends = ends + stops.sum(-1)
    answers = [visible(row, lm.stop_ids) for row in decoding.answers()]
    return answers, first.tolist(), ends.tolist(), decoding.forwards


def generate(options: argparse.Namespace) -> None:
    lm = load_lm(options)
    names = options.tasks or [name for name in tasks.names() if name not in LEFT_OUT]
    with gzip.open(options.out, "wt") as file:
        file.write(json.dumps(header(lm, options)) + "\n")
        for split in options.splits:
            for name in names:
                count = items_of(name, options.items)
                try:
                    items = samples(name, count, split, options.seed)
                except wavefront.OptionError as error:
                    print(f"{name} {split}: {error}", file=sys.stderr)
                    continue
                for line in lines(lm, name, split, items, options):
                    file.write(json.dumps(line) + "\n")
                file.flush()


def lines(lm, name, split, items, options):
    """One line per item, canvas, step ratio and strategy."""
    for times in options.canvas:
        places = fit(lm, name, items, options) * times
        for ratio in options.ratios:
            for strategy in options.strategies:
                started = time.perf_counter()
                setting = {
                    "strategy": strategy,
                    "max_new_tokens": places,
                    "steps": max(places // ratio, 1),
                    "eos": options.eos,
                }
                for group, prompts in batches(lm, items, options.rows):
                    answers, first, ends, forwards = decode(lm, prompts, setting)
                    for item, answer, when, share in zip(group, answers, first, ends, strict=True):
                        yield {
                            "task": name,
                            "split": split,
                            "id": item.id,
                            "canvas": times,
                            "ratio": ratio,
                            **setting,
                            "text": lm.tokenizer.decode(answer),
                            "visible": len(answer),
                            "reference": len(lm.tokenizer.encode(item.answer)),
                            "first_eos": when,
                            "eos_commits": share,
                            "forwards": forwards,
                        }
                seconds = time.perf_counter() - started
                print(
                    f"{name} {split} N={places} T=N/{ratio} {strategy}: {seconds:.1f} s", flush=True
                )


# --- grading ----------------------------------------------------------------------------------


def grade(options: argparse.Namespace) -> None:
    first, rows = read_answers(options.answers)
    wanted = dict.fromkeys((row["task"], row["split"]) for row in rows)
    known: dict[str, tuple[str, Sample]] = {}
    for name, split in wanted:
        count = items_of(name, first["items"])
        known |= {item.id: (name, item) for item in samples(name, count, split, first["seed"])}
    judge(rows, known)
    text = render(first, rows)
    print(text)
    if options.out:
        options.out.write_text(text)


def render(header: dict, rows: list[dict]) -> str:
    """A Markdown table per split, canvas and ratio: accuracy, and wave minus block in pairs."""
    groups = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        key = (row["split"], row["canvas"], row["ratio"])
        groups[key][row["task"], row["strategy"]][row["id"]] = row
    parts = [
        f"`{header['command']}`: {header['device']}, torch {header['torch']}, {header['dtype']}, "
        f"seed {header['seed']}"
    ]
    for (split, canvas, ratio), cells in sorted(groups.items()):
        strategies = list(dict.fromkeys(strategy for _, strategy in cells))
        names = list(dict.fromkeys(name for name, _ in cells))
        names = [name for name in names if all((name, s) in cells for s in strategies)]
        parts.append(f"\n### {split}, canvas x{canvas}, T = N/{ratio}\n")
        titles = [f"{s.split('(')[0]}" for s in strategies]
        parts.append(f"| task | n | N | {' | '.join(titles)} | wave - block [95 %] |")
        parts.append("|---|---|---|" + "---|" * (len(strategies) + 1))
        means = defaultdict(list)
        for name in names:
            parts.append(table_row(name, cells, strategies, means))
        average = [f"**{100 * sum(means[s]) / len(means[s]):.1f}**" for s in strategies]
        parts.append(f"| **mean of tasks** | | | {' | '.join(average)} | |")
        parts.append(ends(cells, strategies))
    return "\n".join(parts) + "\n"


def table_row(name, cells, strategies, means) -> str:
    shown = []
    for strategy in strategies:
        found = cells[name, strategy].values()
        share = sum(row["correct"] for row in found) / len(found)
        means[strategy].append(share)
        shown.append(f"{100 * share:.1f}")
    wave, block = (
        next((cells[name, s] for s in strategies if s.startswith(word)), None)
        for word in ("wavefront", "block")
    )
    paired = ""
    if wave and block:
        gaps = [100.0 * (wave[i]["correct"] - block[i]["correct"]) for i in wave]
        low, high = bootstrap(gaps)
        paired = f"{sum(gaps) / len(gaps):+.1f} [{low:+.1f}, {high:+.1f}]"
    one = next(iter(cells[name, strategies[0]].values()))
    count = len(cells[name, strategies[0]])
    return f"| {name} | {count} | {one['max_new_tokens']} | {' | '.join(shown)} | {paired} |"


def ends(cells, strategies) -> str:
    """The premature-EOS measures, over all tasks together."""
    lines = ["\n| | first EOS at step (share of T) | EOS share of commits | visible / reference |"]
    lines.append("|---|---|---|---|")
    for strategy in strategies:
        rows = [row for (_, s), found in cells.items() if s == strategy for row in found.values()]
        ended = [row for row in rows if row["first_eos"] >= 0]
        when = sum(row["first_eos"] / row["steps"] for row in ended) / max(len(ended), 1)
        share = sum(r["eos_commits"] / r["max_new_tokens"] for r in rows) / len(rows)
        told = sum(row["reference"] for row in rows)  # real items have no worked answer
        size = f"{sum(row['visible'] for row in rows) / told:.2f}" if told else "–"
        lines.append(f"| {strategy} | {when:.2f} | {share:.2f} | {size} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy by task and strategy.")
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("generate", help="decode and write the answers")
    common_options(make)
    make.add_argument("--tasks", nargs="*")
    make.add_argument("--splits", nargs="+", default=["held-out"])
    make.add_argument("--items", type=int, default=500)
    make.add_argument("--ratios", nargs="+", type=int, default=[1, 2, 4])
    make.add_argument("--canvas", nargs="+", type=int, default=[1])
    make.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    make.add_argument("--eos", default="keep")
    make.add_argument("--rows", type=int, default=512)
    make.set_defaults(run=generate)
    grading = commands.add_parser("grade", help="grade answers and print the tables")
    grading.add_argument("answers", type=Path)
    grading.add_argument("--out", type=Path)
    grading.set_defaults(run=grade)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
