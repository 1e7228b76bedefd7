"""The accuracy cost of caches: every cache and refresh interval against decoding without a cache.

    python runs/cache_table.py generate --out caches.jsonl.gz --device cuda --rows 512 --items 500
    python runs/cache_table.py grade caches.jsonl.gz --out caches.md --json caches.json

Groups: word problems (gsm) and code, held-out items, T = N. Accuracy is compared in pairs with the
same strategy without a cache; agreement is the share of visible tokens that are the same at the
same position. Cost is in forward passes over the whole canvas. `--json` writes what
`wavefront bench --accuracy` reads, `--figures DIR` draws accuracy against cost.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from shared import Row, Rows, decode, draw_items, fit_canvas, gap, headline, run_script, signed_text

import wavefront
from wavefront.core import spec
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import Interval
from wavefront.results.table import Table

STRATEGIES = ("block(size=32)", "wavefront(size=8, radius=2)")
CACHES = ("prefix", "dual", "wave", "wave(size=32, near=4)", "wave(size=16, near=0)")
REFRESH = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = ["cache", "refresh", "right % [95 %]", "- no cache [95 %]", "same tokens %",
           "same text %", "full forwards", "of no cache"]  # fmt: skip


def settings(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield every setting: without a cache first, then every cache at every interval."""
    for strategy in options.strategies:
        yield {"strategy": strategy, "cache": "", "kind": "", "refresh": 1}
        for kind in options.caches:
            for refresh in options.refresh:
                made: Any = spec.resolve(kind, "caches")
                cache = repr(replace(made, refresh=refresh))
                yield {"strategy": strategy, "cache": cache, "kind": kind, "refresh": refresh}


def generate(lm: wavefront.LM, options: argparse.Namespace) -> Iterator[Row]:
    """Yield one row per item and setting."""
    for group in options.groups:
        items = draw_items(group, "held-out", options.items, seed=options.seed)
        length = options.places or fit_canvas(lm, items)
        where = {"task": group, "split": "held-out", "drawn": options.items}
        for setting in settings(options):
            decoding = {"strategy": setting["strategy"], "cache": setting["cache"] or None}
            decoding |= {"max_new_tokens": length, "eos": options.eos}
            for _, row in decode(lm, items, options.rows, **decoding):
                yield {**where, **setting, **row}


def grade(header: Row, rows: list[Row], options: argparse.Namespace) -> str:
    """Return a table per group and strategy; write JSON and figures on request."""
    names = dict.fromkeys(row["task"] for row in rows)
    groups = {name: entries([row for row in rows if row["task"] == name]) for name in names}
    if options.json:
        found = {"header": header, "entries": entries(rows), "groups": groups}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.figures:
        draw(groups, options.figures)
    parts = [headline(header)]
    for name, found in groups.items():
        for strategy in dict.fromkeys(one["strategy"] for one in found):
            some = [one for one in found if one["strategy"] == strategy]
            first = some[0]
            parts.append(
                f"\n### {name}, {first['items']} items, N = T = {first['places']}, "
                f"eos {first['eos']}, {strategy}\n"
            )
            parts.append(Table(name, COLUMNS, [table_row(one) for one in some]).markdown())
    return "\n".join(parts) + "\n"


def entries(rows: list[Row]) -> list[dict[str, Any]]:
    """Return an entry per setting."""
    cells: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        cells[row["strategy"], row["cache"]][row["id"]] = row
    return [entry(found, cells[strategy, ""]) for (strategy, _), found in cells.items()]


def entry(found: Rows, base: Rows) -> dict[str, Any]:
    """Return one setting, compared with the same strategy without a cache."""
    one = next(iter(found.values()))
    share = bootstrap_mean([float(row["correct"]) for row in found.values()])
    less = gap(found, base).scaled(0.01)
    return {
        "strategy": one["strategy"],
        "cache": one["cache"] or None,
        "kind": one["kind"] or None,
        "refresh": one["refresh"],
        "places": one["places"],
        "eos": one["eos"],
        "items": len(found),
        "right": share.value,
        "low": share.low,
        "high": share.high,
        "difference": less.value,
        "difference_low": less.low,
        "difference_high": less.high,
        "agreement": fmean(agreement(row["tokens"], base[k]["tokens"]) for k, row in found.items()),
        "same_text": fmean(row["text"] == base[k]["text"] for k, row in found.items()),
        "cost": fmean(row["cost"] for row in found.values()),
        "base_cost": fmean(row["cost"] for row in base.values()),
    }


def agreement(one: list[int], two: list[int]) -> float:
    """Return the share of equal tokens at equal positions, of the longer answer."""
    longest = max(len(one), len(two))
    same = sum(a == b for a, b in zip(one, two, strict=False))
    return same / longest if longest else 1.0


def table_row(one: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    share = [100 * one[name] for name in ("right", "low", "high")]
    less = Interval(*(one[f"difference{end}"] for end in ("", "_low", "_high"))).scaled(100)
    return [
        one["kind"] or "none",
        str(one["refresh"]) if one["kind"] else "",
        "{:.1f} [{:.1f}, {:.1f}]".format(*share),
        signed_text(less) if one["kind"] else "",
        f"{100 * one['agreement']:.1f}",
        f"{100 * one['same_text']:.1f}",
        f"{one['cost']:.1f}",
        f"{one['cost'] / one['base_cost']:.2f}",
    ]


def draw(groups: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Draw accuracy against cost, one figure per strategy."""
    from wavefront.analysis import figures

    for strategy in dict.fromkeys(one["strategy"] for some in groups.values() for one in some):
        panels: dict[str, dict[str, list[figures.Trade]]] = {}
        for group, some in groups.items():
            lines = panels.setdefault(group, {})
            for one in some:
                if one["strategy"] == strategy:
                    point = figures.Trade(one["cost"], one["right"], one["low"], one["high"])
                    lines.setdefault(one["kind"] or "no cache", []).append(point)
        name = f"caches-{strategy.partition('(')[0]}"
        print(*figures.save(figures.trade(panels), folder, name)[:1])


def add_options(make: argparse.ArgumentParser, judge: argparse.ArgumentParser) -> None:
    """Add the options of this table."""
    make.add_argument("--groups", nargs="+", choices=["gsm", "code"], default=["gsm", "code"])
    make.add_argument("--items", type=int, default=500, help="of each group")
    make.add_argument("--places", type=int, help="of the canvas; by default what answers need")
    make.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    make.add_argument("--caches", nargs="+", default=list(CACHES))
    make.add_argument("--refresh", nargs="+", type=int, default=list(REFRESH))
    make.add_argument("--eos", default="stop")
    judge.add_argument("--json", type=Path, help="for `wavefront bench --accuracy`")
    judge.add_argument("--figures", type=Path)


if __name__ == "__main__":
    run_script("Compare caches with decoding without a cache.", generate, grade, add_options)
