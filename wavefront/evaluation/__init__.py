"""Evaluation: run a task on a model, grade the answers, and compare runs item by item.

A run is a directory (docs/evaluate.md). `generate_answers` writes its answers and resumes after an
interruption; `grade` adds the grades and a summary; `compare_runs`, `compare_quality` and `explain`
compare two runs. It imports `lm`, `tasks`, `analysis`, `results` and what those see. Start reading
at `answers.py`.
"""

from wavefront.evaluation.answers import RunConfig, RunProgress, generate_answers
from wavefront.evaluation.divergence import explain
from wavefront.evaluation.grades import grade
from wavefront.evaluation.merge import merge
from wavefront.evaluation.paired import compare_quality, compare_runs
from wavefront.evaluation.run import Run, open_run, runs_in
from wavefront.evaluation.worker import Executor, Loader, LocalExecutor, Worker

__all__ = [
    "Executor",
    "Loader",
    "LocalExecutor",
    "Run",
    "RunConfig",
    "RunProgress",
    "Worker",
    "compare_quality",
    "compare_runs",
    "explain",
    "generate_answers",
    "grade",
    "merge",
    "open_run",
    "runs_in",
]
