"""`wavefront eval`: answer the items of tasks, grade the answers, and compare runs."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli import bertscore, eval_compare
from wavefront.cli.command import Command, Group
from wavefront.cli.decode import resolve_options
from wavefront.cli.eval_options import (
    EngineOptions,
    ItemOptions,
    OwnTask,
    RunOptions,
    loader_of,
    override_preset,
    preset_options,
)
from wavefront.cli.eval_tables import print_pairs, print_runs
from wavefront.cli.options import (
    AllowUnsandboxed,
    CheckpointOptions,
    Data,
    LengthOptions,
    PlainOptions,
    SeveralStrategies,
    UsageError,
    flatten_options,
    option,
    options_set,
)
from wavefront.cli.output import ProgressBar, loading_status, say, say_json, say_note, stoppable

if TYPE_CHECKING:
    from wavefront.evaluation import Executor, Run, RunConfig

EXAMPLES = """\
Examples
wavefront eval run --task gsm -i 4 -n 96 --out runs/first
wavefront eval show runs/first
wavefront eval run --task gsm -i 4 -n 96 -s block -s wavefront --out runs/two
wavefront eval diff runs/two/gsm--block runs/two/gsm--wavefront
"""
RUN_EXAMPLES = """\
Examples
wavefront eval run --task gsm -i 4 -n 96 --out runs/first
wavefront eval run --task gsm --task code -i 4 -s block -s wavefront -o two
wavefront eval diff two/gsm--block two/gsm--wavefront
wavefront eval run --task stories -m tale -i 20 -s standard -s block -o tale
wavefront eval run --task prompts.jsonl --out runs/mine
wavefront eval run --task "examples.new_task.Fruits(most=8)" --out runs/own
"""
GENERATE_EXAMPLES = """\
Examples
wavefront eval generate --task gsm -i 4 -n 96 -s block --out runs/block
wavefront eval generate --task gsm -s block -s wavefront --out runs/gsm
wavefront eval generate --task gsm --out runs/gsm --engine ray --workers 4
wavefront eval generate --task gsm --out part0 --shard 0/4
wavefront eval grade runs/gsm
"""
GRADE_EXAMPLES = """\
Examples
wavefront eval grade runs/gsm
wavefront eval grade runs/humaneval --json
wavefront eval grade runs/own --task "examples.new_task.Fruits(most=8)"
"""
app = typer.Typer(
    cls=Group,
    help="Evaluate a model on tasks, and compare the results.",
    epilog=EXAMPLES,
    add_completion=False,
)


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """All options that determine which runs to make and how."""

    items: ItemOptions
    run: RunOptions
    length: LengthOptions
    decoding: SeveralStrategies
    model: CheckpointOptions
    engine: EngineOptions
    output: PlainOptions


@app.command(cls=Command, epilog=RUN_EXAMPLES)
@flatten_options
def run(*, allow_unsandboxed: AllowUnsandboxed = False, request: RequestOptions) -> None:
    """Answer the items of a task, and grade the answers.

    This is `wavefront eval generate` followed by `wavefront eval grade`. It prints one line per
    run: strict and flexible accuracy, each with Wilson's 95 % interval, and the cost. If you pass
    several strategies, each is compared with the first. Stories have no right answers: a judge
    model scores them, and the line shows their quality.
    """
    runs = _answer(request)
    items = request.items
    given = {"tasks": items.task or (), "data": items.data, "allow_unsandboxed": allow_unsandboxed}
    _grade(runs, request.output, **given)


@app.command(cls=Command, epilog=GENERATE_EXAMPLES)
@flatten_options
def generate(*, request: RequestOptions) -> None:
    """Answer the items of a task, without grading.

    Answers are saved as soon as they are decoded. If the command is interrupted, run it again to
    continue. A directory with a run of different settings is rejected. Several tasks or
    strategies make one run each, in directories inside --out.
    """
    for one in _answer(request):
        line = {"run": str(one.folder), "answers": len(one.answers), "expected": one.expected}
        if request.output.json:
            say_json(line)
        else:
            say(f"{len(one.answers)} of {one.expected} answers in {one.folder}")


@app.command(cls=Command, epilog=GRADE_EXAMPLES)
@flatten_options
def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a directory of runs.")],
    *,
    task: OwnTask = None,
    data: Data = "",
    allow_unsandboxed: AllowUnsandboxed = False,
    regrade: Annotated[
        bool, option(None, "", "Discard existing grades and grade again.", "--regrade")
    ] = False,
    output: PlainOptions,
) -> None:
    """Grade the answers of a run and print a summary.

    Strict and flexible grades go to grades.jsonl next to the answers, with the task version and the
    grader. Grades from a different grader are replaced. The summary goes to summary.json, in the
    format of lm-eval's results.
    """
    from wavefront.evaluation import runs_in

    given = {"data": data, "allow_unsandboxed": allow_unsandboxed, "regrade": regrade}
    _grade(runs_in(folder), output, tasks=task or (), **given)


app.command("show", cls=Command, epilog=eval_compare.SHOW_EXAMPLES)(eval_compare.show)
app.command("diff", cls=Command, epilog=eval_compare.DIFF_EXAMPLES)(eval_compare.diff)
app.command("explain", cls=Command, epilog=eval_compare.EXPLAIN_EXAMPLES)(eval_compare.explain)
app.command("merge", cls=Command, epilog=eval_compare.MERGE_EXAMPLES)(eval_compare.merge)
app.command("bertscore", cls=Command, epilog=bertscore.EXAMPLES)(bertscore.bertscore)


def _answer(request: RequestOptions) -> list[Run]:
    """Make one run for each task and strategy."""
    from wavefront.evaluation import RunConfig, generate_answers, open_run
    from wavefront.evaluation.batches import Shard
    from wavefront.evaluation.task_spec import open_task

    items, where, decoding = request.items, request.run, request.decoding
    if where.out is None:
        raise UsageError("Give the directory of the run: --out DIR.")
    request.engine.check()
    loader = loader_of(request.model, request.engine, speed=decoding.speed)
    shard = Shard.parse(where.shard)
    setups: dict[str, RunConfig] = {}
    for task in _unique("task", items.task or ["gsm"]):
        name = open_task(task).name  # reject an unknown task before the model is loaded
        preset, item_preset = preset_options(where.preset, name)
        for strategy in _unique("strategy", decoding.strategy or [None]):
            one: Any = replace(decoding, strategy=strategy)
            given = options_set(one) | options_set(request.length)
            setups[_folder_name(task, strategy, setups)] = RunConfig(
                task=task,
                ask=items.ask(**item_preset),
                options=resolve_options(override_preset(preset, given)),
                rows=where.batch_size,
                raw=where.raw,
                trace=where.trace,
                constrain=where.constrain,
                shard=shard,
                loader=loader,
                command=shlex.join(["wavefront", *sys.argv[1:]]),
            )
    homes = {where.out / name if len(setups) > 1 else where.out: s for name, s in setups.items()}
    shown = not request.output.quiet
    with stoppable(where.out), _open_engine(request.engine, loader, shown=shown) as engine:
        for home, setup in homes.items():
            with ProgressBar(f"{setup.task} {home.name}", shown=shown) as bar:
                generate_answers(engine, setup, home, progress=bar.update)
    return [open_run(home) for home in homes]


def _unique(what: str, values: list[Any]) -> list[Any]:
    twice = [one for one in values if values.count(one) > 1]
    if twice:
        raise UsageError(f"The {what} {twice[0]!r} is given twice.")
    return values


def _folder_name(task: str, strategy: str | None, taken: Collection[str]) -> str:
    """Return a new folder name for a task with a strategy, such as gsm--block-32-threshold-0.9."""
    parts = (task, re.sub(r"\w+\s*=\s*", "", strategy or "default"))
    name = "--".join(re.sub(r"[^A-Za-z0-9._=]+", "-", part).strip("-") for part in parts)
    return next(one for one in chain([name], (f"{name}-{n}" for n in count(2))) if one not in taken)


@contextlib.contextmanager
def _open_engine(options: EngineOptions, loader: Any, *, shown: bool) -> Iterator[Executor]:
    """Start the engine and load its model."""
    from wavefront.evaluation import LocalExecutor, Worker

    if options.engine == "ray":
        from wavefront.evaluation.ray_cluster import RayCluster

        with RayCluster(loader, options.resources()) as cluster:
            with loading_status(shown=shown):
                cluster.about({})
            yield cluster
        return
    worker = Worker(loader)
    with loading_status(shown=shown):
        worker.about({})
    yield LocalExecutor(worker)


def _grade(runs: list[Run], output: PlainOptions, **settings: Any) -> None:
    """Grade runs and print the results."""
    from wavefront.evaluation import grade as grade_run
    from wavefront.evaluation import open_run
    from wavefront.evaluation.paired import compare_with_first

    summaries = []
    for one in runs:
        with ProgressBar(f"grading {one.folder.name}", shown=not output.quiet) as bar:
            summaries.append(grade_run(one, progress=bar.update, **settings))
    graded = [open_run(one.folder) for one in runs]
    pairs = compare_with_first(graded)
    if output.json:
        say_json({"runs": summaries, "pairs": [pair.as_json() for pair in pairs]})
        return
    print_runs(graded)
    print_pairs(pairs)
    if not output.quiet:
        say_note(_next_command(graded))


def _next_command(runs: Sequence[Run]) -> str:
    """Return a sentence that names the command to read the answers with."""
    first = shlex.quote(str(runs[0].folder))
    note = f"Read the answers: wavefront eval show {first}"
    same = [one for one in runs[1:] if one.task_label == runs[0].task_label]
    if same:
        other = shlex.quote(str(same[0].folder))
        note += f"\nCompare two runs: wavefront eval diff {first} {other}"
    return note
