"""Parts of several figures: lines with intervals, integer axes, frames, legends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wavefront.analysis.figures.style import DRAWABLE, Look, Style

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.ticker import FixedLocator, MaxNLocator


class Line(NamedTuple):
    """Points of a line, with an optional interval around each."""

    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None


def mean_by_item(row: Any, x: Any, value: Any) -> Line:
    """Return the mean of `value` over items at every x, with a 95 % interval over items.

    Events of one item are not independent, so each item counts once, by its own mean.
    """
    rows, places, values = (np.asarray(one) for one in (row, x, value))
    pairs, group = np.unique(np.stack([places, rows], 1), axis=0, return_inverse=True)
    count = np.bincount(group.ravel(), minlength=len(pairs))
    means = np.bincount(group.ravel(), values.astype(float), len(pairs)) / np.maximum(count, 1)
    at = np.unique(pairs[:, 0])
    of = [means[pairs[:, 0] == one] for one in at]
    middle = np.array([one.mean() for one in of])
    # One item has no spread.
    reach = [1.96 * one.std(ddof=1) / len(one) ** 0.5 if len(one) > 1 else 0.0 for one in of]
    return Line(at, middle, middle - np.array(reach), middle + np.array(reach))


def draw_curve(panel: Axes, line: Line, look: Look, *, style: Style, marks: bool = False) -> None:
    """Draw a line with a band, or with marks and bars if there are few points."""
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    panel.plot(
        x,
        y,
        color=look.colour,
        linestyle=look.dash,
        marker=look.mark if marks else "",
        markerfacecolor=style.paper if look.hollow else look.colour,
        markeredgecolor=look.colour,
        zorder=3,
    )
    if line.low is None or line.high is None:
        return
    low, high = np.asarray(line.low, float), np.asarray(line.high, float)
    if marks:
        panel.vlines(x, low, high, color=look.colour, linewidth=0.8, zorder=2)
    else:
        panel.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0, zorder=1)


def count_axis(axis: Any, last: int, *, first: int = 1, parts: int = 4) -> None:
    """Set ticks at the ends and at equal parts between them, if those are integers."""
    if last >= parts and last % parts == 0:
        inner = [last * part // parts for part in range(1, parts + 1)]
        axis.set_major_locator(FixedLocator([first, *inner]))
    else:
        axis.set_major_locator(MaxNLocator(parts, integer=True, min_n_ticks=3))


def add_frame(panel: Axes, style: Style) -> None:
    """Draw a faint frame around an image panel."""
    panel.spines[["top", "right"]].set_visible(True)
    for spine in panel.spines.values():
        spine.set_color(style.faint)


def spread_log_x(lines: Sequence[Sequence[float] | np.ndarray]) -> list[np.ndarray]:
    """Return the x of several lines on a log axis, moved so that their whiskers do not overlap.

    Neighbours are at least `gap` apart, and the sum of squared moves is the least possible: a
    monotone regression, where points that would overlap move apart around their mean.
    """
    x = np.log(np.concatenate([np.asarray(line, float) for line in lines]))
    order = np.argsort(x, kind="stable")  # of equal points, the first line is the leftmost
    gap = max(math.log(1.035), 0.016 * float(np.ptp(x)))
    groups: list[tuple[float, int]] = []  # mean and size of points that are exactly `gap` apart
    for value in x[order] - gap * np.arange(len(x)):
        mean, size = float(value), 1
        while groups and groups[-1][0] >= mean:
            before, count = groups.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        groups.append((mean, size))
    moved = np.empty_like(x)
    means, sizes = [mean for mean, _ in groups], [size for _, size in groups]
    moved[order] = np.repeat(means, sizes) + gap * np.arange(len(x))
    return np.split(np.exp(moved), np.cumsum([len(line) for line in lines])[:-1])


def legend_entries(panel: Axes) -> dict[str, Any]:
    """Return the legend entries of a panel."""
    handles, labels = panel.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def add_legend(figure: MplFigure, entries: Mapping[str, Any], **more: Any) -> None:
    """Add one legend below all panels. A tuple of handles is shown as one swatch."""
    figure.legend(
        list(entries.values()),
        list(entries),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.1)},
        **{
            "loc": "outside lower center",
            "columnspacing": 1.8,
            "handlelength": 2.0,
            "ncols": _columns(list(entries), 72 * figure.get_size_inches()[0]),
            **more,
        },
    )


def _columns(labels: Sequence[str], room: float) -> int:
    """Return how many legend columns fit into `room` points, filled column by column."""
    for columns in range(len(labels), 1, -1):
        deep, extra = divmod(len(labels), columns)
        sizes = [deep + (number < extra) for number in range(columns)]
        starts = [sum(sizes[:number]) for number in range(columns)]
        parts = [labels[at : at + size] for at, size in zip(starts, sizes, strict=True)]
        if sum(4.1 * max(map(len, part)) + 34 for part in parts) <= room:
            return columns
    return 1
