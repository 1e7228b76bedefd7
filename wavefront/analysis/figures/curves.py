"""Quality against cost, one line per strategy: forward passes, and positions computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import Line, add_legend, draw_curve, legend_entries
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Style, looks

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure

COSTS = {"forwards": "forward passes (mean over items)", "positions": "positions computed"}


class CurvePoint(NamedTuple):
    """A setting of a strategy: its cost, and its quality with a 95 % interval."""

    forwards: float
    positions: float | None
    mean: float
    low: float
    high: float


class CurvePanel(NamedTuple):
    """One task on one canvas."""

    title: str
    ylabel: str
    lines: Mapping[str, Sequence[CurvePoint]]  # by strategy
    reference: float | None = None  # a level drawn across, such as the original's own texts
    log: bool = False  # draw the quality on a logarithmic axis


@lazy_figure
def curves(style: Style, panels: Sequence[CurvePanel]) -> MplFigure:
    """Draw a row for every panel: quality against forward passes and against positions."""
    figure = MplFigure(figsize=(TWO_COLUMNS, 3.0 * len(panels) + 0.8))
    figure.set_layout_engine("constrained", w_pad=0.08)
    grid = figure.subplots(len(panels), len(COSTS), sharey="row", squeeze=False)
    for row, panel in zip(grid, panels, strict=True):
        styles = looks(list(panel.lines), style)
        for axes, (cost, words) in zip(row, COSTS.items(), strict=True):
            for family, points in panel.lines.items():
                known = [one for one in points if getattr(one, cost)]
                ordered = sorted(known, key=lambda one: getattr(one, cost))
                ends = [[getattr(one, end) for one in ordered] for end in ("mean", "low", "high")]
                line = Line([getattr(one, cost) for one in ordered], *ends)
                draw_curve(axes, line, styles[family], style=style, marks=True)
                axes.lines[-1].set_label(styles[family].label)
            if panel.reference is not None:
                axes.axhline(
                    panel.reference,
                    color=style.soft,
                    linestyle=":",
                    linewidth=1,
                    label="the original's own texts",
                )
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.set_xlabel(words)
            axes.grid(axis="y")
            if panel.log:
                axes.set_yscale("log", base=2)
                axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        row[0].set(ylabel=panel.ylabel, title=panel.title)
    add_legend(figure, legend_entries(grid[0][0]))
    return figure
