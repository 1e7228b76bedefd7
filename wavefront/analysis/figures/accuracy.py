"""Accuracy against cost: step budget and forward passes."""

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
from wavefront.analysis.figures.style import DRAWABLE, ONE_COLUMN, TWO_COLUMNS, Style, looks

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.ticker import FixedLocator, NullLocator


class Point(NamedTuple):
    """A share of correct answers in [0, 1] with its 95 % interval, and its cost."""

    steps: float
    forwards: float
    mean: float
    low: float
    high: float


@lazy_figure
def accuracy(
    style: Style,
    points: Mapping[str, Sequence[Point]],
    *,
    ylabel: str = "correct answers (%)",
) -> MplFigure:
    """Draw two panels with the same scale: against the step budget and forward passes.

    If every step is one forward pass, the panels would be identical, so only one is drawn.
    """
    same = all(one.steps == one.forwards for found in points.values() for one in found)
    names = ("steps",) if same else ("steps", "forwards")
    figure = MplFigure(figsize=(ONE_COLUMN + 0.6 if same else TWO_COLUMNS, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.08)
    panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    styles = looks(list(points), style)
    for panel, name in zip(panels, names, strict=True):
        ordered_lines = [sorted(f, key=lambda one: getattr(one, name)) for f in points.values()]
        places = spread_log_x([[getattr(one, name) for one in line] for line in ordered_lines])
        for spec, ordered, at in zip(points, ordered_lines, places, strict=True):
            columns = [[100 * getattr(one, n) for one in ordered] for n in ("mean", "low", "high")]
            line = Line(at, *columns)
            draw_curve(panel, line, styles[spec], style=style, marks=True)
            panel.lines[-1].set_label(styles[spec].label)
        panel.set_xscale("log", base=2)
        ticks = sorted({one.steps for found in points.values() for one in found})
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        panel.grid(axis="y")
    panels[0].set(xlabel="step budget, T", ylabel=ylabel)
    if same:
        panels[0].set_xlabel("step budget, T (= forward passes)")
    else:
        panels[1].set_xlabel("forward passes (mean over items)")
    add_legend(figure, legend_entries(panels[0]))
    return figure
