"""Accuracy against cost: step budget and forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure as MplFigure
from matplotlib.ticker import FixedLocator, NullLocator

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import (
    Line,
    add_legend,
    draw_curve,
    legend_entries,
    offset_log_x,
)
from wavefront.analysis.figures.style import TWO_COLUMNS, Style, looks


class Point(NamedTuple):
    """A share of right answers in [0, 1] with its 95 % interval, and its cost."""

    steps: float
    forwards: float
    mean: float
    low: float
    high: float


@lazy_figure
def accuracy(style: Style, points: Mapping[str, Sequence[Point]]) -> MplFigure:
    """Draw two panels with one scale: against the step budget and against forward passes."""
    figure = MplFigure(figsize=(TWO_COLUMNS, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.08)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    styles = looks(list(points), style)
    for panel, name in zip(panels, ("steps", "forwards"), strict=True):
        for number, (spec, found) in enumerate(points.items()):
            ordered = sorted(found, key=lambda one: getattr(one, name))
            columns = [[100 * getattr(one, n) for one in ordered] for n in ("mean", "low", "high")]
            at = offset_log_x(number, len(points), [getattr(one, name) for one in ordered])
            line = Line(at, *columns)
            draw_curve(panel, line, styles[spec], style, marks=True)
            panel.lines[-1].set_label(styles[spec].label)
        panel.set_xscale("log", base=2)
        ticks = sorted({one.steps for found in points.values() for one in found})
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        panel.grid(axis="y")
    panels[0].set(xlabel="step budget, T", ylabel="right answers (%)")
    panels[1].set_xlabel("forward passes (mean over items)")
    add_legend(figure, legend_entries(panels[0]))
    return figure
