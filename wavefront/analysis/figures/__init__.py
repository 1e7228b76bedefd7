"""Figures of traces and measures, of paper quality, in light and dark; one function a figure.

>>> from wavefront import figures, tracefile
>>> traces = {spec: tracefile.load(file) for spec, file in files.items()}  # doctest: +SKIP
>>> figures.save(figures.strategies(traces), "out", "figure1")  # doctest: +SKIP

A figure function returns a Picture, which a notebook shows and `save` writes as PNG and SVG in both
styles. Equal input makes equal files. Needs matplotlib: `pip install 'wavefront[figures]'`.
"""

from importlib.util import find_spec

from wavefront.core.errors import MissingExtraError

if find_spec("matplotlib") is None:
    raise MissingExtraError("Figures need matplotlib: pip install 'wavefront[figures]'.")

from wavefront.analysis.figures.accuracy import Point, accuracy
from wavefront.analysis.figures.bars import Bar, bars
from wavefront.analysis.figures.bench import Scaled, Trade, scaling, throughput, trade
from wavefront.analysis.figures.calibration import reliability
from wavefront.analysis.figures.case import case, moments
from wavefront.analysis.figures.differences import Gap, gaps
from wavefront.analysis.figures.dynamics import dynamics, frontier, heatmap, regret
from wavefront.analysis.figures.figure import Picture, save
from wavefront.analysis.figures.gradient import gradient
from wavefront.analysis.figures.mhco import mhco
from wavefront.analysis.figures.parts import Line, by_item
from wavefront.analysis.figures.strategies import strategies
from wavefront.analysis.figures.style import DARK, LIGHT, STYLES, Style, kind
from wavefront.analysis.figures.tradeoff import TradeoffPoint, pareto_front, tradeoff

__all__ = [
    "DARK",
    "LIGHT",
    "STYLES",
    "Bar",
    "Gap",
    "Line",
    "Picture",
    "Point",
    "Scaled",
    "Style",
    "Trade",
    "TradeoffPoint",
    "accuracy",
    "bars",
    "by_item",
    "case",
    "dynamics",
    "frontier",
    "gaps",
    "gradient",
    "heatmap",
    "kind",
    "mhco",
    "moments",
    "pareto_front",
    "regret",
    "reliability",
    "save",
    "scaling",
    "strategies",
    "throughput",
    "trade",
    "tradeoff",
]
