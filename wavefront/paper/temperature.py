"""Temperature: does the wave keep its lead when tokens are sampled?"""

from __future__ import annotations

import statistics
from typing import Any

from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, TrialGroup
from wavefront.paper.experiment import LLADA, experiment_page
from wavefront.paper.published import dataset, published_cell, published_strategy
from wavefront.paper.tables import (
    BLOCK,
    BOTH_READINGS,
    EVALUATED,
    Key,
    accuracy_bars,
    accuracy_table,
    by_case,
    grid,
    group_by,
    wave_claims,
)
from wavefront.results.table import Table

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=8, length=48, seeds=(0, 1, 2))
PAPER = Scale(
    models=(LLADA,), tasks=("gsm8k",), items=None, length=1024, seeds=(0, 1, 2), style="paper"
)
COMPARED = EVALUATED
TEMPERATURES = (0.0, 0.3, 0.6, 0.8)


def run(runner: Runner) -> ResultsPage:
    """Run four temperatures with three seeds each; at 0 one seed is enough."""
    trials = [
        one for heat in TEMPERATURES
        for seed in (runner.scale.seeds if heat else runner.scale.seeds[:1])
        for one in grid(runner, case=f"temperature={heat:g}", seed=seed,
                        options={"temperature": heat})
    ]  # fmt: skip
    groups = group_by(runner.measure(trials), by_case)
    claims = []
    for case in dict.fromkeys(key[2] for key in groups):
        claims += wave_claims(groups, f"The wave is above block at {case}", case, BLOCK)
    columns = ["model", "data set", "temperature", "strategy"]
    table = accuracy_table(
        "Correct answers by temperature, all seeds", groups, columns, paper=published
    )
    spread = _spread(groups)
    return experiment_page(
        runner,
        title="Correct answers by temperature",
        text=f"Seeds are {', '.join(map(str, runner.scale.seeds))}; at temperature 0 they make no "
        f"difference, and one is run. {BOTH_READINGS}",
        claims=claims,
        tables=[table, spread],
        figures={"temperature": (accuracy_bars(groups, _heat, paper=published), "By temperature")},
        numbers={"measured": table.records(), "seeds": spread.records()},
    )


def published(key: Key) -> str | None:
    """Return the paper's mean and deviation."""
    if dataset(key[1]) != "GSM8K":
        return None
    return published_cell("temperature", _heat(key), strategy=published_strategy(key[3]))


def _heat(key: Key) -> str:
    return key[2].removeprefix("temperature=")


def _spread(groups: dict[Key, TrialGroup]) -> Table:
    """Return mean and deviation over seeds, as the paper prints them."""
    rows: list[list[Any]] = []
    for key, group in groups.items():
        seeds: dict[int, list[float]] = {}
        for (_, _, seed, _), score in group.scores.items():
            seeds.setdefault(seed, []).append(score)
        means = [statistics.fmean(scores) for scores in seeds.values()]
        spread = statistics.stdev(means) if len(means) > 1 else 0.0
        rows.append([*key, statistics.fmean(means), spread, len(means), published(key)])
    columns = [
        "model",
        "data set",
        "temperature",
        "strategy",
        "mean, nats" if any(group.judged for group in groups.values()) else "mean, %",
        "deviation",
        "seeds",
        "paper",
    ]
    note = "The sample deviation over seeds. It does not cover other items."
    return Table("Mean and deviation over seeds", columns, rows, note)
