"""Entropy by distance to known tokens, and how often a scope has the most confident positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import (
    Line,
    add_legend,
    draw_curve,
    legend_entries,
    spread_log_x,
)
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Style, looks
from wavefront.analysis.measures.gradient import Containment

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, NullLocator

SCOPES = {"wave": "near known text", "block": "leftmost block", "own": "own scope"}


@lazy_figure
def gradient(
    style: Style,
    entropy: Mapping[str, Line],
    containment: Mapping[str, Mapping[str, Containment]],
) -> MplFigure:
    """Draw entropy by distance, and the share of the most confident positions in each scope.

    On the left, x has the upper ends of octaves 1, 2, 3-4, 5-8, … Both panels group by decoding
    strategy. A mark shows the share that chance would give.
    """
    figure = MplFigure(figsize=(TWO_COLUMNS, 2.45))
    figure.set_layout_engine("constrained", w_pad=0.08)
    left, right = figure.subplots(1, 2)
    _draw_entropy(left, style, entropy)
    _draw_containment(right, style, containment)
    entries = legend_entries(left)
    entries["as many random positions"] = Line2D([], [], color=style.ink, linewidth=1.2)
    add_legend(figure, entries)
    return figure


def _draw_entropy(panel: Axes, style: Style, entropy: Mapping[str, Line]) -> None:
    styles = looks(list(entropy), style)
    places = spread_log_x([line.x for line in entropy.values()])
    for (spec, line), at in zip(entropy.items(), places, strict=True):
        draw_curve(panel, line._replace(x=at), styles[spec], style=style, marks=True)
        panel.lines[-1].set_label(styles[spec].label)
    last = max(float(max(line.x)) for line in entropy.values())
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator([2.0**n for n in range(12) if 2**n <= last]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if x <= 2 else f"{x / 2 + 1:g}–{x:g}")
    panel.tick_params(axis="x", labelsize=6.5)
    panel.set(xlabel="distance to the nearest known position", ylabel="mean entropy (nats)")
    panel.set_ylim(bottom=0)
    panel.set_title("entropy of masked positions")
    panel.grid(axis="y")


def _draw_containment(
    panel: Axes, style: Style, containment: Mapping[str, Mapping[str, Containment]]
) -> None:
    styles = looks(list(containment), style)
    names = [name for name in SCOPES if all(name in found for found in containment.values())]
    width = 0.8 / len(containment)
    half = 0.43 * width
    for index, (spec, found) in enumerate(containment.items()):
        for place, name in enumerate(names):
            at = place + (index - (len(containment) - 1) / 2) * width
            panel.bar(
                at,
                100 * found[name].part,
                2 * half,
                color=styles[spec].colour,
                zorder=2,
                hatch=styles[spec].hatch,
            )
            panel.hlines(
                100 * found[name].chance,
                at - half,
                at + half,
                color=style.ink,
                linewidth=1.2,
                zorder=3,
            )
    panel.set_xticks(range(len(names)), [SCOPES[name] for name in names])
    panel.tick_params(axis="x", length=0)
    panel.set_ylabel("share inside (%)")
    panel.set_ylim(0, 101)
    panel.set_title("where the most confident positions are")
    panel.grid(axis="y")
