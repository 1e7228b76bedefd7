"""Parity: does the wave cost what block costs in FLOPs, time, tokens per second and updates?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from wavefront.analysis import figures
from wavefront.analysis.figures import Bar
from wavefront.analysis.measures import cost
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.run import TRACES
from wavefront.evaluation.trials import Runner, Scale, TrialResult
from wavefront.paper.claims import exact_claim, margin_claim
from wavefront.paper.experiment import LLADA, LLADA15, TABLE_TASKS, experiment_page
from wavefront.paper.published import dataset, published_cell, published_model, published_strategy
from wavefront.paper.tables import BLOCK, EVALUATED, WAVES, by_dataset, grid, group_by
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import Interval
from wavefront.results.table import Table
from wavefront.traces import trace_file

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, LLaDA-1.5, gsm8k, math, humaneval, bbh, a sandbox"
SMALL = Scale(items=6, rows=1, length=32, seeds=(0, 1, 2))
PAPER = Scale(
    models=(LLADA, LLADA15),
    tasks=TABLE_TASKS,
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


Cells = Sequence[TrialResult]
Item = tuple[Any, ...]  # task and batch


class Cost(NamedTuple):
    """Average cost per item, from the traces of the first repetition."""

    flops: float
    forwards: float
    updates: float
    bound: float  # F x T
    bounded: bool  # for every item
    items: int


class Times(NamedTuple):
    """How long an item takes, over items and repetitions."""

    seconds: Interval
    spread: float | None  # %
    places_per_second: float
    tokens_per_second: float


def run(runner: Runner) -> ResultsPage:
    """Run all T forward passes of every strategy, several times over."""
    options = {"eos": "keep", "fixed_budget": True}
    results: list[TrialResult] = []
    for number, seed in enumerate(runner.scale.seeds, 1):
        # A seed is a repetition: at temperature 0 the answers are the same, the times are not.
        trials = grid(runner, EVALUATED, case=f"time={number}", seed=seed, options=options)
        results += runner.measure(trials, trace="basic" if number == 1 else "")
    groups = group_by(results, by_dataset)
    rows, claims, bars = [], [], []
    for key, group in groups.items():
        base, some = groups[(*key[:2], BLOCK)].results, group.results
        found, times = _cost(runner, some), _times(some)
        slower = None if key[2] == BLOCK else _percent_slower(base, some)
        model, strategy = published_model(key[0])[:8], published_strategy(key[2])
        published = published_cell(
            "parity", f"{dataset(key[1])} time", model=model, strategy=strategy
        )
        measured = (f"{found.flops:.5g}", found.forwards, found.updates, found.bound)
        rows.append([*key, *measured, *times, slower, published])
        seconds = times.seconds.scaled(0.01)
        bars.append(Bar(key[1], key[2], seconds.value, seconds.low, seconds.high))
        if key[2] in WAVES:
            same = found.flops == _cost(runner, base).flops
            where, items = " ".join(key), found.items
            claims += [
                exact_claim(
                    "FLOPs equal those of block", where, holds=same, items=items, construction=True
                ),
                exact_claim(
                    "Updates never exceed F x T",
                    where,
                    holds=found.bounded,
                    items=items,
                    construction=True,
                ),
                margin_claim(
                    f"Time equals that of block within ±{MARGIN:g} %",
                    where,
                    gap=slower,
                    items=len(_seconds_by_item(some)),
                    margin=MARGIN,
                ),
            ]
    table = Table("Cost of an item", COLUMNS, rows, NOTE)
    return experiment_page(
        runner,
        title="FLOPs and time of the strategies",
        text="Every strategy makes all T forward passes and fills the canvas, one item at a time. "
        "FLOPs are counted from the architecture. Updates are the candidates of a strategy, summed "
        "over steps. Times are means over items and all repetitions but the first, which warms up, "
        "with 95 % intervals.",
        claims=claims,
        tables=[table],
        figures={"parity": (figures.bars(bars, ylabel="seconds an item"), "Seconds an item")},
        numbers={"measured": table.records()},
        configuration={"eos": "keep", "fixed budget": True, "repetitions": len(runner.scale.seeds)},
    )


NOTE = (
    "Spread: the deviation of an item's times over repetitions, relative to their mean. Time "
    "against block: on the same items, in pairs. The paper's seconds are from its own hardware."
)


def _cost(runner: Runner, results: Cells) -> Cost:
    """Return the cost from the traces of the first repetition; it is on record afterwards."""
    first = [one for one in results if one.trial.seed == results[0].trial.seed]
    return Cost(*_mean_of([
        Cost(*runner.keep(f"cost of {one.trial.folder}", lambda one=one: _traced(runner, one)))
        for one in first
    ]))  # fmt: skip


def _mean_of(costs: Sequence[Cost]) -> list[Any]:
    """Return the mean over items of several trials."""
    items = sum(one.items for one in costs)
    means = [
        sum(getattr(one, name) * one.items for one in costs) / items for name in Cost._fields[:4]
    ]
    return [*means, all(one.bounded for one in costs), items]


def _traced(runner: Runner, one: TrialResult) -> Cost:
    model = runner.lm(one.trial.model).model
    found = [
        cost.measure(trace_file.load(file), model, size=SIZE)
        for file in sorted((one.folder / TRACES).glob("*.npz"))
    ]
    mean = statistics.fmean
    return Cost(
        flops=mean(float(one.flops.total) for one in found if one.flops),
        forwards=mean(one.forwards for one in found),
        updates=mean(float(one.candidates.max()) for one in found),
        bound=mean(float(one.bound.max()) for one in found),
        bounded=all(bool((one.candidates <= one.bound).all()) for one in found),
        items=len(found),
    )


def _seconds(results: Cells) -> dict[Item, list[float]]:
    """Return the seconds of every repetition but the first, by item.

    The first one records traces, and on a GPU it captures the steps of every length.
    """
    seeds = {one.trial.seed for one in results}
    timed = [one for one in results if len(seeds) == 1 or one.trial.seed != min(seeds)]
    seconds = {
        (one.trial.task, one.trial.seed, line["batch"]): line["seconds"] / line["items"]
        for one in timed
        for line in one.timings
    }
    found: dict[Item, list[float]] = {}
    for (task, _, batch), value in seconds.items():
        found.setdefault((task, batch), []).append(value)
    return found


def _seconds_by_item(results: Cells) -> dict[Item, float]:
    """Return the mean over repetitions: repetitions of one item are not independent."""
    return {item: statistics.fmean(several) for item, several in _seconds(results).items()}


def _times(results: Cells) -> Times:
    seconds = bootstrap_mean(list(_seconds_by_item(results).values()))
    spreads = [
        100 * statistics.stdev(several) / statistics.fmean(several)
        for several in _seconds(results).values()
        if len(several) > 1
    ]
    tokens = sum(one.cost["tokens"] for one in results) / sum(len(one.texts) for one in results)
    places = statistics.fmean(one.length for one in results)
    return Times(
        seconds,
        statistics.fmean(spreads) if spreads else None,
        places / seconds.value,
        tokens / seconds.value,
    )


def _percent_slower(base: Cells, other: Cells) -> Interval | None:
    """Return how much longer the other takes on the same items, in %."""
    one, two = _seconds_by_item(base), _seconds_by_item(other)
    ratios = [100 * (two[item] / one[item] - 1) for item in one if item in two]
    return bootstrap_mean(ratios) if ratios else None
