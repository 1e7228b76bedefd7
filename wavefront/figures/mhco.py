"""Figure 2: how often a surer place near by, out of scope, had to wait (MHCO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from wavefront.figures.marks import hatch, key
from wavefront.figures.picture import picture
from wavefront.figures.style import ONE_COLUMN, TWO_COLUMNS, Style, looks

READINGS = {
    "candidates": "outside the candidates",
    "extent": "outside their extent",
}


class Bar(NamedTuple):
    """A share in [0, 1] with its 95 % interval, and the same over visible steps only."""

    task: str
    schedule: str
    mean: float
    low: float
    high: float
    visible: float | None = None


@picture
def mhco(style: Style, readings: Mapping[str, Sequence[Bar]]) -> Figure:
    """Bars by task and strategy, a panel a reading: "candidates" and "extent"."""
    tasks = list(dict.fromkeys(bar.task for bars in readings.values() for bar in bars))
    wide = len(tasks) > 2
    figure = Figure(figsize=(TWO_COLUMNS if wide else ONE_COLUMN + 0.4, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.06)
    panels = figure.subplots(1, len(readings), sharey=True, squeeze=False)[0]
    specs = list(dict.fromkeys(bar.schedule for bars in readings.values() for bar in bars))
    for panel, (reading, bars) in zip(panels, readings.items(), strict=True):
        _draw(panel, style, bars, specs, tasks)
        panel.set_title(READINGS.get(reading, reading))
    panels[0].set_ylabel("MHCO (% of committed tokens)")
    worn = looks(specs, style)
    entries = {
        worn[one].label: Patch(facecolor=worn[one].colour, hatch=hatch(worn[one])) for one in specs
    }
    visible = Line2D([], [], linestyle="", marker="_", markersize=7, markeredgewidth=1.2)
    visible.set_color(style.ink)
    key(figure, entries | {"visible steps only": visible})
    return figure


def _draw(
    panel: Axes, style: Style, bars: Sequence[Bar], specs: Sequence[str], tasks: Sequence[str]
) -> None:
    worn = looks(specs, style)
    width = 0.8 / len(specs)
    for bar in bars:
        look = worn[bar.schedule]
        at = tasks.index(bar.task) + (specs.index(bar.schedule) - (len(specs) - 1) / 2) * width
        panel.bar(
            at,
            100 * bar.mean,
            0.86 * width,
            color=look.colour,
            zorder=2,
            hatch=hatch(look),
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
            panel.text(at, 0.6, "0", color=look.colour, ha="center", va="bottom", fontsize=6.5)
    panel.set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
    panel.tick_params(axis="x", length=0)
    panel.set_xlim(-0.6, len(tasks) - 0.4)
    tallest = max(max(bar.high, bar.visible or 0.0) for bar in bars)
    panel.set_ylim(0, max(panel.get_ylim()[1], 108 * tallest))
    panel.grid(axis="y")
