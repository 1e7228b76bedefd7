"""Accuracy of quantised weights against the first ones, on the same items, with paired intervals.

    python runs/quantize_table.py --items 16 --out answers.jsonl
    python runs/quantize_table.py ripple ripple@int8 ripple@int4 --items 48 --out answers.jsonl
    python runs/quantize_table.py --grade answers.jsonl

A model is a name or a directory, with `@int8`, `@fp8` or `@int4` to quantise it while loading.
`@fp8-inputs` also rounds the inputs to fp8, as a GPU with fp8 products does. Each batch of items is
decoded by all models in turn and written at once, so a stopped run can be graded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from shared import (
    QUANTIZATIONS,
    Row,
    decode,
    draw_items,
    fit_canvas,
    gap,
    grade_rows,
    load_quantized,
    percent_correct,
    signed_text,
)

import wavefront
from wavefront import tasks

LEFT_OUT = {"english"}
STRATEGY, CACHE = "dsb(size=16)", "dual(refresh=16)"  # about one full pass an answer


def load(spec: str, options: argparse.Namespace) -> wavefront.LM:
    """Load a model from `name` or `name@kind`."""
    name, _, kind = spec.partition("@")
    return load_quantized(name, kind or None, device=options.device, dtype=options.dtype)


def batches(lm: wavefront.LM, options: argparse.Namespace) -> Iterator[tuple[Row, list]]:
    """Yield the batches of all tasks in turn, so that a stopped run covers every task."""
    names = options.tasks or [name for name in tasks.names() if name not in LEFT_OUT]
    drawn = {name: draw_items(name, "held-out", options.items, seed=options.seed) for name in names}
    for start in range(0, options.items, options.rows):
        for name, items in drawn.items():
            where = {"task": name, "split": "held-out", "drawn": options.items}
            where["places"] = fit_canvas(lm, items)
            if items[start : start + options.rows]:
                yield where, items[start : start + options.rows]


def generate(options: argparse.Namespace) -> None:
    """Decode, and write one line per item and model."""
    models = {spec: load(spec, options) for spec in options.models}
    header = {"command": " ".join(sys.argv), "seed": options.seed, "models": options.models}
    with options.out.open("w") as file:
        file.write(json.dumps(header) + "\n")
        for where, items in batches(next(iter(models.values())), options):
            setting = {"strategy": options.strategy, "max_new_tokens": where["places"]}
            setting |= {"eos": options.eos, "cache": options.cache}
            for spec, lm in models.items():
                for _, row in decode(lm, items, options.rows, **setting):
                    file.write(json.dumps({**where, "model": spec, **row}) + "\n")
            file.flush()


def grade(path: Path) -> None:
    """Print one line per model: accuracy, and the paired difference to the first model."""
    header, *rows = (json.loads(line) for line in path.read_text().splitlines())
    grade_rows(rows, header["seed"])
    found = defaultdict(dict)
    for row in rows:
        found[row["model"]][row["task"], row["id"]] = row
    first = found[header["models"][0]]
    finished = set.intersection(*(set(found[spec]) for spec in header["models"]))
    print(f"`{header['command']}`, {len(finished)} items\n")
    print(
        "| model | correct, % | difference to the first [95 %] | same tokens |\n|---|---|---|---|"
    )
    base = {key: first[key] for key in finished}
    for spec in header["models"]:
        mine = {key: found[spec][key] for key in finished}
        same = sum(mine[key]["tokens"] == base[key]["tokens"] for key in finished)
        paired = signed_text(gap(mine, base))
        print(f"| {spec} | {percent_correct(mine):.1f} | {paired} | {same} of {len(finished)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of quantised weights.")
    usual = ["ripple", *(f"ripple@{kind}" for kind in QUANTIZATIONS)]
    parser.add_argument("models", nargs="*", help="name, directory, or either with @int8")
    parser.add_argument("--grade", type=Path, help="grade the answers in this file")
    parser.add_argument("--out", type=Path, help="write the answers to this file")
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--items", type=int, default=48, help="of each task")
    parser.add_argument("--rows", type=int, default=16, help="decoded together")
    parser.add_argument("--strategy", default=STRATEGY)
    parser.add_argument("--cache", default=CACHE)
    parser.add_argument("--eos", default="defer")
    parser.add_argument("--seed", type=int, default=0, help="of drawing the items")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    options = parser.parse_args()
    options.models = options.models or usual
    if options.grade is None and not options.out:
        parser.error("give --out or --grade")
    grade(options.grade) if options.grade else generate(options)


if __name__ == "__main__":
    main()
