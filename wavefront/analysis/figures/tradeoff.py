"""Right answers against what they cost, a mark for each setting, the best of them joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from wavefront.analysis.figures.figure import picture
from wavefront.analysis.figures.style import ONE_COLUMN, Style, kind, label, looks


class TradeoffPoint(NamedTuple):
    """A setting: its cost, and its share of right answers in [0, 1] with the 95 % interval."""

    name: str  # a spec
    cost: float
    mean: float
    low: float
    high: float


def pareto_front(points: Sequence[TradeoffPoint]) -> list[TradeoffPoint]:
    """Return the settings that no other beats at their cost or below, cheapest first."""
    kept: list[TradeoffPoint] = []
    for one in sorted(points, key=lambda point: (point.cost, -point.mean)):
        if not kept or one.mean > kept[-1].mean:
            kept.append(one)
    return kept


@picture
def tradeoff(
    style: Style, points: Sequence[TradeoffPoint], *, xlabel: str = "forwards (mean over items)",
    chosen: str = "",
) -> Figure:  # fmt: skip
    """Draw one panel: the Pareto front as a line, with names; the chosen setting is ringed."""
    figure = Figure(figsize=(ONE_COLUMN + 1.6, 3.0))
    figure.set_layout_engine("constrained")
    panel = figure.subplots()
    specs = [one.name for one in points]
    worn, best = looks(specs, style), pareto_front(points)
    panel.step([s.cost for s in best], [100 * s.mean for s in best], where="post",
               color=style.soft, linewidth=0.9, zorder=1)  # fmt: skip
    seen: set[str] = set()
    for one in points:
        few = len(points) <= 6
        look, family = worn[one.name], label(one.name, specs) if few else kind(one.name)
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
    panel.set(xlabel=xlabel, ylabel="right answers (%)")
    panel.margins(x=0.12)
    panel.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=4)
    return figure
