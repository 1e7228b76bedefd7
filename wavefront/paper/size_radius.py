"""Size and radius: does accuracy depend on the wave's size F and radius R?"""

from __future__ import annotations

from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import accuracy_claim, equal_accuracy_claim
from wavefront.paper.experiment import LLADA, experiment_page
from wavefront.paper.published import dataset, published_cell
from wavefront.paper.tables import (
    BOTH_READINGS,
    Groups,
    Key,
    accuracy_bars,
    accuracy_table,
    by_dataset,
    grid,
    group_by,
    pool,
)

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, math, gsm8k, humaneval, a sandbox"
SMALL = Scale(items=16, length=48)
PAPER = Scale(
    models=(LLADA,), tasks=("math", "gsm8k", "humaneval"), items=None, length=1024, style="paper"
)
SIZES = ((4, 2), (8, 2), (16, 2), (8, 4), (8, 8))
GROWS = ("", ", grow='accumulate'")


def spec(size: int, radius: int, grow: str = "") -> str:
    """Return a wave's spec."""
    return f"wavefront(size={size}, radius={radius}{grow})"


def run(runner: Runner) -> ResultsPage:
    """Run five settings in both readings."""
    strategies = [spec(*one, grow) for grow in GROWS for one in SIZES]
    groups = group_by(runner.measure(grid(runner, strategies)), by_dataset)

    def one(size: int, radius: int, grow: str):
        return pool(groups, spec(size, radius, grow))

    claims = []
    for grow in GROWS:
        reading = "accumulate" if grow else "rebuild"
        default = one(8, 2, grow)
        claims += [
            accuracy_claim(
                "Accuracy increases from F = 4 to F = 8",
                reading,
                base=one(4, 2, grow),
                other=default,
            ),
            equal_accuracy_claim(
                "F = 16 does not improve on F = 8", reading, base=default, other=one(16, 2, grow)
            ),
            accuracy_claim(
                "R = 4 yields small gains over R = 2", reading, base=default, other=one(8, 4, grow)
            ),
            equal_accuracy_claim(
                "R = 8 brings no further improvement",
                reading,
                base=one(8, 4, grow),
                other=one(8, 8, grow),
            ),
        ]
    table = accuracy_table(
        "Correct answers by F and R",
        groups,
        ["model", "data set", "strategy"],
        paper=published,
        base=default_of,
        note="The base is F = 8, R = 2 of the same reading.",
    )
    shown = {key: group for key, group in groups.items() if "accumulate" not in key[-1]}
    return experiment_page(
        runner,
        title="Size and radius of the wave",
        text=f"F is the size of the front and R its radius. {BOTH_READINGS}",
        claims=claims,
        tables=[table],
        figures={
            "size-radius": (accuracy_bars(shown, lambda key: key[1], paper=published), "By F and R")
        },
        numbers={"measured": table.records()},
    )


def default_of(groups: Groups, key: Key) -> Key | None:
    """Return the default setting of the same reading."""
    default = (*key[:-1], spec(8, 2, GROWS["accumulate" in key[-1]]))
    return None if default == key or default not in groups else default


def published(key: Key) -> str | None:
    """Return the paper's accuracy."""
    size, radius = next(one for one in SIZES if spec(*one)[:-1] in key[-1])
    return published_cell("size-radius", f"F={size}, R={radius}", dataset=dataset(key[1]))
