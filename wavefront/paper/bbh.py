"""BBH: on which subsets is the wave above block?"""

from __future__ import annotations

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, Gap, kind
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, compare_groups, percent_gap
from wavefront.paper.claims import Claim, accuracy_claim
from wavefront.paper.experiment import LLADA, LLADA15, experiment_page
from wavefront.paper.published import first_number, published_cell, published_model, subset
from wavefront.paper.tables import (
    BLOCK,
    BOTH_READINGS,
    WAVES,
    Groups,
    Key,
    accuracy_table,
    by_task,
    grid,
    group_by,
    wave_claims,
)
from wavefront.tasks.benchmarks.bbh import SUBSETS

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, LLaDA-1.5, all 27 subsets of bbh"
SMALL = Scale(
    tasks=(
        "boolean_expressions",
        "web_of_lies",
        "hyperbaton",
        "logical_deduction_three_objects",
        "tracking_shuffled_objects_three_objects",
        "reasoning_about_colored_objects",
    ),
    items=6,
    rows=6,
)
PAPER = Scale(
    models=(LLADA, LLADA15),
    tasks=tuple(f"bbh_{name}" for name in SUBSETS),
    items=None,
    length=1024,
    style="paper",
)


def run(runner: Runner) -> ResultsPage:
    """Run block and the waves on every subset."""
    groups = group_by(runner.measure(grid(runner, (BLOCK, *WAVES))), by_task)
    real = all(task.startswith("bbh") for task in runner.scale.tasks)
    claims = wave_claims(groups, "WavefrontDiffusion is above the base over all subsets", BLOCK)
    claims += [claim for key in groups if (claim := _claim(groups, key))]
    table = accuracy_table(
        f"Correct answers by {'subset' if real else 'task'}",
        groups,
        ["model", "subset" if real else "task", "strategy"],
        paper=published,
        note="The paper prints shares. Block is shown next to the paper's base.",
    )
    return experiment_page(
        runner,
        title="BBH, subset by subset" if real else "Our BBH-like tasks, one by one",
        text=("" if real else "Our tasks have the names of the subsets of BBH that they imitate. ")
        + BOTH_READINGS,
        claims=claims,
        tables=[table],
        figures={"bbh": (_picture(groups), "Wave minus block")},
        numbers={"measured": table.records()},
    )


def published(key: Key) -> str | None:
    """Return the paper's share."""
    column = "base" if kind(key[2]) == "block" else "wave"
    return published_cell("bbh", column, model=published_model(key[0]), subset=subset(key[1]))


def _claim(groups: Groups, key: Key) -> Claim | None:
    """Claim the sign that the paper prints for a subset, of the first reading."""
    difference = _difference(key)
    if key[2] != WAVES[0] or not difference:
        return None
    claimed = "higher" if difference > 0 else "lower"
    text = f"{subset(key[1])}: {claimed} ({difference:+.3f})"
    base, other = groups[(*key[:2], BLOCK)], groups[key]
    return accuracy_claim(text, key[0], base=base, other=other, claimed=claimed)


def _difference(key: Key) -> float | None:
    """Return the paper's difference of a subset."""
    model, name = published_model(key[0]), subset(key[1])
    return first_number(published_cell("bbh", "difference", model=model, subset=name))


def _picture(groups: Groups) -> Figure:
    found = []
    for key in groups:
        if key[2] == WAVES[0]:
            one = percent_gap(compare_groups(groups[(*key[:2], BLOCK)], groups[key]))
            difference = _difference(key)
            paper = None if difference is None else 100 * difference
            several = len({other[0] for other in groups}) > 1
            name = f"{subset(key[1])} ({key[0]})" if several else subset(key[1])
            found.append(Gap(name, one.value, one.low, one.high, paper))
    return figures.gaps(found, xlabel="wave minus block, percentage points")
