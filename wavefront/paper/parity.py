"""Parity: does the wave cost what block costs: FLOPs, time, tokens per second, updates?"""

from __future__ import annotations

import statistics
from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures import Bar
from wavefront.analysis.measures import cost
from wavefront.evaluation.run import TRACES
from wavefront.paper._claims import Claim, exact, within
from wavefront.paper._grid import BLOCK, WAVES, grid
from wavefront.paper._groups import as_numbers, booted, by_dataset, grouped
from wavefront.paper._lab import LLADA, LLADA15, Lab, Measured, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell, model, strategy
from wavefront.paper.studies import Findings
from wavefront.paper.studies._bench import EVALUATED
from wavefront.results.table import Interval, Table
from wavefront.tasks.benchmarks.bbh import SUBSETS
from wavefront.traces import trace_file

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, LLaDA-1.5, gsm8k, math, humaneval, bbh, a sandbox"
SMALL = Scale(items=6, rows=1, length=32, seeds=(0, 1, 2))
PAPER = Scale(
    models=(LLADA, LLADA15),
    tasks=("gsm8k", "math", "humaneval", *(f"bbh_{name}" for name in SUBSETS)),
    items=16,
    length=1024,
    seeds=(0, 1, 2),
    rows=1,
    style="paper",
)
SIZE = 8  # F of the bound on updates
MARGIN = 2.0  # %: the paper's "within ±2 %"
COLUMNS = ["model", "data set", "strategy", "FLOPs an item", "forwards", "updates an item",
           "F x T", "seconds an item", "spread, %", "places/s", "visible tokens/s",
           "time against block, %", "paper: seconds"]  # fmt: skip


def run(lab: Lab) -> Findings:
    """All T forwards of every strategy, several times over."""
    options = {"eos": "keep", "fixed_budget": True}
    made: list[Measured] = []
    for number, seed in enumerate(lab.scale.seeds, 1):
        # A seed is a repetition: at temperature 0 the answers are the same, the times are not.
        cells = grid(lab, EVALUATED, case=f"time={number}", seed=seed, options=options)
        made += lab.measure(cells, trace="basic" if number == 1 else "")
    groups = grouped(made, by_dataset)
    rows, claims, bars = [], [], []
    for key, group in groups.items():
        base = groups[(*key[:2], BLOCK)]
        found = _cost(lab, group.cells)
        ratio = None if key[2] == BLOCK else _ratio(base.cells, group.cells)
        found |= _times(group.cells)
        column = f"{key[1]} time"
        told = cell("parity", column, model=model(key[0])[:8], strategy=strategy(key[2]))
        shown = {**found, "FLOPs an item": f"{found['FLOPs an item']:.5g}"}
        rows.append([*key, *(shown[name] for name in COLUMNS[3:11]), ratio, told])
        seconds = found["seconds an item"]
        bars.append(
            Bar(key[1], key[2], *(s / 100 for s in (seconds.value, seconds.low, seconds.high)))
        )
        if key[2] in WAVES:
            claims += _claims(" ".join(key), found, _cost(lab, base.cells), ratio, group.cells)
    table = Table("Cost of an item", COLUMNS, rows, NOTE)
    drawn = figures.bars(bars, ylabel="seconds an item")
    return page(
        lab,
        title="Compute parity",
        text="Every strategy makes all T forwards and fills the whole canvas, one item at a time. "
        "FLOPs are counted from the architecture. Updates are the places that a strategy weighed, "
        "added up over steps. Times are means over items and repetitions, with 95 % intervals.",
        claims=claims,
        tables=[table],
        figures={"parity": (drawn, "Seconds an item")},
        numbers={"measured": as_numbers(table)},
        configuration={"eos": "keep", "fixed budget": True, "repetitions": len(lab.scale.seeds)},
    )


NOTE = (
    "Spread: the deviation of an item's times over repetitions, against their mean. Time against "
    "block: of the same items, in pairs. The paper's seconds are of its own hardware."
)


def _cost(lab: Lab, cells: tuple[Measured, ...]) -> dict[str, Any]:
    """From the traces of the first repetition, on the mean of an item."""
    found = []
    for one in cells:
        for file in sorted((one.run.folder / TRACES).glob("*.npz")):
            found.append(
                cost.measure(trace_file.load(file), lab.lm(one.cell.model).model, size=SIZE)
            )
    mean = statistics.fmean
    return {
        "FLOPs an item": mean(float(one.flops.total) for one in found if one.flops),
        "forwards": mean(one.forwards for one in found),
        "updates an item": mean(float(one.candidates.max()) for one in found),
        "F x T": mean(float(one.bound.max()) for one in found),
        "bounded": all(bool((one.candidates <= one.bound).all()) for one in found),
        "places": mean(one.places for one in found),
        "visible": mean(one.visible for one in found),
        "items": len(found),
    }


def _seconds(cells: tuple[Measured, ...]) -> dict[tuple[Any, ...], float]:
    """Of an item, by repetition and batch."""
    return {
        (one.cell.task, one.cell.seed, line["batch"]): line["seconds"] / line["items"]
        for one in cells
        for line in one.run.timings
    }


def _times(cells: tuple[Measured, ...]) -> dict[str, Any]:
    found = _seconds(cells)
    mean = booted(list(_by_item(cells).values()))
    assert mean is not None  # a run has batches
    by_batch: dict[tuple[Any, ...], list[float]] = {}
    for (task, _, batch), seconds in found.items():
        by_batch.setdefault((task, batch), []).append(seconds)
    spreads = [
        100 * statistics.stdev(s) / statistics.fmean(s) for s in by_batch.values() if len(s) > 1
    ]
    tokens = sum(one.cost["tokens"] for one in cells) / sum(len(one.right) for one in cells)
    places = statistics.fmean(len(one.run.answers) and _places(one) for one in cells)
    return {
        "seconds an item": mean,
        "spread, %": statistics.fmean(spreads) if spreads else None,
        "places/s": places / mean.value,
        "visible tokens/s": tokens / mean.value,
    }


def _places(one: Measured) -> int:
    return one.run.decides["options"]["max_new_tokens"]


def _by_item(cells: tuple[Measured, ...]) -> dict[tuple[Any, ...], float]:
    """The mean over repetitions: those of one item are no independent witnesses."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for (task, _, batch), seconds in _seconds(cells).items():
        found.setdefault((task, batch), []).append(seconds)
    return {name: statistics.fmean(several) for name, several in found.items()}


def _ratio(base: tuple[Measured, ...], other: tuple[Measured, ...]) -> Interval | None:
    """Time of the other against the base in %, in pairs."""
    one, two = _by_item(base), _by_item(other)
    return booted([100 * (two[name] / one[name] - 1) for name in one if name in two])


def _claims(
    where: str,
    found: dict[str, Any],
    base: dict[str, Any],
    ratio: Interval | None,
    cells: tuple[Measured, ...],
) -> list[Claim]:
    pairs = len(_by_item(cells))
    same = found["FLOPs an item"] == base["FLOPs an item"]
    return [
        exact("FLOPs are those of block", where, same, found["items"]),
        exact("Updates never exceed F x T", where, found["bounded"], found["items"]),
        Claim(
            f"Time is that of block within ±{MARGIN:g} %",
            where,
            ratio,
            pairs,
            None,
            within(ratio, pairs, MARGIN),
        ),
    ]
