"""Evaluation: answers written as they come, graded apart, summed up, compared in pairs.

A run is a directory (docs/evaluate.md). `produce` writes its answers and goes on where it was
stopped; `grade` adds the verdicts and a summary; `difference` and `explain` compare two runs.
"""

from wavefront.evaluate.answers import Setup, Tally, produce
from wavefront.evaluate.engine import Engine, Local
from wavefront.evaluate.grades import grade
from wavefront.evaluate.merge import merge
from wavefront.evaluate.pairs import difference
from wavefront.evaluate.partings import explain
from wavefront.evaluate.run import Run, open_run, runs_in
from wavefront.evaluate.worker import Loader, Worker

__all__ = [
    "Engine",
    "Loader",
    "Local",
    "Run",
    "Setup",
    "Tally",
    "Worker",
    "difference",
    "explain",
    "grade",
    "merge",
    "open_run",
    "produce",
    "runs_in",
]
