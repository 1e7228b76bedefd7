"""Figure 4: frontier, heat map and regret of a decode, as separate figures or as three panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import (
    add_frame,
    add_legend,
    count_axis,
    draw_curve,
    mean_by_item,
)
from wavefront.analysis.figures.style import DRAWABLE, ONE_COLUMN, TWO_COLUMNS, Style, looks
from wavefront.analysis.measures.dynamics import Frontier, HeatMap
from wavefront.analysis.measures.regret import Regret

if TYPE_CHECKING or DRAWABLE:
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.lines import Line2D

HEAT = {
    "score": "score (log probability)",
    "probability": "doubt of the proposal, 1 − p",
    "entropy": "entropy (nats)",
}
DOTS = (0, (1, 1.2))
SUREST = 1e-5
AGAINST = {"lag": "steps since the commit", "t": "step"}


@lazy_figure
def frontier(style: Style, frontiers: Mapping[str, Frontier]) -> MplFigure:
    """Draw the leftmost masked and the furthest decided position, mean over items."""
    figure, panel = _single(2.7)
    _draw_frontier(panel, style, frontiers)
    add_legend(figure, _entries(style, list(frontiers), frontier=True))
    return figure


@lazy_figure
def heatmap(style: Style, heat: HeatMap) -> MplFigure:
    """Draw the model's statistics of every masked position at every step of one item."""
    figure, panel = _single(2.8)
    _draw_heat(figure, panel, style, heat=heat)
    return figure


@lazy_figure
def regret(
    style: Style, regrets: Mapping[str, Regret], against: str = "lag", *, width: int = 1
) -> MplFigure:
    """Draw the later probability of decided tokens, mean over items with a 95 % interval.

    If only every n-th step was measured, pass `width=n`. A point then covers n steps, so that every
    token has the same weight.
    """
    figure, panel = _single(2.5)
    _draw_regret(panel, style, regrets, against=against, width=width)
    add_legend(figure, _entries(style, list(regrets), frontier=False))
    return figure


@lazy_figure
def dynamics(
    style: Style,
    frontiers: Mapping[str, Frontier],
    heat: HeatMap,
    *,
    regrets: Mapping[str, Regret],
    width: int = 1,
) -> MplFigure:
    """Draw the three panels of the paper's figure 4. `width` is as for `regret`."""
    figure = MplFigure(figsize=(TWO_COLUMNS, 2.6))
    figure.set_layout_engine("constrained", w_pad=0.06)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1.18, 1))
    _draw_frontier(left, style, frontiers)
    _draw_heat(figure, middle, style, heat=heat)
    _draw_regret(right, style, regrets, against="lag", width=width)
    for panel, title in zip((left, middle, right), ("frontier", "heat map", "regret"), strict=True):
        panel.set_title(title)
    add_legend(figure, _entries(style, list(frontiers), frontier=True))
    return figure


def _single(height: float) -> tuple[MplFigure, Axes]:
    figure = MplFigure(figsize=(ONE_COLUMN, height))
    figure.set_layout_engine("constrained")
    return figure, figure.subplots()


def _draw_frontier(panel: Axes, style: Style, frontiers: Mapping[str, Frontier]) -> None:
    styles = looks(list(frontiers), style)
    last, places = 1, 1
    for spec, found in frontiers.items():
        steps = np.arange(len(found.t))
        length = np.asarray(found.length, float)
        for values, dash, width in (
            (np.asarray(found.leftmost, float), "-", 1.4),
            (np.asarray(found.furthest, float) + 1, DOTS, 1.0),
        ):
            y = np.minimum(values, length).mean(1)
            panel.plot(
                steps,
                y,
                color=styles[spec].colour,
                linestyle=dash,
                linewidth=width,
                zorder=3,
                drawstyle="steps-post",
            )
        last, places = max(last, len(steps) - 1), max(places, int(length.max()))
    panel.set(xlabel="step", ylabel="position in the answer", xlim=(0, last), ylim=(0, places))
    count_axis(panel.xaxis, last, first=0)
    count_axis(panel.yaxis, places, first=0)


def _entries(style: Style, specs: Sequence[str], *, frontier: bool) -> dict[str, Line2D]:
    """Return the legend entries."""
    styles = looks(specs, style).values()
    found = {one.label: Line2D([], [], color=one.colour, linestyle=one.dash) for one in styles}
    if frontier:
        found["first masked position"] = Line2D([], [], color=style.ink)
        found["last decided position"] = Line2D(
            [], [], color=style.ink, linewidth=1, linestyle=DOTS
        )
    return found


def _draw_heat(figure: MplFigure, panel: Axes, style: Style, *, heat: HeatMap) -> None:
    values = np.asarray(heat.values, float)
    steps, places = values.shape
    norm = None
    if heat.of == "probability":
        # Most probabilities are close to 1, so draw 1 - p on a log scale.
        values, norm = np.clip(1 - values, SUREST, 1), LogNorm(SUREST, 1)
    bright = "viridis" if heat.of == "score" else "viridis_r"  # bright is confident
    image = panel.imshow(
        values,
        cmap=colormaps[bright].with_extremes(bad=style.known),
        norm=norm,
        aspect="auto",
        extent=(0.5, places + 0.5, steps + 0.5, 0.5),
    )
    step, place = np.asarray(heat.commit).nonzero()
    panel.plot(
        place + 1,
        step + 1,
        linestyle="",
        marker="o",
        markersize=1.5,
        color="#000000",
        markeredgewidth=0.3,
        markeredgecolor="#ffffff",
    )
    panel.set(xlabel="position in the answer", ylabel="step")
    count_axis(panel.xaxis, places)
    count_axis(panel.yaxis, steps)
    add_frame(panel, style)
    bar = figure.colorbar(image, ax=panel, fraction=0.06, pad=0.03, aspect=30)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.set_label(HEAT[heat.of], fontsize=7)
    bar.ax.tick_params(labelsize=6, width=0.5, length=2)
    bar.ax.tick_params(which="minor", length=0)
    if norm is not None:
        bar.ax.invert_yaxis()  # confident at the top


def _draw_regret(
    panel: Axes, style: Style, regrets: Mapping[str, Regret], *, against: str, width: int
) -> None:
    styles = looks(list(regrets), style)
    lowest, last = 1.0, 1.0
    for spec, found in regrets.items():
        x = np.asarray(found.lag if against == "lag" else found.t)
        x = (x - 1) // width * width + (width + 1) / 2  # the middle of its bin
        line = mean_by_item(found.row, x, found.probability)
        draw_curve(
            panel,
            line._replace(high=np.minimum(np.asarray(line.high), 1)),
            styles[spec],
            style=style,
        )
        lowest = min(lowest, float(np.min(np.asarray(line.low))))
        last = max(last, float(line.x[-1]) + (width - 1) / 2)
    panel.set(xlabel=AGAINST[against], ylabel="probability of the token in place")
    room = max(1 - lowest, 0.002)
    panel.set(xlim=(0, last), ylim=(max(0.0, 1 - 1.1 * room), 1 + 0.04 * room))
    panel.grid(axis="y")
