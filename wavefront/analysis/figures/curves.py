"""Quality against cost, one line per strategy: forward passes, and positions computed.

Filled marks and hollow marks tell strategies with a fixed budget from adaptive ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import Line, add_legend, draw_curve, legend_entries
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Look, Style, looks

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure

COSTS = {"forwards": "forward passes per item", "positions": "positions computed per item"}
KINDS = ("fixed budget: T = N, N/2, N/4, N/8", "adaptive: every value of a grid")


class CurvePoint(NamedTuple):
    """A setting of a strategy: its cost, and its quality with a 95 % interval."""

    forwards: float
    positions: float | None
    mean: float
    low: float
    high: float


class CurvePanel(NamedTuple):
    """One task on one canvas."""

    title: str
    ylabel: str
    lines: Mapping[str, Sequence[CurvePoint]]  # by strategy; an adaptive one has its knob in braces
    reference: float | None = None  # a level drawn across, such as the original's own texts
    log: bool = False  # draw the quality on a logarithmic axis


@lazy_figure
def curves(style: Style, panels: Sequence[CurvePanel]) -> MplFigure:
    """Draw a row for every panel: quality against forward passes and against positions."""
    figure = MplFigure(figsize=(TWO_COLUMNS, 3.2 * len(panels) + 1.0))
    figure.set_layout_engine("constrained", w_pad=0.08)
    grid = figure.subplots(len(panels), len(COSTS), sharey="row", squeeze=False)
    for row, panel in zip(grid, panels, strict=True):
        styles = _looks(list(panel.lines), style)
        for axes, (cost, words) in zip(row, COSTS.items(), strict=True):
            for family, points in panel.lines.items():
                known = [one for one in points if getattr(one, cost)]
                ordered = sorted(known, key=lambda one: getattr(one, cost))
                ends = [[getattr(one, end) for one in ordered] for end in ("mean", "low", "high")]
                line = Line([getattr(one, cost) for one in ordered], *ends)
                draw_curve(axes, line, styles[family], style=style, marks=True)
                axes.lines[-1].set_label(styles[family].label)
            if panel.reference is not None:
                axes.axhline(
                    panel.reference,
                    color=style.soft,
                    linestyle=":",
                    linewidth=1,
                )
                axes.annotate(
                    "the original's own texts",
                    (0.01, panel.reference),
                    (0, -2),
                    xycoords=("axes fraction", "data"),
                    textcoords="offset points",
                    va="top",
                    color=style.soft,
                    fontsize=6.5,
                )
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.set_xlabel(words)
            axes.grid(axis="y")
            if panel.log:
                axes.set_yscale("log", base=2)
                axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        row[0].set(ylabel=panel.ylabel, title=panel.title)
    _add_legends(figure, legend_entries(grid[0][0]), looks=_looks(list(panels[0].lines), style))
    return figure


def _add_legends(
    figure: MplFigure, entries: Mapping[str, Any], *, looks: Mapping[str, Look]
) -> None:
    """Add a legend for strategies with a fixed budget, and one for adaptive strategies."""
    both = len({_is_adaptive(family) for family in looks}) > 1
    for adaptive, (words, side) in enumerate(zip(KINDS, ("left", "right"), strict=True)):
        own = [look.label for family, look in looks.items() if _is_adaptive(family) == adaptive]
        if own:
            add_legend(
                figure,
                {label: entries[label] for label in own},
                title=words,
                title_fontsize=7,
                alignment="left",
                loc=f"outside lower {side if both else 'center'}",
                ncols=2 if both and not adaptive else 1,
                handlelength=2.8,
            )


def _looks(families: Sequence[str], style: Style) -> dict[str, Look]:
    """Return the looks: a line style for each strategy of a kind, hollow marks if adaptive."""
    found = {}
    for adaptive in (False, True):
        own = [family for family in families if _is_adaptive(family) == adaptive]
        labels = looks(families, style)
        for family, look in looks(own, style).items():
            found[family] = look._replace(hollow=adaptive, label=labels[family].label)
    return found


def _is_adaptive(family: str) -> bool:
    return "{" in family
