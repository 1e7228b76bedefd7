"""The cost of a step against length and batch size, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import Line, add_legend, draw_curve, spread_log_x
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Look, Style

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

TITLES = {"length": "one row", "batch": "rows together"}
AXES = {"length": "positions of the canvas", "batch": "rows of the batch"}
_LOOKS = {"exact": ("blue", "^"), "cached": ("green", "o")}
_CACHES = (
    ("ink", "v"),
    ("vermilion", "s"),
    ("blue", "^"),
    ("green", "o"),
    ("purple", "D"),
    ("orange", "X"),
    ("sky", "P"),
)


class ScalingCurve(NamedTuple):
    """Milliseconds per step at every size, with quartiles, lower bound and fitted exponent."""

    subject: str
    against: str  # length or batch
    sizes: Sequence[float]
    ms: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    floor_ms: Sequence[float]
    exponent: float | None = None


@lazy_figure
def scaling(style: Style, curves: Sequence[ScalingCurve]) -> MplFigure:
    """Draw one panel per kind of size with logarithmic axes. Dotted lines are lower bounds."""
    sides = list(dict.fromkeys(curve.against for curve in curves))
    figure = MplFigure(figsize=(TWO_COLUMNS if len(sides) > 1 else TWO_COLUMNS / 2 + 0.4, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.08)
    panels = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
    entries: dict[str, Any] = {}
    for panel, side in zip(panels, sides, strict=True):
        for curve in (curve for curve in curves if curve.against == side):
            look = _look(curve.subject, style)
            draw_curve(
                panel,
                Line(curve.sizes, curve.ms, curve.low, curve.high),
                look,
                style=style,
                marks=True,
            )
            entries.setdefault(f"{curve.subject} step", panel.lines[-1])
            (floor,) = panel.plot(curve.sizes, curve.floor_ms, color=look.colour, linestyle=":")
            floor.set_linewidth(0.9)
            entries.setdefault(f"floor, {curve.subject}", floor)
            _exponent(panel, curve, look)
        _axes(
            panel,
            sorted({size for curve in curves if curve.against == side for size in curve.sizes}),
        )
        panel.set(title=TITLES.get(side, side), xlabel=AXES.get(side, side))
    panels[0].set_ylabel("ms a step")
    add_legend(figure, entries)
    return figure


@lazy_figure
def throughput(style: Style, curves: Sequence[ScalingCurve]) -> MplFigure:
    """Draw tokens per second against batch size, at one token per row and step.

    Dotted lines are the maximum that the lower bounds allow.
    """
    figure = MplFigure(figsize=(TWO_COLUMNS / 2 + 0.4, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.08)
    panel = figure.subplots()
    entries: dict[str, Any] = {}
    curves = [curve for curve in curves if curve.against == "batch"]
    for curve in curves:
        look = _look(curve.subject, style)
        # The low quartile of the time is the high quartile of the rate.
        rate, low, high, most = (
            [1000 * size / time for size, time in zip(curve.sizes, times, strict=True)]
            for times in (curve.ms, curve.high, curve.low, curve.floor_ms)
        )
        draw_curve(panel, Line(curve.sizes, rate, low, high), look, style=style, marks=True)
        entries.setdefault(f"{curve.subject} step", panel.lines[-1])
        (above,) = panel.plot(curve.sizes, most, color=look.colour, linestyle=":", linewidth=0.9)
        entries.setdefault(f"at its floor, {curve.subject}", above)
    _axes(panel, sorted({size for curve in curves for size in curve.sizes}))
    panel.set(xlabel=AXES["batch"], ylabel="tokens a second")
    add_legend(figure, entries)
    return figure


def _look(subject: str, style: Style) -> Look:
    hue, mark = _LOOKS.get(subject, ("grey", "v"))
    return Look(subject, style.hues[hue], mark, "-", False)


def _exponent(panel: Axes, one: ScalingCurve, look: Look) -> None:
    if one.exponent is None:
        return
    panel.annotate(
        f"∝ x$^{{{one.exponent:.2f}}}$",
        (one.sizes[-1], one.ms[-1]),
        xytext=(-4, 6),
        textcoords="offset points",
        color=look.colour,
        ha="right",
        va="bottom",
        fontsize=7,
    )


def _axes(panel: Axes, sizes: Sequence[float]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(FixedLocator(list(sizes)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panel.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    panel.margins(y=0.14)
    panel.grid(axis="y")


class Trade(NamedTuple):
    """A share of correct answers in [0, 1] with its 95 % interval, and its cost in forwards."""

    cost: float
    mean: float
    low: float
    high: float


@lazy_figure
def trade(style: Style, groups: Mapping[str, Mapping[str, Sequence[Trade]]]) -> MplFigure:
    """Draw correct answers against cost, one panel per group of tasks and one line per cache.

    A cache with a single point is the baseline, drawn as a horizontal line.
    """
    figure = MplFigure(figsize=(TWO_COLUMNS, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.08)
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    names = list(dict.fromkeys(name for lines in groups.values() for name in lines))
    entries: dict[str, Any] = {}
    for panel, (group, lines) in zip(panels, groups.items(), strict=True):
        ordered_lines = {name: sorted(lines[name]) for name in names if name in lines}
        places = spread_log_x([[one.cost for one in line] for line in ordered_lines.values()])
        for (name, ordered), at in zip(ordered_lines.items(), places, strict=True):
            number = names.index(name)
            hue, mark = _CACHES[number % len(_CACHES)]
            look = Look(name, style.hues[hue], mark, "-", number >= len(_CACHES))
            columns = [[100 * getattr(one, n) for one in ordered] for n in ("mean", "low", "high")]
            line = Line(at, *columns)
            if len(ordered) == 1:
                panel.axhline(columns[0][0], color=look.colour, linewidth=0.7, linestyle=":")
            draw_curve(panel, line, look, style=style, marks=True)
            entries.setdefault(name, panel.lines[-1])
        costs = [one.cost for line in lines.values() for one in line]
        panel.set_xscale("log", base=2)
        ticks = [2**n for n in range(-2, 12) if min(costs) / 1.6 <= 2**n <= 1.6 * max(costs)]
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        panel.set(title=group, xlabel="cost (full forwards an answer)")
        panel.grid(axis="y")
    panels[0].set_ylabel("correct answers (%)")
    add_legend(figure, entries)
    return figure
