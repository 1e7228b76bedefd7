"""`wavefront answers`, `wavefront grade` and `wavefront eval`: a task asked, and graded."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli.decode import EOS, settled
from wavefront.cli.eval_options import (
    AskOptions,
    EngineOptions,
    RunOptions,
    SeveralOptions,
    loader_of,
    over,
    preset_of,
)
from wavefront.cli.eval_tables import print_pairs, print_runs
from wavefront.cli.option_groups import given
from wavefront.cli.options import (
    DATA,
    LengthOptions,
    ModelOptions,
    PlainOptions,
    UsageError,
    option,
)
from wavefront.cli.output import say, say_json, stderr
from wavefront.viewer import can_animate

if TYPE_CHECKING:
    from wavefront.evaluation import Executor, Run, RunConfig

ANSWERS_EXAMPLES = """\
Examples
wavefront answers --task gsm --items 100 -s block -n 128 --out runs/block
wavefront answers --task gsm -s block -s wavefront -n 128 --out runs/gsm
wavefront answers --task gsm --out runs/gsm --engine ray --workers 4 --gpus-per-worker 1
wavefront answers --task gsm --out part0 --shard 0/4
wavefront grade runs/gsm
"""
GRADE_EXAMPLES = """\
Examples
wavefront grade runs/gsm
wavefront grade runs/humaneval --json
"""
EVAL_EXAMPLES = """\
Examples
wavefront eval --task gsm --items 50 -n 128 --out runs/first
wavefront eval --task gsm --task navigate -s block -s wavefront -n 128 --out runs/two
wavefront diff runs/two/gsm--block runs/two/gsm--wavefront
"""
Accept = Annotated[
    bool,
    option(
        "Items",
        "",
        "Run code that the model wrote also where there is no sandbox. It can do to this machine "
        "whatever you can.",
        "--i-accept-unsandboxed",
    ),
]
Show = Callable[[float, int], None]


def answers(
    *,
    ask: AskOptions,
    where: RunOptions,
    length: LengthOptions,
    decoding: SeveralOptions,
    model: ModelOptions,
    engine: EngineOptions,
    output: PlainOptions,
) -> None:
    """Ask a model the items of a task, and write down its answers; nothing is graded.

    Every answer is on the disk before the next. Stopped by anything, the same command goes on; a
    run of another configuration is refused. Several tasks or strategies make a run each, in
    directories inside --out.
    """
    made = _produce(ask, where, length, decoding, model=model, engine=engine, output=output)
    for run in made:
        line = {"run": str(run.folder), "answers": len(run.answers), "expected": run.expected}
        if output.json:
            say_json(line)
        else:
            say(f"{len(run.answers)} of {run.expected} answers in {run.folder}")


def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a directory of runs.")],
    *,
    data: Annotated[str, option("Items", "DIR", DATA)] = "",
    accept: Accept = False,
    again: Annotated[
        bool, option("Items", "", "Forget the grades that are there.", "--again")
    ] = False,
    output: PlainOptions,
) -> None:
    """Grade the answers of a run, and sum it up.

    Verdicts go to grades.jsonl beside the answers, strict and flexible, with the version of the
    task; the summary goes to summary.json in the shape of lm-eval's results, and is printed.
    """
    from wavefront.evaluation import runs_in

    _finish(runs_in(folder), data=data, accept=accept, again=again, output=output)


def evaluate(
    *,
    ask: AskOptions,
    accept: Accept = False,
    where: RunOptions,
    length: LengthOptions,
    decoding: SeveralOptions,
    model: ModelOptions,
    engine: EngineOptions,
    output: PlainOptions,
) -> None:
    """Ask, grade and sum up, in one go: `wavefront answers`, then `wavefront grade`.

    Prints a line for each run: right answers with Wilson's 95 % interval, by strict and by flexible
    reading, and what they took. Of several strategies, each is compared in pairs with the first.
    """
    made = _produce(ask, where, length, decoding, model=model, engine=engine, output=output)
    _finish(made, data=ask.data, accept=accept, output=output)


def _produce(
    ask: AskOptions,
    where: RunOptions,
    length: LengthOptions,
    decoding: SeveralOptions,
    *,
    model: ModelOptions,
    engine: EngineOptions,
    output: PlainOptions,
) -> list[Run]:
    from wavefront.evaluation import RunConfig, generate_answers, open_run
    from wavefront.evaluation.batches import Shard
    from wavefront.evaluation.task_spec import open_task

    if where.out is None:
        raise UsageError("Name a directory for the run: --out DIR.")
    engine.check()
    loader, shard = loader_of(model, engine), Shard.parse(where.shard)
    setups: dict[str, RunConfig] = {}
    for task in _once("task", ask.task or ["gsm"]):
        named = open_task(task).name  # a wrong one is told before the model is loaded
        own, asked = preset_of(where.preset, named)
        for strategy in _once("strategy", decoding.strategy or [None]):
            one: Any = replace(decoding, strategy=strategy)
            options = settled(over(own, given(one) | given(length)))
            setups[_name(task, strategy, setups)] = RunConfig(
                task=task,
                ask=ask.ask(**asked),
                options=options,
                rows=where.batch_size,
                raw=where.raw,
                trace=where.trace,
                shard=shard,
                loader=loader,
                command=shlex.join(["wavefront", *sys.argv[1:]]),
            )
    homes = {where.out / name if len(setups) > 1 else where.out: s for name, s in setups.items()}
    with stoppable(where.out), _opened(engine, loader, output) as worker:
        for home, setup in homes.items():
            with progress_bar(f"{setup.task} {home.name}", shown=not output.quiet) as show:
                generate_answers(worker, _ending(setup, worker), home, progress=show)
    return [open_run(home) for home in homes]


def _once(what: str, named: list[Any]) -> list[Any]:
    twice = [one for one in named if named.count(one) > 1]
    if twice:
        raise UsageError(f"The {what} {twice[0]!r} is given twice.")
    return named


def _name(task: str, strategy: str | None, taken: Collection[str]) -> str:
    """A folder's name for a task under a strategy, none of those taken."""
    parts = (task, strategy or "wavefront")
    name = "--".join(re.sub(r"[^A-Za-z0-9._=]+", "-", part).strip("-") for part in parts)
    return next(one for one in chain([name], (f"{name}-{n}" for n in count(2))) if one not in taken)


def _ending(setup: RunConfig, engine: Executor) -> RunConfig:
    """Decoding stops at the end of an answer, as in `wavefront generate`, unless told otherwise."""
    options = dict(setup.options)
    if not options.keys() & EOS and engine.about(options).options["stop_ids"]:
        options["eos"] = "stop"
    return replace(setup, options=options)


@contextlib.contextmanager
def _opened(options: EngineOptions, loader: Any, output: PlainOptions) -> Iterator[Executor]:
    """What answers, with its model loaded."""
    from wavefront.evaluation import LocalExecutor, Worker

    console = stderr()
    busy = console.is_terminal and not output.quiet
    waiting = console.status("loading the model") if busy else contextlib.nullcontext()
    if options.engine == "ray":
        from wavefront.evaluation.ray_cluster import RayCluster

        with RayCluster(loader, options.resources()) as cluster:
            with waiting:
                cluster.about({})
            yield cluster
        return
    worker = Worker(loader)
    with waiting:
        worker.about({})
    yield LocalExecutor(worker)


@contextlib.contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Say how to go on when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped. What was answered is in {out}; the same command goes on.",
              file=sys.stderr)  # fmt: skip
        raise typer.Exit(130) from None


@contextlib.contextmanager
def progress_bar(what: str, *, shown: bool) -> Iterator[Show]:
    """A bar on standard error, with the time that is left."""
    console = stderr()
    if not shown or not can_animate(console):
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    left = TimeRemainingColumn(elapsed_when_finished=True)
    with Progress(*columns, left, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _finish(
    runs: list[Run],
    *,
    data: str,
    accept: bool,
    output: PlainOptions,
    again: bool = False,
) -> None:
    """Grade runs, and print what they come to."""
    from wavefront.evaluation import grade as grade_run
    from wavefront.evaluation import open_run
    from wavefront.evaluation.paired import compare_with_first

    summaries = []
    for run in runs:
        with progress_bar(f"grading {run.folder.name}", shown=not output.quiet) as show:
            given_more = {"allow_unsandboxed": accept, "regrade": again, "progress": show}
            summaries.append(grade_run(run, data=data, **given_more))
    graded = [open_run(run.folder) for run in runs]
    pairs = compare_with_first(graded)
    if output.json:
        say_json({"runs": summaries, "pairs": [pair.as_json() for pair in pairs]})
        return
    print_runs(graded)
    print_pairs(pairs)
