"""Figure 2: how often a more confident position outside the scope had to wait (MHCO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wavefront.analysis.figures.bars import Bar, add_bar_legend, draw_bars
from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.style import DRAWABLE, ONE_COLUMN, TWO_COLUMNS, Style

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure

READINGS = {
    "candidates": "outside the candidates",
    "extent": "outside their extent",
}


@lazy_figure
def mhco(style: Style, readings: Mapping[str, Sequence[Bar]]) -> MplFigure:
    """Draw bars by task and strategy, one panel per reading: "candidates" and "extent"."""
    tasks = list(dict.fromkeys(bar.task for bars in readings.values() for bar in bars))
    wide = len(tasks) > 2
    figure = MplFigure(figsize=(TWO_COLUMNS if wide else ONE_COLUMN + 0.4, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.06)
    panels = figure.subplots(1, len(readings), sharey=True, squeeze=False)[0]
    specs = list(dict.fromkeys(bar.strategy for bars in readings.values() for bar in bars))
    for panel, (reading, bars) in zip(panels, readings.items(), strict=True):
        draw_bars(panel, style, bars, specs=specs, tasks=tasks)
        panel.set_title(READINGS.get(reading, reading))
    panels[0].set_ylabel("MHCO (% of committed tokens)")
    add_bar_legend(figure, style, specs, visible="visible steps only")
    return figure
