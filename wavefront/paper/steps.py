"""Steps: does the wave keep its lead with fewer steps, and gain more with more?"""

from __future__ import annotations

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, Point
from wavefront.paper._claims import Claim, measured
from wavefront.paper._grid import BLOCK, BOTH, WAVES, against, grid
from wavefront.paper._groups import (
    Group,
    Key,
    accuracy_table,
    as_numbers,
    booted,
    by_case,
    grouped,
    pool,
)
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell, strategy
from wavefront.paper.studies import Findings
from wavefront.paper.studies._bench import EVALUATED

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=16, length=48)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=None, length=1024, style="paper")
RATIOS = (4, 2, 1)  # of N: the paper's 256, 512 and 1024


def run(lab: Lab) -> Findings:
    """Every strategy at a quarter, half and all of the steps."""
    budgets = {ratio: max(1, lab.steps // ratio) for ratio in RATIOS}
    cells = [
        one for steps in dict.fromkeys(budgets.values())
        for one in grid(lab, EVALUATED, case=f"T={steps}", options={"steps": steps})
    ]  # fmt: skip
    groups = grouped(lab.measure(cells), by_case)
    names = ["model", "data set", "T", "strategy"]
    ratio = {f"T={steps}": one for one, steps in budgets.items()}

    def printed(key: Key) -> str | None:
        if key[1] != "GSM8K":
            return None
        return cell("steps", str(1024 // ratio[key[2]]), strategy=strategy(key[3]))

    claims = []
    for case in dict.fromkeys(key[2] for key in groups):
        text = f"The wave surpasses block at {case} (paper: T = {1024 // ratio[case]})"
        low = ratio[case] == max(RATIOS)
        text = f"The wave stays competitive at {case}: not below block" if low else text
        claims += against(groups, text, case, BLOCK)
    claims += [_growth(groups, list(ratio), spec) for spec in WAVES]
    table = accuracy_table("Right answers by steps", groups, names, paper=printed)
    return page(
        lab,
        title="Steps: right answers against the budget",
        text=f"T is a quarter, half and all of {lab.steps} steps. {BOTH}",
        claims=claims,
        tables=[table],
        figures={"steps": (_picture(groups), "Right answers against steps and forwards")},
        numbers={"measured": as_numbers(table)},
    )


def _growth(groups: dict[Key, Group], cases: list[str], spec: str) -> Claim:
    """That the lead over block is larger at the most steps than at the fewest."""
    few, many = cases[0], cases[-1]
    right = {
        (case, one): pool(groups, case, one).right for case in (few, many) for one in (BLOCK, spec)
    }
    items = right[many, spec]
    lead = [
        right[many, spec][i] - right[many, BLOCK][i] - right[few, spec][i] + right[few, BLOCK][i]
        for i in items
    ]
    text = f"The lead over block is more pronounced at {many} than at {few}"
    return measured(text, spec, booted(lead, scale=100), len(items), "higher")


def _picture(groups: dict[Key, Group]) -> Figure:
    found: dict[str, list[Point]] = {}
    for case, spec in dict.fromkeys(key[2:] for key in groups):
        one = pool(groups, case, spec)
        parts = [part / 100 for part in (one.accuracy.value, one.accuracy.low, one.accuracy.high)]
        steps = int(case.removeprefix("T="))
        found.setdefault(spec, []).append(Point(steps, one.forwards or steps, *parts))
    return figures.accuracy(found)
