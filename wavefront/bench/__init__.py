"""Bench: what a step costs, beside the floor of the machine and two reference loops, in one run.

>>> from wavefront import bench
>>> name, model, lm = bench.subject("ripple", device="cpu")  # doctest: +SKIP
>>> report = bench.run(bench.Settings(model=model, name=name, lm=lm, quick=True))  # doctest: +SKIP

docs/speed.md says how to read it.
"""

from wavefront.bench.results import Curve, Fit, Report, Row, Verdict, fit, load, save
from wavefront.bench.run import accurate, run, ticks
from wavefront.bench.settings import ROWS, Settings, defaults, subject

__all__ = [
    "ROWS",
    "Curve",
    "Fit",
    "Report",
    "Row",
    "Settings",
    "Verdict",
    "accurate",
    "defaults",
    "fit",
    "load",
    "run",
    "save",
    "subject",
    "ticks",
]
