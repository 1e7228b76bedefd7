"""What caches cost in accuracy: every cache and refresh interval beside the same decode without.

    python runs/cache_table.py generate --out caches.jsonl.gz --device cuda --rows 512 --items 500
    python runs/cache_table.py grade caches.jsonl.gz --out caches.md --json caches.json

Generating and grading are apart, so that model-written code runs where you want. Groups: word
problems (gsm) and code, held-out items, T = N. Accuracy is compared in pairs with the same strategy
without a cache; agreement is the share of the visible tokens that are the same at the same place.
Cost is in forwards over the whole canvas: places computed over places of the canvas. `--json`
writes what `wavefront bench --accuracy` reads, `--figures DIR` draws accuracy against cost.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from shared import (
    batches,
    bootstrap,
    common_options,
    fit,
    header,
    judge,
    load_lm,
    read_answers,
    samples,
)

import wavefront
from wavefront.core import spec
from wavefront.core.cache_policy import Cache
from wavefront.engine.session import begin
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import visible

STRATEGIES = ("block(size=32)", "wavefront(size=8, radius=2)")
CACHES = ("prefix", "dual", "wave", "wave(size=32, near=4)", "wave(size=16, near=0)")
REFRESH = (1, 2, 4, 8, 16, 32, 64)
NONE = ""  # the cache of a row without one


class Setting(NamedTuple):
    """One row of the table."""

    strategy: str
    cache: str  # with its refresh interval; "" for none
    kind: str  # without it
    refresh: int


def settings(asked: argparse.Namespace) -> list[Setting]:
    """Without a cache first; then every cache at every interval."""
    found = []
    for strategy in asked.strategies:
        found.append(Setting(strategy, NONE, NONE, 1))
        for kind in asked.caches:
            made = spec.resolve(kind, "caches")
            assert isinstance(made, Cache)
            for refresh in asked.refresh:
                cache = repr(replace(made, refresh=refresh))  # pyright: ignore[reportArgumentType]
                found.append(Setting(strategy, cache, kind, refresh))
    return found


def generate(asked: argparse.Namespace) -> None:
    lm = load_lm(asked)
    with gzip.open(asked.out, "wt") as file:
        file.write(json.dumps(header(lm, asked)) + "\n")
        for group in asked.groups:
            items = samples(group, asked.items, "held-out", asked.seed)
            places = asked.places or fit(lm, group, items, asked)
            for setting in settings(asked):
                began = time.perf_counter()
                for line in decode(lm, group, items, places, setting, asked):
                    file.write(json.dumps(line) + "\n")
                file.flush()
                spent = time.perf_counter() - began
                print(f"{group} {setting.strategy} {setting.cache}: {spent:.1f} s", flush=True)


def decode(
    lm: wavefront.LM,
    group: str,
    items: list[Sample],
    places: int,
    setting: Setting,
    asked: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """One line an item."""
    options: dict[str, Any] = {
        "strategy": setting.strategy,
        "cache": setting.cache or None,
        "max_new_tokens": places,
        "eos": asked.eos,
    }
    for some, prompts in batches(lm, items, asked.rows):
        made = begin(lm.model, prompts, options, stop_ids=lm.stop_ids, id_of=lm._id_of).drain()
        steps = made.steps()
        # A batch goes on until its last row is done; a row is charged for its own share of that.
        whole = made.token_forwards / made.canvas.tokens.numel()
        for item, answer, own in zip(some, made.answers(), steps, strict=True):
            shown = visible(answer, lm.stop_ids)
            yield {
                "group": group,
                "id": item.id,
                **setting._asdict(),
                "places": places,
                "eos": asked.eos,
                "text": lm.tokenizer.decode(shown),
                "tokens": shown,
                "steps": own,
                "cost": whole * own / max(steps),
            }


# --- grading ----------------------------------------------------------------------------------


def grade(asked: argparse.Namespace) -> None:
    first, rows = read_answers(asked.answers)
    known: dict[str, tuple[str, Sample]] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        found = samples(group, first["items"], "held-out", first["seed"])
        known |= {item.id: (group, item) for item in found}
    judge(rows, known)
    groups = {
        group: table([row for row in rows if row["group"] == group])
        for group in dict.fromkeys(row["group"] for row in rows)
    }
    text = render(first, groups)
    print(text)
    if asked.out:
        asked.out.write_text(text)
    if asked.json:
        made = {"header": first, "entries": table(rows), "groups": groups}
        asked.json.write_text(json.dumps(made, indent=1) + "\n")
    if asked.figures:
        draw(groups, asked.figures)


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An entry a setting: right answers with their interval, and the rest in pairs."""
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        cells[row["strategy"], row["cache"]][row["id"]] = row
    return [entry(found, cells[strategy, NONE]) for (strategy, _), found in cells.items()]


def entry(found: dict[str, dict[str, Any]], base: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One setting beside the same strategy without a cache."""
    one = next(iter(found.values()))
    right = [float(row["correct"]) for row in found.values()]
    gaps = [float(row["correct"]) - base[key]["correct"] for key, row in found.items()]
    pairs = [agreement(row["tokens"], base[key]["tokens"]) for key, row in found.items()]
    low, high = bootstrap(right)
    less, more = bootstrap(gaps)
    return {
        "strategy": one["strategy"],
        "cache": one["cache"] or None,
        "kind": one["kind"] or None,
        "refresh": one["refresh"],
        "places": one["places"],
        "eos": one["eos"],
        "items": len(found),
        "right": mean(right),
        "low": low,
        "high": high,
        "difference": mean(gaps),
        "difference_low": less,
        "difference_high": more,
        "agreement": mean(pairs),
        "same_text": mean([float(row["text"] == base[k]["text"]) for k, row in found.items()]),
        "cost": mean([row["cost"] for row in found.values()]),
        "base_cost": mean([row["cost"] for row in base.values()]),
    }


def agreement(one: list[int], two: list[int]) -> float:
    """The share of equal tokens at equal places; what only one of them has is not equal."""
    longest = max(len(one), len(two))
    same = sum(a == b for a, b in zip(one, two, strict=False))
    return same / longest if longest else 1.0


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def render(first: dict[str, Any], groups: dict[str, list[dict[str, Any]]]) -> str:
    """A table a group and strategy."""
    parts = [
        f"`{first['command']}`: {first['device']}, torch {first['torch']}, {first['dtype']}, "
        f"seed {first['seed']}"
    ]
    for group, entries in groups.items():
        for strategy in dict.fromkeys(one["strategy"] for one in entries):
            some = [one for one in entries if one["strategy"] == strategy]
            head = some[0]
            parts.append(
                f"\n### {group}, {head['items']} items, N = T = {head['places']}, "
                f"eos {head['eos']}, {strategy}\n"
            )
            parts.append(
                "| cache | refresh | right % [95 %] | - no cache [95 %] | same tokens % "
                "| same text % | full forwards | of no cache |\n|---|---|---|---|---|---|---|---|"
            )
            parts += [line(one) for one in some]
    return "\n".join(parts) + "\n"


def line(one: dict[str, Any]) -> str:
    percent = {
        key: 100 * one[key]
        for key in ("right", "low", "high", "difference", "difference_low", "difference_high")
    }
    gap = "{difference:+.1f} [{difference_low:+.1f}, {difference_high:+.1f}]".format(**percent)
    return (
        f"| {one['kind'] or 'none'} | {one['refresh'] if one['kind'] else ''} "
        f"| {percent['right']:.1f} [{percent['low']:.1f}, {percent['high']:.1f}] "
        f"| {gap if one['kind'] else ''} | {100 * one['agreement']:.1f} "
        f"| {100 * one['same_text']:.1f} | {one['cost']:.1f} "
        f"| {one['cost'] / one['base_cost']:.2f} |"
    )


def draw(groups: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Right answers against cost, a figure a strategy."""
    from wavefront.analysis import figures

    strategies = dict.fromkeys(one["strategy"] for entries in groups.values() for one in entries)
    for strategy in strategies:
        panels: dict[str, dict[str, list[figures.Trade]]] = {}
        for group, entries in groups.items():
            lines = panels.setdefault(group, {})
            for one in entries:
                if one["strategy"] == strategy:
                    point = figures.Trade(one["cost"], one["right"], one["low"], one["high"])
                    lines.setdefault(one["kind"] or "no cache", []).append(point)
        name = f"caches-{strategy.partition('(')[0]}"
        print(*figures.save(figures.trade(panels), folder, name)[:1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Caches beside no cache.")
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("generate", help="decode and write the answers")
    common_options(make)
    make.add_argument("--groups", nargs="+", choices=["gsm", "code"], default=["gsm", "code"])
    make.add_argument("--items", type=int, default=500, help="of each group")
    make.add_argument("--rows", type=int, default=512, help="decoded together")
    make.add_argument("--places", type=int, help="of the canvas; by default what answers need")
    make.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    make.add_argument("--caches", nargs="+", default=list(CACHES))
    make.add_argument("--refresh", nargs="+", type=int, default=list(REFRESH))
    make.add_argument("--eos", default="stop")
    make.set_defaults(run=generate)
    grading = commands.add_parser("grade", help="grade answers, print tables, draw")
    grading.add_argument("answers", type=Path)
    grading.add_argument("--out", type=Path)
    grading.add_argument("--json", type=Path, help="for `wavefront bench --accuracy`")
    grading.add_argument("--figures", type=Path)
    grading.set_defaults(run=grade)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
