"""Baselines: is the wave above three dynamic strategies, TBD, RCR and SSD?"""

from __future__ import annotations

from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, TrialResult, model_name
from wavefront.paper.experiment import LLADA, TABLE_TASKS, experiment_page
from wavefront.paper.published import data_name, dataset, published_cell, published_strategy
from wavefront.paper.tables import (
    BLOCK,
    BOTH_READINGS,
    WAVES,
    Key,
    accuracy_bars,
    accuracy_table,
    grid,
    group_by,
    spec_with_case,
    wave_claims,
)

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k, math, humaneval, bbh, a sandbox"
SMALL = Scale(items=16, length=48)
PAPER = Scale(
    models=(LLADA,),
    tasks=TABLE_TASKS,
    items=None,
    length=1024,
    style="paper",
)
DRAFT = 4


def run(runner: Runner) -> ResultsPage:
    """Run six strategies and the second reading; SSD is block with drafts."""
    strategies = ("standard", BLOCK, "tbd()", "rcr()", *WAVES)
    trials = grid(runner, strategies)
    trials += grid(runner, (BLOCK,), case=f"speculate={DRAFT}", options={"speculate": DRAFT})
    groups = group_by(runner.measure(trials), _key)
    kinds = dict.fromkeys(key[-1] for key in groups)
    claims = []
    for spec in kinds:
        if spec not in WAVES:
            text = f"WavefrontDiffusion is above {published_strategy(spec)}"
            claims += wave_claims(groups, text, spec)
    columns = ["model", "data set", "strategy"]
    table = accuracy_table("Correct answers", groups, columns, paper=published)
    return experiment_page(
        runner,
        title="Wavefront and adaptive baselines",
        text=f"TBD is a reconstruction. SSD is block with a draft of {DRAFT}, whose answers are "
        f"block's own by construction: only its forwards differ. {BOTH_READINGS}",
        claims=claims,
        tables=[table],
        figures={
            "baselines": (
                accuracy_bars(groups, lambda key: key[1], paper=published),
                "Correct answers",
            )
        },
        numbers={"measured": table.records()},
    )


def _key(result: TrialResult) -> Key:
    """Return model, data set, strategy; a draft is part of the strategy."""
    trial = result.trial
    return model_name(trial.model), data_name(trial.task), spec_with_case(trial)


def published(key: Key) -> str | None:
    """Return the paper's accuracy."""
    return published_cell("baselines", dataset(key[1]), strategy=published_strategy(key[2]))
