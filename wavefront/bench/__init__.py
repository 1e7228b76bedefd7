"""Bench: measure the cost of a decoding step, its lower bound, and two reference loops.

>>> from wavefront import bench
>>> name, model, lm = bench.load_model("ripple", device="cpu")  # doctest: +SKIP
>>> report = bench.run(bench.Settings(model=model, name=name, lm=lm, quick=True))  # doctest: +SKIP

docs/speed.md explains the results. It imports `lm`, `tasks`, `results` and what those see. Start
reading at `run.py`.
"""

from wavefront.bench.advice import Advice, AdviceReport, advise
from wavefront.bench.results import (
    Curve,
    Fit,
    Report,
    Row,
    Target,
    Workload,
    fit,
    load,
    save,
    save_json,
)
from wavefront.bench.run import add_accuracies, run, ticks
from wavefront.bench.settings import ROWS, BenchModel, Settings, defaults, load_model

__all__ = [
    "ROWS",
    "Advice",
    "AdviceReport",
    "BenchModel",
    "Curve",
    "Fit",
    "Report",
    "Row",
    "Settings",
    "Target",
    "Workload",
    "add_accuracies",
    "advise",
    "defaults",
    "fit",
    "load",
    "load_model",
    "run",
    "save",
    "save_json",
    "ticks",
]
