"""Priority: does the wave lead under entropy and margin as well as under confidence?"""

from __future__ import annotations

from wavefront.paper._grid import BLOCK, BOTH, against, bars, grid
from wavefront.paper._groups import Key, accuracy_table, as_numbers, by_case, grouped
from wavefront.paper._lab import DREAM, Lab, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell, strategy
from wavefront.paper.studies import Findings
from wavefront.paper.studies._bench import EVALUATED
from wavefront.tasks.benchmarks.bbh import SUBSETS

NEEDS = "nothing; --paper: Dream-7B, gsm8k, math, humaneval, bbh, a sandbox"
SMALL = Scale(items=16, length=48)
PAPER = Scale(
    models=(DREAM,),
    tasks=("gsm8k", "math", "humaneval", *(f"bbh_{name}" for name in SUBSETS)),
    items=None,
    length=1024,
    style="paper",
)
PRIORITIES = ("confidence", "entropy", "margin")


def run(lab: Lab) -> Findings:
    """Every strategy under every priority."""
    cells = [
        one for priority in PRIORITIES
        for one in grid(lab, EVALUATED, case=priority, options={"priority": priority})
    ]  # fmt: skip
    groups = grouped(lab.measure(cells), by_case)
    claims = []
    for priority in PRIORITIES:
        for base in (BLOCK, "standard"):
            text = f"Under {priority} the wave is above {strategy(base)}"
            claims += against(groups, text, priority, base)
    columns = ["model", "data set", "priority", "strategy"]
    table = accuracy_table("Right answers by priority", groups, columns, paper=printed)
    return page(
        lab,
        title="What goes first: confidence, entropy or margin",
        text=f"The paper prints confidence in its table 1. {BOTH}",
        claims=claims,
        tables=[table],
        figures={"priority": (bars(groups, _place, paper=printed), "By priority")},
        numbers={"measured": as_numbers(table)},
    )


def printed(key: Key) -> str | None:
    """The paper's accuracy, on Dream."""
    if key[2] == "confidence":
        return cell("main", key[1], model="Dream", strategy=strategy(key[3]))
    return cell("priority", key[1], priority=key[2].capitalize(), strategy=strategy(key[3]))


def _place(key: Key) -> str:
    return f"{key[2]}\n{key[1]}"
