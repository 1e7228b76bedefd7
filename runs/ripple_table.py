"""Accuracy of a small model by task and by strategy, with paired intervals.

    python runs/ripple_table.py generate --model DIR --out answers.jsonl.gz     (best on a GPU)
    python runs/ripple_table.py grade answers.jsonl.gz --out table.md      (runs the code tasks)

The canvas is the smallest of 64, 96, 128, 192 and 256 positions that holds every reference answer
of the task, or a multiple of it (`--canvas 2 4`). Steps: positions divided by each of `--ratios`.
`wavefront paper run dynamics` measures where answers end.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator

from shared import (
    Row,
    decode,
    draw_items,
    fit_canvas,
    gap,
    headline,
    percent_correct,
    run_script,
    signed_text,
)

import wavefront
from wavefront import tasks
from wavefront.analysis.figures import kind
from wavefront.paper.tables import STRATEGIES, first_block
from wavefront.results.table import Table

LEFT_OUT = {"english"}
LARGE = {"gsm", "code"}  # tasks that get --items; the others get half of it


def generate(lm: wavefront.LM, options: argparse.Namespace) -> Iterator[Row]:
    """Yield one row per item, canvas, step ratio and strategy."""
    names = options.tasks or [name for name in tasks.names() if name not in LEFT_OUT]
    for split in options.splits:
        for name in names:
            count = options.items if name in LARGE else options.items // 2
            try:
                items = draw_items(name, split, count, seed=options.seed)
            except wavefront.OptionError as error:
                print(f"{name} {split}: {error}", file=sys.stderr)
                continue
            # Real items have no reference answer; their canvas is that of the held-out ones.
            known = items if split != "real" else draw_items(
                name, "held-out", count, seed=options.seed
            )  # fmt: skip
            yield from _decode_task(lm, items, fit_canvas(lm, known), options, {
                "task": name, "split": split, "drawn": count,
            })  # fmt: skip


def _decode_task(lm, items, fitted: int, options: argparse.Namespace, where: Row) -> Iterator[Row]:
    for times in options.canvas:
        for ratio in options.ratios:
            for strategy in options.strategies:
                length = fitted * times
                setting = {"strategy": strategy, "max_new_tokens": length, "eos": options.eos}
                setting["steps"] = max(length // ratio, 1)
                for _, row in decode(lm, items, options.rows, **setting):
                    yield {**where, "canvas": times, "ratio": ratio, "strategy": strategy, **row}


def grade(header: Row, rows: list[Row], options: argparse.Namespace) -> str:
    """Return a table per split, canvas and ratio: accuracy, and wave minus block in pairs."""
    groups = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        key = (row["split"], row["canvas"], row["ratio"])
        groups[key][row["task"], row["strategy"]][row["id"]] = row
    parts = [headline(header)]
    for (split, canvas, ratio), cells in sorted(groups.items()):
        parts.append(f"\n### {split}, canvas x{canvas}, T = N/{ratio}\n")
        parts.append(accuracy_by_task(cells).markdown())
    return "\n".join(parts) + "\n"


def accuracy_by_task(cells) -> Table:
    """Return correct answers in % by task and strategy."""
    strategies = list(dict.fromkeys(strategy for _, strategy in cells))
    names = dict.fromkeys(name for name, _ in cells)
    block = first_block(strategies)
    wave = next((spec for spec in strategies if kind(spec) == "wavefront"), None)
    rows, shares = [], defaultdict(list)
    for name in names:
        if not all((name, spec) in cells for spec in strategies):
            continue
        found = {spec: cells[name, spec] for spec in strategies}
        for spec in strategies:
            shares[spec].append(percent_correct(found[spec]))
        one = next(iter(found[strategies[0]].values()))
        paired = signed_text(gap(found[wave], found[block])) if wave and block else ""
        shown = [f"{shares[spec][-1]:.1f}" for spec in strategies]
        rows.append([name, len(found[strategies[0]]), one["places"], *shown, paired])
    means = [f"**{sum(shares[spec]) / len(shares[spec]):.1f}**" for spec in strategies]
    rows.append(["**mean of tasks**", "", "", *means, ""])
    columns = ["task", "n", "N", *(kind(spec) for spec in strategies), "wave - block [95 %]"]
    return Table("Accuracy by task", columns, rows)


def add_options(make: argparse.ArgumentParser, judge: argparse.ArgumentParser) -> None:
    """Add the options of this table."""
    make.add_argument("--tasks", nargs="*")
    make.add_argument("--splits", nargs="+", default=["held-out"])
    make.add_argument("--items", type=int, default=500)
    make.add_argument("--ratios", nargs="+", type=int, default=[1, 2, 4])
    make.add_argument("--canvas", nargs="+", type=int, default=[1])
    make.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    make.add_argument("--eos", default="keep")


if __name__ == "__main__":
    run_script("Accuracy by task and strategy.", generate, grade, add_options)
