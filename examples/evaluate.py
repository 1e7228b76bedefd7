"""Evaluate two strategies on the same items, and compare them item by item.

A run is a directory. You can stop it at any time and resume it by running the same code again.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from wavefront.evaluation import Loader, Local, Setup, Worker, difference, grade, open_run, produce
from wavefront.tasks.base import Ask

loader = Loader(path="ripple")
engine = Local(Worker(loader))  # for Ray, see `wavefront.evaluation.ray_cluster`
with TemporaryDirectory() as folder:
    runs = []
    for strategy in ("block(size=8)", "dsb(size=16)"):
        setup = Setup(
            task="boolean_expressions",
            ask=Ask(count=4, style="bare"),
            options={"strategy": strategy, "max_new_tokens": 24, "eos": "stop"},
            rows=4,
            loader=loader,
        )
        where = Path(folder) / strategy
        produce(engine, setup, where)
        run = open_run(where)
        grade(run)
        runs.append(open_run(where))
    pair = difference(*runs)
    print(pair.strategies, pair.comparison.first, pair.comparison.second)
    print("difference", pair.comparison.gap)
