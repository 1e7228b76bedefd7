"""Priority: does the wave lead under entropy and margin as well as under confidence?"""

from __future__ import annotations

from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.experiment import DREAM, TABLE_TASKS, experiment_page
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

NEEDS = "nothing; --paper: Dream-7B, gsm8k, math, humaneval, bbh, a sandbox"
SMALL = Scale(items=16, length=48)
PAPER = Scale(
    models=(DREAM,),
    tasks=TABLE_TASKS,
    items=None,
    length=1024,
    style="paper",
)
COMPARED = EVALUATED
PRIORITIES = ("confidence", "entropy", "margin")


def run(runner: Runner) -> ResultsPage:
    """Run every strategy under every priority."""
    trials = [
        one for priority in PRIORITIES
        for one in grid(runner, case=priority, options={"priority": priority})
    ]  # fmt: skip
    groups = group_by(runner.measure(trials), by_case)
    claims = []
    for priority in PRIORITIES:
        for base in (BLOCK, "standard"):
            text = f"Under {priority} the wave is above {published_strategy(base)}"
            claims += wave_claims(groups, text, priority, base)
    columns = ["model", "data set", "priority", "strategy"]
    table = accuracy_table("Correct answers by priority", groups, columns, paper=published)
    return experiment_page(
        runner,
        title="Correct answers by priority: confidence, entropy or margin",
        text=f"The paper prints confidence in its table 1. {BOTH_READINGS}",
        claims=claims,
        tables=[table],
        figures={"priority": (accuracy_bars(groups, _place, paper=published), "By priority")},
        numbers={"measured": table.records()},
    )


def published(key: Key) -> str | None:
    """Return the paper's accuracy, on Dream."""
    if key[2] == "confidence":
        return published_cell(
            "main", dataset(key[1]), model="Dream", strategy=published_strategy(key[3])
        )
    return published_cell(
        "priority",
        dataset(key[1]),
        priority=key[2].capitalize(),
        strategy=published_strategy(key[3]),
    )


def _place(key: Key) -> str:
    return f"{key[2]}\n{key[1]}"
