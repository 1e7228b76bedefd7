"""Baselines: the wave beside three dynamic strategies, TBD, RCR and SSD."""

from __future__ import annotations

from wavefront.paper._grid import BLOCK, BOTH, WAVES, against, bars, grid
from wavefront.paper._groups import Key, accuracy_table, as_numbers, grouped
from wavefront.paper._lab import LLADA, Lab, Measured, Scale, short
from wavefront.paper._page import page
from wavefront.paper._printed import cell, dataset, strategy
from wavefront.paper.studies import Findings
from wavefront.tasks.benchmarks.bbh import SUBSETS

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k, math, humaneval, bbh, a sandbox"
SMALL = Scale(items=16, length=48)
PAPER = Scale(
    models=(LLADA,),
    tasks=("gsm8k", "math", "humaneval", *(f"bbh_{name}" for name in SUBSETS)),
    items=None,
    length=1024,
    style="paper",
)
DRAFT = 4


def run(lab: Lab) -> Findings:
    """Six strategies and a second reading; SSD is block with drafts."""
    strategies = ("standard", BLOCK, "tbd()", "rcr()", *WAVES)
    cells = grid(lab, strategies)
    cells += grid(lab, (BLOCK,), case=f"draft={DRAFT}", options={"draft": DRAFT})
    groups = grouped(lab.measure(cells), named)
    kinds = dict.fromkeys(key[-1] for key in groups)
    claims = []
    for spec in kinds:
        if spec not in WAVES:
            text = f"WavefrontDiffusion is above {strategy(spec)}"
            claims += against(groups, text, spec)
    columns = ["model", "data set", "strategy"]
    table = accuracy_table("Right answers", groups, columns, paper=printed)
    return page(
        lab,
        title="The wave beside dynamic baselines",
        text=f"TBD is a reconstruction. SSD is block with a draft of {DRAFT}, whose answers are "
        f"block's own by construction: only its forwards differ. {BOTH}",
        claims=claims,
        tables=[table],
        figures={"baselines": (bars(groups, lambda key: key[1], paper=printed), "Right answers")},
        numbers={"measured": as_numbers(table)},
    )


def named(one: Measured) -> Key:
    """Model, data set, strategy; a draft is part of the strategy."""
    cell = one.cell
    spec = f"{cell.strategy[:-1]}, {cell.case})" if cell.case else cell.strategy
    return short(cell.model), dataset(cell.task), spec


def printed(key: Key) -> str | None:
    """The paper's accuracy."""
    return cell("baselines", key[1], strategy=strategy(key[2]))
