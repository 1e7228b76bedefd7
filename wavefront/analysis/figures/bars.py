"""Bars of shares by task and strategy, each with its interval and an optional mark."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import add_legend
from wavefront.analysis.figures.style import DRAWABLE, ONE_COLUMN, TWO_COLUMNS, Style, looks

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch


class Bar(NamedTuple):
    """A share in [0, 1] with its 95 % interval, and an optional second share to mark."""

    task: str
    strategy: str
    mean: float
    low: float
    high: float
    visible: float | None = None


@lazy_figure
def bars(
    style: Style, found: Sequence[Bar], *, ylabel: str = "correct answers (%)", mark: str = ""
) -> MplFigure:
    """Draw one panel. `mark` names the mark on a bar, such as the paper's number."""
    tasks = list(dict.fromkeys(bar.task for bar in found))
    specs = list(dict.fromkeys(bar.strategy for bar in found))
    wide = len(tasks) * len(specs) > 9
    figure = MplFigure(figsize=(TWO_COLUMNS if wide else ONE_COLUMN + 0.6, 2.5))
    figure.set_layout_engine("constrained")
    panel = figure.subplots()
    draw_bars(panel, style, found, specs=specs, tasks=tasks)
    panel.set_ylabel(ylabel)
    add_bar_legend(figure, style, specs, visible=mark if any(bar.visible for bar in found) else "")
    return figure


def add_bar_legend(
    figure: MplFigure, style: Style, specs: Sequence[str], *, visible: str = ""
) -> None:
    """Add a legend of the strategies and the mark."""
    styles = looks(specs, style)
    entries = {
        styles[one].label: Patch(facecolor=styles[one].colour, hatch=styles[one].hatch)
        for one in specs
    }
    if visible:
        line = Line2D([], [], linestyle="", marker="_", markersize=7, markeredgewidth=1.2)
        line.set_color(style.ink)
        entries[visible] = line  # pyright: ignore[reportArgumentType]
    add_legend(figure, entries)


def draw_bars(
    panel: Axes, style: Style, bars: Sequence[Bar], *, specs: Sequence[str], tasks: Sequence[str]
) -> None:
    """Draw bars into a panel: one group per task, one bar per strategy."""
    styles = looks(specs, style)
    width = 0.8 / len(specs)
    for bar in bars:
        look = styles[bar.strategy]
        at = tasks.index(bar.task) + (specs.index(bar.strategy) - (len(specs) - 1) / 2) * width
        panel.bar(
            at,
            100 * bar.mean,
            0.86 * width,
            color=look.colour,
            zorder=2,
            hatch=look.hatch,
        )
        if bar.high > bar.low:
            panel.vlines(
                at, 100 * bar.low, 100 * bar.high, color=style.ink, linewidth=0.8, zorder=3
            )
        if bar.visible:
            half = 0.36 * width
            panel.hlines(
                100 * bar.visible, at - half, at + half, color=style.ink, linewidth=1.3, zorder=4
            )
        if bar.high == 0:
            # In points: if all are 0, a height in % may be far outside the panel.
            panel.annotate("0", (at, 0), xytext=(0, 2), textcoords="offset points",
                           color=look.colour, ha="center", va="bottom", fontsize=6.5)  # fmt: skip
    names = [
        textwrap.fill(task.replace("_", " "), 12) for task in tasks
    ]  # at worst one word per line
    panel.set_xticks(range(len(tasks)), names)
    panel.tick_params(axis="x", length=0)
    panel.set_xlim(-0.6, len(tasks) - 0.4)
    tallest = max(max(bar.high, bar.visible or 0.0) for bar in bars)
    panel.set_ylim(0, max(panel.get_ylim()[1], 108 * tallest))
    panel.grid(axis="y")
