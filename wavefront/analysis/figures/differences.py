"""Differences with their intervals, one per line. Right of zero is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.style import DRAWABLE, ONE_COLUMN, Style

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure


class Gap(NamedTuple):
    """A difference with its 95 % interval, and the paper's value if it has one."""

    name: str
    value: float
    low: float
    high: float
    paper: float | None = None


@lazy_figure
def gaps(style: Style, found: Sequence[Gap], *, xlabel: str) -> MplFigure:
    """Draw the differences from top to bottom in the given order."""
    figure = MplFigure(figsize=(ONE_COLUMN + 1.2, 0.7 + 0.19 * len(found)))
    figure.set_layout_engine("constrained")
    panel = figure.subplots()
    green, ink = style.hues["green"], style.hues["vermilion"]
    panel.axvline(0, color=style.soft, linewidth=0.6, zorder=1)
    for at, one in enumerate(reversed(found)):
        panel.hlines(at, one.low, one.high, color=green, linewidth=1.1, zorder=2)
        panel.plot([one.value], [at], marker="o", color=green, zorder=3)
        if one.paper is not None:
            panel.plot([one.paper], [at], marker="|", markersize=7, color=ink, zorder=4)
    panel.set_yticks(range(len(found)), [one.name.replace("_", " ") for one in reversed(found)])
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(-0.6, len(found) - 0.4)
    text = f"{xlabel}; bar: the paper" if any(one.paper is not None for one in found) else xlabel
    panel.set_xlabel(text)
    panel.grid(axis="x")
    return figure
