"""Latency: does the wave take as long per token as left to right, and answer more correctly?

The canvas is filled, as in the paper: a position counts whether it is visible or not.
"""

from __future__ import annotations

from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, TradeoffPoint
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, TrialGroup, TrialResult, model_name
from wavefront.paper.claims import Claim, accuracy_claim, direction_claim, margin_claim
from wavefront.paper.experiment import LLADA, experiment_page
from wavefront.paper.published import dataset, published_cell, published_strategy
from wavefront.paper.tables import (
    BLOCK,
    WAVES,
    Groups,
    Key,
    accuracy_table,
    grid,
    group_by,
    pool,
    spec_with_case,
)
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import Interval, bounds
from wavefront.results.table import Table

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=12, rows=1, length=48)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=None, length=1024, rows=1, style="paper")
AUTOREGRESSIVE, DRAFT, REPETITIONS = "left_to_right", 4, 2
FILLED = {"eos": "keep"}  # no early stop
MATCHED = 10.0  # %: how near two latencies are that count as matched
COLUMNS = ["model", "task", "strategy", "ms per position", "against left to right, %",
           "paper: ms/token", "paper: accuracy"]  # fmt: skip


def run(runner: Runner) -> ResultsPage:
    """Decode one item at a time, and fill the whole canvas.

    Everything is decoded twice, and the second time counts: on a GPU, the first decode of every
    length captures its steps.
    """
    options = {"speculate": DRAFT, **FILLED}
    results: list[TrialResult] = []
    for seed in range(REPETITIONS):
        trials = grid(runner, (AUTOREGRESSIVE, *WAVES), seed=seed, options=FILLED)
        trials += grid(runner, (BLOCK,), case=f"speculate={DRAFT}", seed=seed, options=options)
        results = runner.measure(trials)
    groups = group_by(results, _key)
    rows: list[list[Any]] = []
    for key, group in groups.items():
        base = groups[(*key[:2], AUTOREGRESSIVE)]
        ratio = None if key[2] == AUTOREGRESSIVE else _percent_slower(base, group)
        published = [
            published_cell("latency", name, strategy=published_strategy(key[2]))
            if dataset(key[1]) == "GSM8K"
            else None
            for name in ("ms/token", "accuracy")
        ]
        rows.append([*key, _mean_latency(group), ratio, *published])
    table = Table("Time a token", COLUMNS, rows, NOTE)
    right = accuracy_table("Correct answers", groups, ["model", "task", "strategy"], base=_base)
    return experiment_page(
        runner,
        title="Time per token and correct answers",
        text="Items are decoded one at a time, and the canvas is filled, as in the paper. "
        f"SSD is block with a draft of {DRAFT}. Both readings of how the wave grows are evaluated. "
        "Everything is decoded twice, and the second time counts.",
        claims=_claims(groups),
        tables=[table, right],
        figures={"latency": (_picture(groups), "Correct answers against time per token")},
        numbers={"measured": table.records(), "right": right.records()},
    )


NOTE = (
    "Milliseconds per position of the canvas: the mean over items with its 95 % interval. Times "
    "from a busy machine are not reliable."
)


def _key(result: TrialResult) -> Key:
    """Return model, task, strategy; a draft is part of the strategy."""
    trial = result.trial
    return model_name(trial.model), trial.task, spec_with_case(trial)


def _latencies(group: TrialGroup) -> dict[tuple[str, str], float]:
    """Return milliseconds per position, by task and first item of the batch."""
    return {
        (one.trial.task, line["first"]): 1000 * line["seconds"] / (one.length * line["items"])
        for one in group.results
        for line in one.timings
    }


def _mean_latency(group: TrialGroup) -> Interval | None:
    values = list(_latencies(group).values())
    return bootstrap_mean(values) if values else None


def _percent_slower(base: TrialGroup, other: TrialGroup) -> Interval | None:
    """Return how much slower the other group is on the same items, in %."""
    one, two = _latencies(base), _latencies(other)
    ratios = [100 * (two[name] / one[name] - 1) for name in one if name in two]
    return bootstrap_mean(ratios) if ratios else None


def _base(groups: Groups, key: Key) -> Key | None:
    return None if key[2] == AUTOREGRESSIVE else (*key[:2], AUTOREGRESSIVE)


def _claims(groups: Groups) -> list[Claim]:
    base = pool(groups, AUTOREGRESSIVE)
    claims = []
    for spec in WAVES:
        wave = pool(groups, spec)
        claims.append(
            margin_claim(
                f"The wave's latency equals that of left to right within ±{MATCHED:g} %",
                spec,
                gap=_percent_slower(base, wave),
                items=len(_latencies(wave)),
                margin=MATCHED,
            )
        )
        text = "The wave has more correct answers than left to right"
        claims.append(accuracy_claim(text, spec, base=base, other=wave))
    where, drafted = (
        f"{BLOCK}, speculate={DRAFT}",
        pool(groups, f"{BLOCK[:-1]}, speculate={DRAFT})"),
    )
    claims.append(
        direction_claim(
            "SSD is faster than left to right (%)",
            where,
            gap=_percent_slower(base, drafted),
            items=len(_latencies(drafted)),
            claimed="lower",
        )
    )
    text = "SSD has fewer correct answers than left to right"
    claims.append(accuracy_claim(text, where, base=base, other=drafted, claimed="lower"))
    return claims


def _picture(groups: Groups) -> Figure:
    points, bars = [], []
    for spec in dict.fromkeys(key[-1] for key in groups):
        one = pool(groups, spec)
        cost = _mean_latency(one)
        if cost is None:
            continue
        if one.judged:
            mean, low, high = bounds(cost.scaled(0.01))
            bars.append(figures.Bar("", spec, mean, low, high))
        else:
            points.append(TradeoffPoint(spec, cost.value, *bounds(one.accuracy.scaled(0.01))))
    if bars:
        return figures.bars(bars, ylabel="ms per position")
    return figures.tradeoff(points, xlabel="ms per position (mean over items)")
