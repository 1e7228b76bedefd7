"""Main: is the wave right more often than block and standard, on every model and task?"""

from __future__ import annotations

from wavefront.paper._claims import directed
from wavefront.paper._grid import BLOCK, BOTH, against, bars, grid
from wavefront.paper._groups import (
    Key,
    accuracy_table,
    as_numbers,
    by_dataset,
    by_task,
    grouped,
    pool,
)
from wavefront.paper._lab import DREAM, LLADA, LLADA15, Lab, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell, model, strategy
from wavefront.paper.studies import Findings
from wavefront.tasks.benchmarks.bbh import SUBSETS

NEEDS = "nothing; --paper: three checkpoints, gsm8k, math, humaneval, mbpp, bbh, a sandbox"
SMALL = Scale(tasks=("gsm", "boolean_expressions", "web_of_lies"), items=8)
PAPER = Scale(
    models=(LLADA, LLADA15, DREAM),
    tasks=("gsm8k", "math", "humaneval", "mbpp", *(f"bbh_{name}" for name in SUBSETS)),
    items=None,
    length=1024,
    style="paper",
)


def run(lab: Lab) -> Findings:
    """The grid, pooled by the paper's data sets and apart."""
    made = lab.measure(grid(lab))
    groups, tasks = grouped(made, by_dataset), grouped(made, by_task)
    claims = against(groups, "WavefrontDiffusion is above BlockDiffusion", BLOCK)
    for name in dict.fromkeys(key[1] for key in groups):
        claims += against(groups, f"... on {name}", name, BLOCK)
    claims += against(groups, "WavefrontDiffusion is far above Standard Diffusion", "standard")
    both = (pool(groups, "standard"), pool(groups, BLOCK))
    claims.append(directed("BlockDiffusion is above Standard Diffusion", "pooled", *both))
    names = ["model", "data set", "strategy"]
    tables = [accuracy_table("Right answers by data set", groups, names, paper=printed)]
    if len(tasks) > len(groups):
        tables.append(accuracy_table("The same by task", tasks, ["model", "task", "strategy"]))
    return page(
        lab,
        title="Main: right answers of the strategies",
        text=f"Tasks stand under the data set of the paper that they are or are nearest to. {BOTH}",
        claims=claims,
        tables=tables,
        figures={"main": (bars(groups, place(lab), paper=printed), "Right answers")},
        numbers={"measured": as_numbers(tables[0]), "by task": as_numbers(tables[-1])},
    )


def printed(key: Key) -> str | None:
    """The paper's accuracy."""
    return cell("main", key[1], model=model(key[0]), strategy=strategy(key[2]))


def place(lab: Lab):
    """Where a bar stands: the data set, and the model where there are several."""
    return lambda key: f"{key[1]}\n{key[0]}" if len(lab.models) > 1 else key[1]
