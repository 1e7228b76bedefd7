"""Figure 1: when each strategy decides each position, from real decodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from wavefront.analysis.figures.answer_arrays import answer_length, read_answer
from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import add_frame, add_legend, count_axis
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Look, Style, looks
from wavefront.traces.trace import Trace

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.patches import Patch


@lazy_figure
def strategies(style: Style, traces: Mapping[str, Trace], row: int = 0) -> MplFigure:
    """Draw one panel per strategy: answer positions across, steps down. `traces` is by spec."""
    columns = len(traces)
    figure = MplFigure(figsize=(TWO_COLUMNS, 0.62 + TWO_COLUMNS / max(3, columns)))
    figure.set_layout_engine("constrained", w_pad=0.05, wspace=0.03)
    across = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
    styles = looks(list(traces), style)
    for panel, (spec, trace) in zip(across, traces.items(), strict=True):
        draw_strategy(panel, style, trace, row=row, look=styles[spec])
    across[0].set_ylabel("step")
    _explain(figure, style, styles.values())
    return figure


def draw_strategy(panel: Axes, style: Style, trace: Trace, *, row: int, look: Look) -> None:
    """Draw the panel of one strategy."""
    seen = read_answer(trace, row)
    steps, places = seen.known.shape
    image = np.broadcast_to(to_rgb(style.paper), (steps, places, 3)).copy()
    image[seen.known] = to_rgb(style.known)
    image[seen.candidates & ~seen.known] = tint(look.colour, style)
    image[seen.commit] = to_rgb(look.colour)
    panel.imshow(image, aspect="auto", extent=(0.5, places + 0.5, steps + 0.5, 0.5))
    panel.set_title(look.label, color=look.colour)
    panel.set_xlabel("position in the answer")
    count_axis(panel.xaxis, places)
    count_axis(panel.yaxis, steps)
    add_frame(panel, style)
    end = answer_length(trace, seen)
    if end < places:
        panel.axvline(end + 0.5, color=style.ink, linewidth=0.6, linestyle=(0, (1, 2)))
        panel.text(
            1.0,
            1.01,
            "end tokens",
            fontsize=6,
            color=style.soft,
            ha="right",
            va="bottom",
            transform=panel.transAxes,
        )


def tint(colour: str, style: Style) -> np.ndarray:
    """Mix a colour with the background."""
    share = 0.30 if style.name == "light" else 0.45
    return share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(style.paper))


def _explain(figure: MplFigure, style: Style, styles: Iterable[Look]) -> None:
    """Add one legend for all panels."""
    colours = [look.colour for look in styles]
    masked = Patch(facecolor=style.paper, edgecolor=style.soft, linewidth=0.5)
    entries = {
        "decided at this step": tuple(Patch(color=colour) for colour in colours),
        "in scope": tuple(Patch(color=tuple(tint(colour, style))) for colour in colours),
        "decided before": Patch(color=style.known),
        "masked, out of scope": masked,
    }
    add_legend(figure, entries)
