"""Every strategy on one engine: accuracy in pairs against the paper's three, and its cost.

    python runs/strategy_table.py generate --out answers.jsonl.gz --compile --device cuda
    python runs/strategy_table.py grade answers.jsonl.gz --half report --out table.md

Groups: word problems (gsm), code, and a mix of BBH-like tasks whose answers fit 128 positions.
Paces: T = N, T = N/4, and `adaptive`, where the selector decides and T = N is only a limit.
`--canvas 1` fits the answers, `--canvas 4` is four times as long. Items are split into two halves
by their id: tune on `--half tune` and report on `--half report`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

from shared import (
    Row,
    Rows,
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
from wavefront.paper.tables import STRATEGIES
from wavefront.results.table import Table
from wavefront.tasks.base import Sample, digest

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
    "tide(cascade_rounds=0, horizon=32, selector=quota())",
    "tide(cascade_rounds=0, horizon=0, revisable_band=8, selector=quota())",
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
    "tide(cascade_rounds=4, horizon=0, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=0, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=32, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.98))",
    "tide(cascade_rounds=8, horizon=64, revisable_band=8, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=8, horizon=64, revisable_band=8, selector=threshold(tau=0.7))",
    "tide(size=16, radius=4, cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))",
)
ALL = "all groups"


COLUMNS = ["strategy", "T", "right %", "- standard [95 %]", "- block [95 %]", "- wavefront [95 %]",
           "forwards", "tokens/forward"]  # fmt: skip
Key = tuple[str, str]  # strategy and pace


def half_of(item: str) -> str:
    """Return which half an item belongs to."""
    return "tune" if digest(item)[1] % 2 else "report"


def generate(lm: wavefront.LM, options: argparse.Namespace) -> Iterator[Row]:
    """Yield one row per item, canvas, pace and strategy."""
    paces = [(ratio, f"N/{ratio}" if ratio > 1 else "N") for ratio in options.ratios]
    settings = [(spec, *pace) for pace in paces for spec in options.planned]
    settings += [(spec, 1, "adaptive") for spec in options.adaptive]
    for group in options.groups:
        names = GROUPS[group]
        drawn = -(-options.items // len(names))
        found: dict[str, tuple[str, Sample]] = {}
        for name in names:
            for item in draw_items(name, "held-out", drawn, seed=options.seed):
                if options.half in (None, half_of(item.id)):
                    found[item.id] = (name, item)
        items = [item for _, item in found.values()]
        fitted = max(fit_canvas(lm, [item]) for item in items)
        for times in options.canvas:
            for strategy, ratio, pace in settings:
                length = fitted * times
                setting = {"strategy": strategy, "max_new_tokens": length, "eos": options.eos}
                setting["steps"] = max(length // ratio, 1)
                for item, row in decode(lm, items, options.rows, **setting):
                    where = {"task": found[item.id][0], "split": "held-out", "drawn": drawn}
                    more = {"canvas": times, "strategy": strategy, "pace": pace}
                    yield {"group": group, **where, **more, **row}


def grade(header: Row, rows: list[Row], options: argparse.Namespace) -> str:
    """Return a table per group and canvas."""
    chosen = [row for row in rows if options.half in (None, half_of(row["id"]))]
    beside = f"adaptive beside T = {options.beside}"
    parts = [headline(header, f"half: {options.half or 'both'}; {beside}")]
    for (group, canvas), found in by_group(chosen).items():
        one = next(iter(found.values()))
        places = " or ".join(sorted({str(row["places"]) for row in one.values()}))
        parts.append(f"\n### {group}, {len(one)} items, N = {places} (canvas x{canvas})\n")
        lines = [table_row(found, key, options.beside) for key in found]
        parts.append(Table(group, COLUMNS, lines).markdown())
    return "\n".join(parts) + "\n"


def by_group(rows: list[Row]) -> dict[tuple[str, int], dict[Key, Rows]]:
    """Return [group, canvas][strategy, pace][item], all groups together last.

    Strategies that lack items which others have are left out.
    """
    cells = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        for group in (row["group"], ALL):
            cells[group, row["canvas"]][row["strategy"], row["pace"]][row["id"]] = row
    order = {group: number for number, group in enumerate((*GROUPS, ALL))}
    found: dict[tuple[str, int], dict[Key, Rows]] = {}
    for where, table in sorted(cells.items(), key=lambda pair: (order[pair[0][0]], pair[0][1])):
        count = max(map(len, table.values()))
        found[where] = {key: some for key, some in table.items() if len(some) == count}
    return found


def table_row(found: dict[Key, Rows], key: Key, beside: str) -> list[str]:
    """Return one row; adaptive strategies are compared with the bases at the pace `beside`."""
    rows, (strategy, pace) = found[key], key
    bases = [found.get((spec, beside if pace == "adaptive" else pace)) for spec in STRATEGIES]
    gaps = [signed_text(gap(rows, base)) if base and base is not rows else "" for base in bases]
    steps = sum(row["steps"] for row in rows.values()) / len(rows)
    tokens = sum(len(row["tokens"]) + 1 for row in rows.values()) / len(rows)
    shown = (f"{percent_correct(rows):.1f}", *gaps, f"{steps:.1f}", f"{tokens / steps:.2f}")
    return [strategy, pace, *shown]


def add_options(make: argparse.ArgumentParser, judge: argparse.ArgumentParser) -> None:
    """Add the options of this table."""
    make.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    make.add_argument("--items", type=int, default=512, help="of each group")
    make.add_argument("--canvas", nargs="+", type=int, default=[1])
    make.add_argument("--ratios", nargs="*", type=int, default=[1, 4])
    make.add_argument("--planned", nargs="*", default=list(PLANNED))
    make.add_argument("--adaptive", nargs="*", default=list(ADAPTIVE))
    make.add_argument("--eos", default="stop")
    for one in (make, judge):
        one.add_argument("--half", choices=["tune", "report"], help="only this half of the items")
    judge.add_argument("--beside", choices=["N", "N/2", "N/4"], default="N",
                       help="pace of the bases that adaptive rows are compared with")  # fmt: skip


if __name__ == "__main__":
    run_script("Compare every strategy with the others.", generate, grade, add_options)
