"""Main: does the wave answer more items correctly than block and standard, on every task?"""

from __future__ import annotations

from collections.abc import Iterable

from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import accuracy_claim
from wavefront.paper.experiment import DREAM, LLADA, LLADA15, experiment_page
from wavefront.paper.published import (
    BBH_LIKE,
    DEFAULT_MODEL,
    MODELS,
    PROCEDURAL,
    dataset,
    published_cell,
    published_model,
    published_strategy,
)
from wavefront.paper.tables import (
    BLOCK,
    BOTH_READINGS,
    EVALUATED,
    Key,
    accuracy_bars,
    accuracy_table,
    by_dataset,
    by_task,
    grid,
    group_by,
    pool,
    wave_claims,
)
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
COMPARED = EVALUATED


def run(runner: Runner) -> ResultsPage:
    """Run the grid, pooled by the paper's data sets and by task."""
    results = runner.measure(grid(runner))
    groups, tasks = group_by(results, by_dataset), group_by(results, by_task)
    claims = wave_claims(groups, "WavefrontDiffusion is above BlockDiffusion", BLOCK)
    for name in dict.fromkeys(key[1] for key in groups):
        claims += wave_claims(groups, f"... on {name}", name, BLOCK)
    claims += wave_claims(groups, "WavefrontDiffusion is far above Standard Diffusion", "standard")
    claims.append(
        accuracy_claim(
            "BlockDiffusion is above Standard Diffusion",
            "pooled",
            base=pool(groups, "standard"),
            other=pool(groups, BLOCK),
        )
    )
    names = ["model", "data set", "strategy"]
    tables = [accuracy_table("Correct answers by data set", groups, names, paper=published)]
    if len(tasks) > len(groups):
        tables.append(accuracy_table("The same by task", tasks, ["model", "task", "strategy"]))
    return experiment_page(
        runner,
        title="Correct answers of the strategies",
        text=about(groups),
        claims=claims,
        tables=tables,
        figures={
            "main": (accuracy_bars(groups, place(runner), paper=published), "Correct answers")
        },
        numbers={"measured": tables[0].records(), "by task": tables[-1].records()},
    )


def about(groups: Iterable[Key]) -> str:
    """Return what the paper's numbers are compared with, and how answers were decoded."""
    shown = {(model, data) for model, data, _ in groups if data != "stories"}
    models = {model for model, _ in shown if not any(part in model for part in MODELS)}
    texts = [f"The paper does not have {one}: the column `paper` is that of {DEFAULT_MODEL}."
             for one in sorted(models)]  # fmt: skip
    if {data for _, data in shown} & {*PROCEDURAL, BBH_LIKE}:
        texts.append(
            "The paper's numbers are shown next to the most similar data: GSM8K's next to gsm, "
            "HumanEval's next to code, and BBH's next to BBH-like, our tasks named after its "
            "subsets."
        )
    return " ".join([*texts, BOTH_READINGS])


def published(key: Key) -> str | None:
    """Return the paper's accuracy."""
    return published_cell(
        "main", dataset(key[1]), model=published_model(key[0]), strategy=published_strategy(key[2])
    )


def place(runner: Runner):
    """Return the label of a bar: the data set, and the model where there are several."""
    return lambda key: f"{key[1]}\n{key[0]}" if len(runner.models) > 1 else key[1]
