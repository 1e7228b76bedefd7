"""Figures of traces and measures in print quality, light and dark, one function per figure.

>>> from wavefront.analysis import figures
>>> from wavefront.traces import trace_file
>>> traces = {spec: trace_file.load(file) for spec, file in files.items()}  # doctest: +SKIP
>>> figures.save(figures.strategies(traces), "out", "figure1")  # doctest: +SKIP

Each function returns a Figure. A notebook displays it, and `save` writes it as PNG and SVG in both
styles. Equal input gives equal files. Drawing needs matplotlib: `pip install 'wavefront[figures]'`.
"""

from wavefront.analysis.figures.accuracy import Point, accuracy
from wavefront.analysis.figures.bars import Bar, bars
from wavefront.analysis.figures.bench import ScalingCurve, Trade, scaling, throughput, trade
from wavefront.analysis.figures.calibration import reliability
from wavefront.analysis.figures.case import case, moments
from wavefront.analysis.figures.curves import CurvePanel, CurvePoint, curves
from wavefront.analysis.figures.differences import Gap, gaps
from wavefront.analysis.figures.dynamics import dynamics, frontier, heatmap, regret
from wavefront.analysis.figures.figure import Figure, save
from wavefront.analysis.figures.gradient import gradient
from wavefront.analysis.figures.mhco import mhco
from wavefront.analysis.figures.parts import Line, mean_by_item
from wavefront.analysis.figures.quality import QualityPanel, QualityPoint, quality
from wavefront.analysis.figures.strategies import strategies
from wavefront.analysis.figures.style import DARK, DRAWABLE, LIGHT, STYLES, Style, kind
from wavefront.analysis.figures.tradeoff import tradeoff
from wavefront.results.interval import TradeoffPoint, pareto_front

__all__ = [
    "DARK",
    "DRAWABLE",
    "LIGHT",
    "STYLES",
    "Bar",
    "CurvePanel",
    "CurvePoint",
    "Figure",
    "Gap",
    "Line",
    "Point",
    "QualityPanel",
    "QualityPoint",
    "ScalingCurve",
    "Style",
    "Trade",
    "TradeoffPoint",
    "accuracy",
    "bars",
    "case",
    "curves",
    "dynamics",
    "frontier",
    "gaps",
    "gradient",
    "heatmap",
    "kind",
    "mean_by_item",
    "mhco",
    "moments",
    "pareto_front",
    "quality",
    "regret",
    "reliability",
    "save",
    "scaling",
    "strategies",
    "throughput",
    "trade",
    "tradeoff",
]
