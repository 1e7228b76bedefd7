"""Figures of traces and measures, of paper quality, in light and dark; one function a figure.

>>> from wavefront import figures, tracefile
>>> traces = {spec: tracefile.load(file) for spec, file in files.items()}  # doctest: +SKIP
>>> figures.save(figures.schedules(traces), "out", "figure1")  # doctest: +SKIP

A figure function returns a Picture, which a notebook shows and `save` writes as PNG and SVG in both
styles. Equal input makes equal files. Needs matplotlib: `pip install 'wavefront[figures]'`.
"""

from importlib.util import find_spec

from wavefront.errors import MissingExtraError

if find_spec("matplotlib") is None:
    raise MissingExtraError("Figures need matplotlib: pip install 'wavefront[figures]'.")

from wavefront.figures.accuracy import Point, accuracy
from wavefront.figures.bars import Bar, bars
from wavefront.figures.bench import Scaled, Trade, scaling, throughput, trade
from wavefront.figures.calibration import reliability
from wavefront.figures.case import case, moments
from wavefront.figures.dynamics import dynamics, frontier, heatmap, regret
from wavefront.figures.gaps import Gap, gaps
from wavefront.figures.gradient import gradient
from wavefront.figures.marks import Line, by_item
from wavefront.figures.mhco import mhco
from wavefront.figures.picture import Picture, save
from wavefront.figures.schedules import schedules
from wavefront.figures.style import DARK, LIGHT, STYLES, Style, kind
from wavefront.figures.tradeoff import Spot, front, tradeoff

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
    "Spot",
    "Style",
    "Trade",
    "accuracy",
    "bars",
    "by_item",
    "case",
    "dynamics",
    "front",
    "frontier",
    "gaps",
    "gradient",
    "heatmap",
    "kind",
    "mhco",
    "moments",
    "regret",
    "reliability",
    "save",
    "scaling",
    "schedules",
    "throughput",
    "trade",
    "tradeoff",
]
