"""Temperature: does the wave keep its lead when tokens are drawn?"""

from __future__ import annotations

import statistics
from typing import Any

from wavefront.paper._grid import BLOCK, BOTH, against, bars, grid
from wavefront.paper._groups import Group, Key, accuracy_table, as_numbers, by_case, grouped
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell, strategy
from wavefront.paper.studies import Findings
from wavefront.paper.studies._bench import EVALUATED
from wavefront.results.table import Table

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=8, length=48, seeds=(0, 1, 2))
PAPER = Scale(
    models=(LLADA,), tasks=("gsm8k",), items=None, length=1024, seeds=(0, 1, 2), style="paper"
)
TEMPERATURES = (0.0, 0.3, 0.6, 0.8)


def run(lab: Lab) -> Findings:
    """Four temperatures with three seeds each; at 0 all seeds are one."""
    cells = [
        one for heat in TEMPERATURES
        for seed in (lab.scale.seeds if heat else lab.scale.seeds[:1])
        for one in grid(lab, EVALUATED, case=f"temperature={heat:g}", seed=seed,
                        options={"temperature": heat})
    ]  # fmt: skip
    groups = grouped(lab.measure(cells), by_case)
    claims = []
    for case in dict.fromkeys(key[2] for key in groups):
        claims += against(groups, f"The wave is above block at {case}", case, BLOCK)
    columns = ["model", "data set", "temperature", "strategy"]
    table = accuracy_table(
        "Right answers by temperature, all seeds", groups, columns, paper=printed
    )
    return page(
        lab,
        title="Temperature and seeds",
        text=f"Seeds are {', '.join(map(str, lab.scale.seeds))}; at temperature 0 they make no "
        f"difference, and one is run. {BOTH}",
        claims=claims,
        tables=[table, _spread(groups)],
        figures={"temperature": (bars(groups, _heat, paper=printed), "By temperature")},
        numbers={"measured": as_numbers(table), "seeds": as_numbers(_spread(groups))},
    )


def printed(key: Key) -> str | None:
    """The paper's mean and deviation."""
    if key[1] != "GSM8K":
        return None
    return cell("temperature", _heat(key), strategy=strategy(key[3]))


def _heat(key: Key) -> str:
    return key[2].removeprefix("temperature=")


def _spread(groups: dict[Key, Group]) -> Table:
    """Mean and deviation over seeds, as the paper prints them."""
    rows: list[list[Any]] = []
    for key, group in groups.items():
        seeds: dict[int, list[bool]] = {}
        for one in group.cells:
            seeds.setdefault(one.cell.seed, []).extend(one.right.values())
        means = [100 * sum(right) / len(right) for right in seeds.values()]
        spread = statistics.stdev(means) if len(means) > 1 else 0.0
        rows.append([*key, statistics.fmean(means), spread, len(means), printed(key)])
    columns = [
        "model",
        "data set",
        "temperature",
        "strategy",
        "mean, %",
        "deviation",
        "seeds",
        "paper",
    ]
    note = "The deviation is that of samples, over seeds; it says nothing of other items."
    return Table("Mean and deviation over seeds", columns, rows, note)
