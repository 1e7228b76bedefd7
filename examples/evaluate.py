"""Evaluate two strategies on the same items, and compare them item by item.

A run is a directory. You can stop it at any time and resume it by running the same code again.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from wavefront.evaluation import (
    Loader,
    LocalExecutor,
    RunConfig,
    Worker,
    compare_runs,
    generate_answers,
    grade,
    open_run,
)
from wavefront.tasks.base import Ask

loader = Loader(path="ripple")
engine = LocalExecutor(Worker(loader))  # `wavefront.evaluation.ray_cluster` has one for Ray
with TemporaryDirectory() as folder:
    runs = []
    for strategy in ("block(size=8)", "dsb(size=16)"):
        setup = RunConfig(
            task="boolean_expressions",
            ask=Ask(count=4, style="bare"),
            options={"strategy": strategy, "max_new_tokens": 24, "eos": "stop"},
            rows=4,
            loader=loader,
        )
        where = Path(folder) / strategy
        generate_answers(engine, setup, where)
        run = open_run(where)
        grade(run)
        runs.append(open_run(where))
    pair = compare_runs(*runs)
    print(pair.strategies, pair.comparison.first, pair.comparison.second)
    print("difference", pair.comparison.gap)
