"""Grid: every model, task and strategy in a row, and the bars that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, kind
from wavefront.paper._claims import Claim, directed
from wavefront.paper._groups import Groups, Key, pool
from wavefront.paper._lab import Cell, Lab
from wavefront.paper.studies._bench import EVALUATED

WAVES = tuple(spec for spec in EVALUATED if kind(spec) == "wavefront")
BLOCK = next(spec for spec in EVALUATED if kind(spec) == "block")
BOTH = (
    "Both readings of how the wave grows are evaluated. Decoding ends where the answer does, which "
    "gives the text of a decode to the end of the canvas. Shares have Wilson's 95 % intervals; "
    "differences are in pairs, bootstrapped over items, with the exact McNemar test."
)


def grid(
    lab: Lab,
    strategies: Sequence[str] = EVALUATED,
    *,
    case: str = "",
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """Cells of all models, tasks and strategies; a model is done with before the next."""
    return [
        Cell(model, task, spec, case, seed, options or {})
        for model in lab.models
        for task in lab.scale.tasks
        for spec in strategies
    ]


def against(groups: Groups, text: str, *base: str) -> list[Claim]:
    """Of each wave: that it has more right answers than the base, everything else pooled.

    The base is the end of a key; before the strategy there may be what else varies.
    """
    one = pool(groups, *base)
    return [directed(text, spec, one, pool(groups, *base[:-1], spec)) for spec in WAVES]


def bars(
    groups: Groups,
    at: Callable[[Key], str],
    *,
    paper: Callable[[Key], str | None] = lambda key: None,
) -> Figure:
    """The groups as bars, those of one place side by side; the paper's numbers as marks."""
    found = []
    for key, group in groups.items():
        share = group.accuracy
        printed = number(paper(key))
        mark = None if printed is None else printed / 100
        mean, low, high = (part / 100 for part in (share.value, share.low, share.high))
        found.append(figures.Bar(at(key), key[-1], mean, low, high, mark))
    return figures.bars(found, mark="the paper, on its models and data")


def number(printed: str | None) -> float | None:
    """The number at the head of what is printed: 82.03 of "82.03 ± 0.00"."""
    return None if printed is None else float(printed.split()[0])
