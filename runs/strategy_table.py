"""Every strategy on one engine: accuracy in pairs against the paper's three, and what it costs.

    python runs/strategy_table.py generate --out answers.jsonl.gz --compile --device cuda
    python runs/strategy_table.py grade answers.jsonl.gz --half report --out table.md

Groups: word problems (gsm), code, and a mix of BBH-like tasks whose answers fit 128 places. Paces:
T = N, T = N/4, and `adaptive`, where the take decides and T = N is only a cap. Canvases:
`--canvas 1` fits the answers, `--canvas 4` is four times as long. Items are split in two halves by
their id: what is tuned is tuned on `--half tune` and reported on `--half report`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from shared import bootstrap, common_options, fit, header, judge, load_lm, read_answers, samples

from wavefront.engine.session import begin
from wavefront.tasks.base import Sample, digest
from wavefront.text.tokenizer import prompt_ids, visible

MIX = (
    "boolean_expressions",
    "navigate",
    "object_counting",
    "logical_deduction_seven_objects",
    "reasoning_about_colored_objects",
    "hyperbaton",
    "tracking_shuffled_objects_seven_objects",
    "web_of_lies",
)
GROUPS = {"gsm": ("gsm",), "code": ("code",), "bbh": MIX}
PLANNED = (
    "standard",
    "block(size=8)",
    "wavefront(size=8, radius=2)",
    "wavefront(size=8, radius=2, grow='accumulate')",
    "left_to_right",
    "adablock(size=16, selector=quota())",
    "dsb(size=32, selector=quota())",
    "dcd(masks=16, selector=quota())",
    "rcr(size=32)",
    "tbd(size=32)",
    "tide(horizon=32)",
    "tide(patience=6)",
    "tide(density_sigma=4.0)",
    "tide(revisable_band=8)",
)
ADAPTIVE = (
    "standard(selector=threshold(tau=0.9))",
    "block(size=8, selector=threshold(tau=0.9))",
    "block(size=32, selector=threshold(tau=0.9))",
    "block(size=32, selector=factor())",
    "block(size=32, selector=entropy_bound(gamma=0.1))",
    "block(size=32, selector=local_leap())",
    "wavefront(size=8, radius=2, selector=threshold(tau=0.9))",
    "wavefront(size=16, radius=8, selector=threshold(tau=0.9))",
    "adablock(size=16)",
    "dsb(size=32)",
    "dcd(masks=16)",
    "tbd(size=32, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=4, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=32, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.98))",
    "tide(cascade_rounds=8, horizon=64, revisable_band=8, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=64, revisable_band=8, selector=threshold(tau=0.7))",
    "tide(size=16, radius=4, cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))",
)
ALL = "all groups"
BASES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")


class Setting(NamedTuple):
    """One row of the table."""

    strategy: str
    pace: str  # "N", "N/4" or "adaptive"


def settings(asked: argparse.Namespace) -> list[Setting]:
    planned = [Setting(s, f"N/{r}" if r > 1 else "N") for r in asked.ratios for s in asked.planned]
    return planned + [Setting(s, "adaptive") for s in asked.adaptive]


def items_of(group: str, count: int, seed: int) -> list[tuple[str, Sample]]:
    names = GROUPS[group]
    share = -(-count // len(names))
    return [(name, item) for name in names for item in samples(name, share, "held-out", seed)]


def half_of(item: str) -> str:
    return "tune" if digest(item)[1] % 2 else "report"


def generate(asked: argparse.Namespace) -> None:
    lm = load_lm(asked)
    with gzip.open(asked.out, "wt") as file:
        file.write(json.dumps(header(lm, asked)) + "\n")
        for group in asked.groups:
            items = items_of(group, asked.items, asked.seed)
            if asked.half:
                items = [pair for pair in items if half_of(pair[1].id) == asked.half]
            for times in asked.canvas:
                for setting in settings(asked):
                    for line in decode(lm, group, items, times, setting, asked):
                        file.write(json.dumps(line) + "\n")
                    file.flush()


def decode(lm, group: str, items, times: int, setting: Setting, asked):
    """One line an item."""
    longest = max(fit(lm, name, [item], asked) for name, item in items)
    places = longest * times
    ratio = 4 if setting.pace == "N/4" else 2 if setting.pace == "N/2" else 1
    options: dict[str, Any] = {
        "strategy": setting.strategy,
        "max_new_tokens": places,
        "steps": max(places // ratio, 1),
        "eos": asked.eos,
    }
    prompts = [prompt_ids(lm.tokenizer, item.prompt) for _, item in items]
    began = time.perf_counter()
    decoding = begin(lm.model, prompts, options, stop_ids=lm.stop_ids, id_of=lm._id_of).drain()
    answers = [visible(row, lm.stop_ids) for row in decoding.answers()]
    seconds = time.perf_counter() - began
    print(f"{group} x{times} {setting.pace} {setting.strategy}: {seconds:.1f} s", flush=True)
    for (name, item), answer, steps in zip(items, answers, decoding.steps(), strict=True):
        yield {
            "group": group,
            "task": name,
            "id": item.id,
            "canvas": times,
            **setting._asdict(),
            "places": places,
            "text": lm.tokenizer.decode(answer),
            "visible": len(answer),
            "steps": steps,
        }


def grade(asked: argparse.Namespace) -> None:
    """Answers of several files are of one table if they were made of the same items."""
    read = [read_answers(path) for path in asked.answers]
    first = read[0][0]
    if any((one["items"], one["seed"]) != (first["items"], first["seed"]) for one, _ in read):
        raise SystemExit("These files answer different items: --items or --seed differ.")
    rows = [row for _, some in read for row in some]
    if asked.half:
        rows = [row for row in rows if half_of(row["id"]) == asked.half]
    known = {
        item.id: (name, item)
        for group in dict.fromkeys(row["group"] for row in rows)
        for name, item in items_of(group, first["items"], first["seed"])
    }
    judge(rows, known)
    text = render(first, rows, asked.half, asked.beside)
    print(text)
    if asked.out:
        asked.out.write_text(text)


def gathered(rows: list[dict]) -> dict[tuple[str, int], dict[tuple[str, str], dict[str, dict]]]:
    """[group, canvas][strategy, pace][item]; last, all groups as one, where all were asked."""
    cells = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        for group in (row["group"], ALL):
            cells[group, row["canvas"]][row["strategy"], row["pace"]][row["id"]] = row
    order = {group: number for number, group in enumerate((*GROUPS, ALL))}
    found = dict(sorted(cells.items(), key=lambda pair: (order[pair[0][0]], pair[0][1])))
    return {where: complete(table) for where, table in found.items()}


def complete(table: dict[tuple[str, str], dict]) -> dict[tuple[str, str], dict]:
    """Without the rows that lack items which others have."""
    count = max(map(len, table.values()))
    return {key: row for key, row in table.items() if len(row) == count}


def render(header: dict, rows: list[dict], half: str | None, beside: str) -> str:
    """A table a group and canvas; adaptive rows stand beside the bases at the pace `beside`."""
    parts = [
        f"`{header['command']}`: {header['device']}, torch {header['torch']}, {header['dtype']}, "
        f"seed {header['seed']}, half: {half or 'both'}; adaptive beside T = {beside}"
    ]
    for (group, canvas), found in gathered(rows).items():
        one = next(iter(found.values()))
        places = " or ".join(sorted({str(row["places"]) for row in one.values()}))
        parts.append(f"\n### {group}, {len(one)} items, N = {places} (canvas x{canvas})\n")
        parts.append(
            "| strategy | T | right % | - standard [95 %] | - block [95 %] | - wavefront [95 %] "
            "| forwards | tokens/forward |\n|---|---|---|---|---|---|---|---|"
        )
        parts += [line(found, strategy, pace, beside) for strategy, pace in found]
    return "\n".join(parts) + "\n"


def line(found: dict, strategy: str, pace: str, beside: str) -> str:
    """One row of a table."""
    row = found[strategy, pace]
    base = [found.get((name, beside if pace == "adaptive" else pace)) for name in BASES]
    right = 100 * sum(one["correct"] for one in row.values()) / len(row)
    steps = sum(one["steps"] for one in row.values()) / len(row)
    tokens = sum(one["visible"] + 1 for one in row.values()) / len(row)
    pairs = " | ".join(against(row, other) for other in base)
    return f"| {strategy} | {pace} | {right:.1f} | {pairs} | {steps:.1f} | {tokens / steps:.2f} |"


def against(row: dict[str, dict], base: dict[str, dict] | None) -> str:
    """The difference in pairs, with its interval."""
    if not base or base is row:
        return ""
    gaps = [100.0 * (one["correct"] - base[key]["correct"]) for key, one in row.items()]
    low, high = bootstrap(gaps)
    return f"{sum(gaps) / len(gaps):+.1f} [{low:+.1f}, {high:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="Every strategy beside the others.")
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("generate", help="decode and write the answers")
    common_options(make)
    make.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    make.add_argument("--items", type=int, default=512, help="of each group")
    make.add_argument("--half", choices=["tune", "report"], help="decode only this half")
    make.add_argument("--canvas", nargs="+", type=int, default=[1])
    make.add_argument("--ratios", nargs="*", type=int, default=[1, 4])
    make.add_argument("--planned", nargs="*", default=list(PLANNED))
    make.add_argument("--adaptive", nargs="*", default=list(ADAPTIVE))
    make.add_argument("--eos", default="stop")
    make.set_defaults(run=generate)
    grading = commands.add_parser("grade", help="grade answers and print the tables")
    grading.add_argument("answers", type=Path, nargs="+")
    grading.add_argument("--half", choices=["tune", "report"])
    grading.add_argument("--out", type=Path)
    help = "the pace of the bases that adaptive rows are compared with"
    grading.add_argument("--beside", choices=["N", "N/2", "N/4"], default="N", help=help)
    grading.set_defaults(run=grade)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
