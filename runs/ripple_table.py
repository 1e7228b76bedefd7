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
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import wavefront
from wavefront import tasks
from wavefront.canvas import is_any
from wavefront.decoding import begin
from wavefront.models.transformer import Transformer
from wavefront.task import Sample
from wavefront.text import prompt_ids, visible

SCHEDULES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
CANVASES = (64, 96, 128, 192, 256)
LARGE = {"gsm", "code"}  # tasks that get --items; the others get half of it
LEFT_OUT = {"english"}


def samples(name: str, count: int, split: str, seed: int) -> list[Sample]:
    """Held-out items of a task, half of them in the paper's template; or the real BBH file."""
    if split == "real":
        return list(tasks.real_bbh(name))[:count]
    task = tasks.load(name)
    rng = random.Random(f"{seed} {name} {split}")
    found: dict[str, Sample] = {}
    for number in range(20 * count):  # a small task may have fewer distinct items than asked for
        style = "paper" if number % 2 else "bare"
        item = task.sample(rng, split=split, style=style)  # pyright: ignore[reportArgumentType]
        found.setdefault(item.id, item)
        if len(found) == count:
            break
    return list(found.values())


def items_of(name: str, items: int) -> int:
    return items if name in LARGE else items // 2


def fit(lm: wavefront.LM, name: str, items: list[Sample], options: argparse.Namespace) -> int:
    """The task's canvas. Real items have no worked answer: theirs is that of the held-out ones."""
    if not any(item.answer for item in items):
        items = samples(name, items_of(name, options.items), "held-out", options.seed)
    longest = max((len(lm.tokenizer.encode(item.answer)) + 2 for item in items), default=128)
    return next((n for n in CANVASES if n >= longest), CANVASES[-1])


def batches(lm: wavefront.LM, items: list[Sample], rows: int):
    """Items with their prompts, sorted by length so that padding is short."""
    prompts = [prompt_ids(lm.tokenizer, item.prompt) for item in items]
    order = sorted(range(len(items)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        yield [items[i] for i in chosen], [prompts[i] for i in chosen]


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
    lm = wavefront.load(options.model, device=options.device, dtype=options.dtype)
    if options.compile and isinstance(lm.model, Transformer):
        torch._dynamo.config.recompile_limit = 64
        for block in lm.model.blocks:  # one block's code serves all, at any shape
            block.compile(dynamic=True)
    names = options.tasks or [name for name in tasks.names() if name not in LEFT_OUT]
    header = {
        "model": lm.name,
        "version": wavefront.__version__,
        "torch": torch.__version__,
        "dtype": str(lm.model.dtype),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "command": " ".join(sys.argv),
        "seed": options.seed,
        "items": options.items,
    }
    with gzip.open(options.out, "wt") as file:
        file.write(json.dumps(header) + "\n")
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
    """One line per item, canvas, step ratio and schedule."""
    for times in options.canvas:
        places = fit(lm, name, items, options) * times
        for ratio in options.ratios:
            for schedule in options.schedules:
                started = time.perf_counter()
                setting = {
                    "schedule": schedule,
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
                    f"{name} {split} N={places} T=N/{ratio} {schedule}: {seconds:.1f} s", flush=True
                )


# --- grading ----------------------------------------------------------------------------------


def grade(options: argparse.Namespace) -> None:
    with gzip.open(options.answers, "rt") as file:
        header = json.loads(next(file))
        rows = [json.loads(line) for line in file]
    wanted = dict.fromkeys((row["task"], row["split"]) for row in rows)
    known: dict[str, Sample] = {}
    for name, split in wanted:
        count = items_of(name, header["items"])
        known |= {item.id: item for item in samples(name, count, split, header["seed"])}
    graders = {name: load_grader(name) for name, _ in wanted}
    for row in rows:
        row["correct"] = graders[row["task"]].grade(known[row["id"]], row["text"]).correct
    text = render(header, rows)
    print(text)
    if options.out:
        options.out.write_text(text)


def load_grader(name: str):
    return tasks.load(name, allow_unsandboxed=True) if name == "code" else tasks.load(name)


def bootstrap(differences: list[float], draws: int = 2000) -> tuple[float, float]:
    """A paired bootstrap 95 % interval of the mean."""
    values = torch.tensor(differences, dtype=torch.float64)
    picks = torch.randint(
        0, len(values), (draws, len(values)), generator=torch.Generator().manual_seed(0)
    )
    means = values[picks].mean(-1)
    return float(means.quantile(0.025)), float(means.quantile(0.975))


def render(header: dict, rows: list[dict]) -> str:
    """A Markdown table per split, canvas and ratio: accuracy, and wave minus block in pairs."""
    groups = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        key = (row["split"], row["canvas"], row["ratio"])
        groups[key][row["task"], row["schedule"]][row["id"]] = row
    parts = [
        f"`{header['command']}`: {header['device']}, torch {header['torch']}, {header['dtype']}, "
        f"seed {header['seed']}"
    ]
    for (split, canvas, ratio), cells in sorted(groups.items()):
        schedules = list(dict.fromkeys(schedule for _, schedule in cells))
        names = list(dict.fromkeys(name for name, _ in cells))
        names = [name for name in names if all((name, s) in cells for s in schedules)]
        parts.append(f"\n### {split}, canvas x{canvas}, T = N/{ratio}\n")
        titles = [f"{s.split('(')[0]}" for s in schedules]
        parts.append(f"| task | n | N | {' | '.join(titles)} | wave - block [95 %] |")
        parts.append("|---|---|---|" + "---|" * (len(schedules) + 1))
        means = defaultdict(list)
        for name in names:
            parts.append(table_row(name, cells, schedules, means))
        average = [f"**{100 * sum(means[s]) / len(means[s]):.1f}**" for s in schedules]
        parts.append(f"| **mean of tasks** | | | {' | '.join(average)} | |")
        parts.append(ends(cells, schedules))
    return "\n".join(parts) + "\n"


def table_row(name, cells, schedules, means) -> str:
    shown = []
    for schedule in schedules:
        found = cells[name, schedule].values()
        share = sum(row["correct"] for row in found) / len(found)
        means[schedule].append(share)
        shown.append(f"{100 * share:.1f}")
    wave, block = (
        next((cells[name, s] for s in schedules if s.startswith(word)), None)
        for word in ("wavefront", "block")
    )
    paired = ""
    if wave and block:
        gaps = [100.0 * (wave[i]["correct"] - block[i]["correct"]) for i in wave]
        low, high = bootstrap(gaps)
        paired = f"{sum(gaps) / len(gaps):+.1f} [{low:+.1f}, {high:+.1f}]"
    one = next(iter(cells[name, schedules[0]].values()))
    count = len(cells[name, schedules[0]])
    return f"| {name} | {count} | {one['max_new_tokens']} | {' | '.join(shown)} | {paired} |"


def ends(cells, schedules) -> str:
    """The premature-EOS measures, over all tasks together."""
    lines = ["\n| | first EOS at step (share of T) | EOS share of commits | visible / reference |"]
    lines.append("|---|---|---|---|")
    for schedule in schedules:
        rows = [row for (_, s), found in cells.items() if s == schedule for row in found.values()]
        ended = [row for row in rows if row["first_eos"] >= 0]
        when = sum(row["first_eos"] / row["steps"] for row in ended) / max(len(ended), 1)
        share = sum(r["eos_commits"] / r["max_new_tokens"] for r in rows) / len(rows)
        size = sum(row["visible"] for row in rows) / max(sum(row["reference"] for row in rows), 1)
        lines.append(f"| {schedule} | {when:.2f} | {share:.2f} | {size:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy by task and strategy.")
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("generate", help="decode and write the answers")
    make.add_argument("--model", default="ripple")
    make.add_argument("--out", type=Path, required=True)
    make.add_argument("--tasks", nargs="*")
    make.add_argument("--splits", nargs="+", default=["held-out"])
    make.add_argument("--items", type=int, default=500)
    make.add_argument("--ratios", nargs="+", type=int, default=[1, 2, 4])
    make.add_argument("--canvas", nargs="+", type=int, default=[1])
    make.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    make.add_argument("--eos", default="keep")
    make.add_argument("--rows", type=int, default=512)
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("--compile", action="store_true", help="twice as fast after some seconds")
    make.add_argument("--device")
    make.add_argument("--dtype")
    make.set_defaults(run=generate)
    judge = commands.add_parser("grade", help="grade answers and print the tables")
    judge.add_argument("answers", type=Path)
    judge.add_argument("--out", type=Path)
    judge.set_defaults(run=grade)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
