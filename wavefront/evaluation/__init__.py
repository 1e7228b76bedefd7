"""Evaluation: answers written as they come, graded apart, summed up, compared in pairs.

A run is a directory (docs/evaluate.md). `produce` writes its answers and goes on where it was
stopped; `grade` adds the verdicts and a summary; `difference` and `explain` compare two runs.
"""

from wavefront.evaluation.answers import Setup, Tally, produce
from wavefront.evaluation.divergence import explain
from wavefront.evaluation.executor import Engine, Local
from wavefront.evaluation.grades import grade
from wavefront.evaluation.merge import merge
from wavefront.evaluation.paired import difference
from wavefront.evaluation.run import Run, open_run, runs_in
from wavefront.evaluation.worker import Loader, Worker

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
