"""Quality of texts against forward passes: likelihood and length, one column per canvas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import (
    Line,
    add_legend,
    draw_curve,
    legend_entries,
    spread_log_x,
)
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Style, looks
from wavefront.results.interval import Estimate, bounds

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.ticker import FixedLocator, NullLocator

ROWS = {"nats": "nats per token", "length": "tokens"}


class QualityPoint(NamedTuple):
    """The texts of a strategy at one budget."""

    steps: int
    forwards: float
    nats: Estimate
    length: Estimate


class QualityPanel(NamedTuple):
    """One canvas: the points of every strategy, and the original's own texts."""

    title: str
    points: Mapping[str, Sequence[QualityPoint]]
    original: QualityPoint


@lazy_figure
def quality(style: Style, panels: Sequence[QualityPanel]) -> MplFigure:
    """Draw nats per token above the length, against forward passes; a line is the original's.

    The length is left out if all texts of a canvas are equally long.
    """
    rows = {name: words for name, words in ROWS.items() if name == "nats" or _varies(panels, name)}
    figure = MplFigure(figsize=(TWO_COLUMNS, 1.0 + 1.4 * len(rows)))
    figure.set_layout_engine("constrained", w_pad=0.06)
    grid = figure.subplots(len(rows), len(panels), sharex="col", sharey="row", squeeze=False)
    for column, panel in enumerate(panels):
        styles = looks(list(panel.points), style)
        lines = {
            spec: sorted(found, key=lambda one: one.forwards)
            for spec, found in panel.points.items()
        }
        places = spread_log_x([[one.forwards for one in line] for line in lines.values()])
        for row, (name, words) in enumerate(rows.items()):
            axes = grid[row][column]
            for (spec, ordered), at in zip(lines.items(), places, strict=True):
                ends = [bounds(getattr(one, name)) for one in ordered]
                line = Line(at, *([end[part] for end in ends] for part in range(3)))
                draw_curve(axes, line, styles[spec], style=style, marks=True)
                axes.lines[-1].set_label(styles[spec].label)
            mean = bounds(getattr(panel.original, name))[0]
            axes.axhline(
                mean, color=style.soft, linestyle=":", linewidth=1, label="the original's own texts"
            )
            axes.set_xscale("log", base=2)
            ticks = sorted({one.steps for found in panel.points.values() for one in found})
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.grid(axis="y")
            if column == 0:
                axes.set_ylabel(words)
        grid[0][column].set_title(panel.title)
        grid[-1][column].set_xlabel("forward passes")
    for row in grid:
        row[0].set_ylim(bottom=0)  # after all columns are drawn, which share the axis
    add_legend(figure, legend_entries(grid[0][0]))
    return figure


def _varies(panels: Sequence[QualityPanel], name: str) -> bool:
    """Return whether a measure has several values on any canvas."""
    return any(
        len({bounds(getattr(one, name)) for found in panel.points.values() for one in found}) > 1
        for panel in panels
    )
