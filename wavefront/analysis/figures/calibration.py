"""Figure 3: reliability diagrams, confidence against accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import add_legend
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Look, Style, looks
from wavefront.analysis.measures.calibration import Reliability

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import LogLocator


SEEN = 1e-3  # a smaller difference of a share is not visible in a diagram


@lazy_figure
def reliability(style: Style, measured: Mapping[str, Reliability]) -> MplFigure:
    """Draw one diagram per strategy, and below it the number of tokens in every bin.

    Strategies whose diagrams would look the same share one.
    """
    groups: dict[str, list[str]] = {}
    for spec, found in measured.items():
        same = (one for one in groups if _is_same(measured[one], found))
        groups.setdefault(next(same, spec), []).append(spec)
    columns = len(groups)
    each = TWO_COLUMNS / max(columns, 3)
    figure = MplFigure(figsize=(each * columns + (0.2 if columns < 3 else 0), each + 0.7))
    figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.02)
    grid = figure.subplots(
        2, columns, sharex=True, sharey="row", squeeze=False, height_ratios=(3.6, 1)
    )
    styles = looks(list(measured), style)
    for index, (spec, specs) in enumerate(groups.items()):
        found = measured[spec]
        _draw_diagram(grid[0, index], style, found, look=styles[spec])
        grid[0, index].set_title(
            "\n= ".join(styles[same].label for same in specs), color=styles[spec].colour
        )
        _draw_counts(grid[1, index], found, styles[spec])
    grid[0, 0].set_ylabel("share of tokens")
    grid[1, 0].set_ylabel("tokens")
    dashes = {"color": style.soft, "linewidth": 0.8, "linestyle": (0, (3, 2))}
    entries = {
        "was right": tuple(Patch(color=styles[spec].colour) for spec in groups),
        "mean confidence": Line2D([], [], color=style.ink, linewidth=1.2),
        "perfectly calibrated": Line2D([], [], **dashes),
    }
    add_legend(figure, entries)
    return figure


def _is_same(one: Reliability, other: Reliability) -> bool:
    """Return whether two diagrams would look the same: equal counts, and means within SEEN."""
    if not np.array_equal(np.asarray(one.count), np.asarray(other.count)):
        return False
    pairs = ((one.confidence, other.confidence), (one.accuracy, other.accuracy))
    return all(
        np.allclose(np.asarray(a), np.asarray(b), rtol=0, atol=SEEN, equal_nan=True)
        for a, b in pairs
    )


def _draw_diagram(panel: Axes, style: Style, found: Reliability, *, look: Look) -> None:
    edges = np.asarray(found.edges, float)
    full = np.asarray(found.count) > 0
    right, sure = np.asarray(found.accuracy, float)[full], np.asarray(found.confidence, float)[full]
    left, width = edges[:-1][full], np.diff(edges)[full]
    panel.bar(left + width / 2, right, 0.9 * width, color=look.colour, zorder=2)
    # The gap between accuracy and confidence.
    panel.bar(
        left + width / 2,
        sure - right,
        0.9 * width,
        bottom=right,
        color=style.soft,
        alpha=0.25,
        zorder=3,
    )
    panel.hlines(
        sure, left + 0.05 * width, left + 0.95 * width, color=style.ink, linewidth=1.2, zorder=4
    )
    panel.plot((0, 1), (0, 1), color=style.soft, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    panel.set(xlim=(0, 1), ylim=(0, 1.02))
    panel.text(
        0.05,
        0.96,
        f"ECE {found.ece:.3f}\nMCE {found.mce:.3f}\nn = {found.total:,}",
        va="top",
        transform=panel.transAxes,
        fontsize=6.5,
        linespacing=1.35,
        zorder=5,
    )


def _draw_counts(panel: Axes, found: Reliability, look: Look) -> None:
    edges, count = np.asarray(found.edges, float), np.asarray(found.count, float)
    panel.bar(
        edges[:-1] + np.diff(edges) / 2,
        np.maximum(count, 0.5),
        0.9 * np.diff(edges),
        color=look.colour,
        alpha=0.55,
        linewidth=0,
    )
    panel.set_yscale("log")
    panel.set_ylim(0.7, 3 * max(1.0, float(count.max())))
    panel.yaxis.set_major_locator(LogLocator(base=100))
    panel.set_xlabel("confidence")
    panel.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
    panel.tick_params(axis="y", which="minor", left=False)
