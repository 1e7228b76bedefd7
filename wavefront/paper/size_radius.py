"""Size and radius: does accuracy depend on the wave's size F and radius R?"""

from __future__ import annotations

from wavefront.paper._claims import alike, directed
from wavefront.paper._grid import BOTH, bars, grid
from wavefront.paper._groups import (
    Groups,
    Key,
    accuracy_table,
    as_numbers,
    by_dataset,
    grouped,
    pool,
)
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._page import page
from wavefront.paper._printed import cell
from wavefront.paper.studies import Findings

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, math, gsm8k, humaneval, a sandbox"
SMALL = Scale(items=16, length=48)
PAPER = Scale(
    models=(LLADA,), tasks=("math", "gsm8k", "humaneval"), items=None, length=1024, style="paper"
)
SIZES = ((4, 2), (8, 2), (16, 2), (8, 4), (8, 8))
GROWS = ("", ", grow='accumulate'")


def spec(size: int, radius: int, grow: str = "") -> str:
    return f"wavefront(size={size}, radius={radius}{grow})"


def run(lab: Lab) -> Findings:
    """Five settings, both readings."""
    strategies = [spec(*one, grow) for grow in GROWS for one in SIZES]
    groups = grouped(lab.measure(grid(lab, strategies)), by_dataset)

    def one(size: int, radius: int, grow: str):
        return pool(groups, spec(size, radius, grow))

    claims = []
    for grow in GROWS:
        reading = "accumulate" if grow else "rebuild"
        default = one(8, 2, grow)
        claims += [
            directed("Accuracy increases from F = 4 to F = 8", reading, one(4, 2, grow), default),
            alike("F = 16 does not improve on F = 8", reading, default, one(16, 2, grow)),
            directed("R = 4 yields small gains over R = 2", reading, default, one(8, 4, grow)),
            alike("R = 8 brings no further improvement", reading, one(8, 4, grow), one(8, 8, grow)),
        ]
    table = accuracy_table(
        "Right answers by F and R",
        groups,
        ["model", "data set", "strategy"],
        paper=printed,
        base=default_of,
        note="The base is F = 8, R = 2 of the same reading.",
    )
    shown = {key: group for key, group in groups.items() if "accumulate" not in key[-1]}
    return page(
        lab,
        title="Size and radius of the wave",
        text=f"F is the size of the front and R its radius. {BOTH}",
        claims=claims,
        tables=[table],
        figures={"size-radius": (bars(shown, lambda key: key[1], paper=printed), "By F and R")},
        numbers={"measured": as_numbers(table)},
    )


def default_of(groups: Groups, key: Key) -> Key | None:
    """The default setting of the same reading."""
    default = (*key[:-1], spec(8, 2, GROWS["accumulate" in key[-1]]))
    return None if default == key or default not in groups else default


def printed(key: Key) -> str | None:
    """The paper's accuracy."""
    size, radius = next(one for one in SIZES if spec(*one)[:-1] in key[-1])
    return cell("size-radius", f"F={size}, R={radius}", dataset=key[1])
