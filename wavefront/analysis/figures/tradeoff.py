"""Correct answers against cost: one mark per setting, and the Pareto front as a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.style import DRAWABLE, ONE_COLUMN, Style, kind, label, looks
from wavefront.results.interval import TradeoffPoint, pareto_front

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.figure import Figure as MplFigure


@lazy_figure
def tradeoff(
    style: Style,
    spots: Sequence[TradeoffPoint],
    *,
    xlabel: str = "forward passes (mean over items)",
    chosen: str = "",
) -> MplFigure:
    """Draw one panel: the Pareto front as a line with names, and a ring at the chosen setting."""
    figure = MplFigure(figsize=(ONE_COLUMN + 1.6, 3.0))
    figure.set_layout_engine("constrained")
    panel = figure.subplots()
    specs = [one.name for one in spots]
    styles, best = looks(specs, style), pareto_front(spots)
    panel.step([s.cost for s in best], [100 * s.mean for s in best], where="post",
               color=style.soft, linewidth=0.9, zorder=1)  # fmt: skip
    seen: set[str] = set()
    for one in spots:
        few = len(spots) <= 6
        look, family = styles[one.name], label(one.name, specs) if few else kind(one.name)
        panel.vlines(one.cost, 100 * one.low, 100 * one.high, color=look.colour, alpha=0.35,
                     linewidth=0.8, zorder=2)  # fmt: skip
        panel.plot([one.cost], [100 * one.mean], marker=look.mark, color=look.colour, linestyle="",
                   zorder=3, label=None if family in seen else family)  # fmt: skip
        seen.add(family)
        if one.name == chosen:
            panel.plot([one.cost], [100 * one.mean], marker="o", markersize=9, fillstyle="none",
                       color=style.ink, linestyle="", zorder=4, label="chosen")  # fmt: skip
    for one in best:
        panel.annotate(label(one.name, specs), (one.cost, 100 * one.mean), xytext=(3, 4),
                       textcoords="offset points", fontsize=5.5, color=style.soft)  # fmt: skip
    panel.set(xlabel=xlabel, ylabel="correct answers (%)")
    panel.margins(x=0.12)
    panel.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=4)
    return figure
