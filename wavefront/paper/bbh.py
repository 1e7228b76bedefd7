"""BBH: the wave against block, subset by subset."""

from __future__ import annotations

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, Gap, kind
from wavefront.paper._claims import Claim, directed
from wavefront.paper._grid import BLOCK, BOTH, WAVES, against, grid, number
from wavefront.paper._groups import (
    Groups,
    Key,
    accuracy_table,
    as_numbers,
    by_task,
    gap,
    grouped,
    points,
)
from wavefront.paper._lab import LLADA, LLADA15, Lab, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell, model, subset
from wavefront.paper.studies import Findings
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


def run(lab: Lab) -> Findings:
    """Block and the waves on every subset."""
    groups = grouped(lab.measure(grid(lab, (BLOCK, *WAVES))), by_task)
    claims = against(groups, "WavefrontDiffusion is above the base over all subsets", BLOCK)
    claims += [claim for key in groups if (claim := _claim(groups, key))]
    table = accuracy_table(
        "Right answers by subset",
        groups,
        ["model", "subset", "strategy"],
        paper=printed,
        note="The paper prints shares; block stands beside its base.",
    )
    return page(
        lab,
        title="BBH, subset by subset",
        text=f"Our own tasks are named after the subsets they are made like. {BOTH}",
        claims=claims,
        tables=[table],
        figures={"bbh": (_picture(groups), "Wave less block")},
        numbers={"measured": as_numbers(table)},
    )


def printed(key: Key) -> str | None:
    """The paper's share."""
    column = "base" if kind(key[2]) == "block" else "wave"
    return cell("bbh", column, model=model(key[0]), subset=subset(key[1]))


def _claim(groups: Groups, key: Key) -> Claim | None:
    """The sign that the paper prints for a subset, of the first reading."""
    told = number(cell("bbh", "difference", model=model(key[0]), subset=subset(key[1])))
    if key[2] != WAVES[0] or not told:
        return None
    word = "higher" if told > 0 else "lower"
    return directed(
        f"{subset(key[1])}: {word} ({told:+.3f})",
        key[0],
        groups[(*key[:2], BLOCK)],
        groups[key],
        word,
    )


def _picture(groups: Groups) -> Figure:
    found = []
    for key in groups:
        if key[2] == WAVES[0]:
            one = points(gap(groups[(*key[:2], BLOCK)], groups[key]))
            told = number(cell("bbh", "difference", model=model(key[0]), subset=subset(key[1])))
            paper = None if told is None else 100 * told
            several = len({other[0] for other in groups}) > 1
            name = f"{subset(key[1])} ({key[0]})" if several else subset(key[1])
            found.append(Gap(name, one.value, one.low, one.high, paper))
    return figures.gaps(found, xlabel="wave less block, points of %")
