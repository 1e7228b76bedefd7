"""`wavefront paper`: list and run the experiments of the paper."""

from __future__ import annotations

import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command, Group
from wavefront.cli.eval_options import loader_of
from wavefront.cli.options import (
    AllowUnsandboxed,
    CheckpointOptions,
    Data,
    ItemsSeed,
    Json,
    Quiet,
    flatten_options,
    option,
)
from wavefront.cli.output import ProgressBar, print_columns, say, say_json, stoppable
from wavefront.core.errors import install_command

EXAMPLES = """\
Examples
wavefront paper list
wavefront paper run main
wavefront paper run main --items 200 -n 128 --device cuda --out runs/main
wavefront paper run mhco -s block -s "wavefront(radius=4)" --items 64
wavefront paper run stories --paper --device cuda -b 256 --out runs/stories
wavefront paper run curves --task gsm --items 200 -n 128 --out runs/curves
wavefront paper run bertscore --task wikitext --data DIR --encoder minilm
wavefront paper run main --paper --model DIR --items 100
wavefront report experiments/main
"""
LIST_EXAMPLES = """\
Examples
wavefront paper list
wavefront paper list --json
"""
app = typer.Typer(
    cls=Group,
    help="Reproduce the experiments of the paper.",
    epilog=EXAMPLES,
    add_completion=False,
)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_experiments(*, as_json: Json = False) -> None:
    """List the experiments, their questions and what they need."""
    from wavefront import paper

    found = [paper.describe(name) for name in paper.names()]
    if as_json:
        for one in found:
            say_json(one._asdict())
    else:
        print_columns(paper.Description._fields, found)
        if find_spec("matplotlib") is None:
            print(
                f"\nTheir figures need matplotlib: {install_command('figures')}.", file=sys.stderr
            )


@app.command("run", cls=Command, epilog=EXAMPLES)
@flatten_options
def run_experiment(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="An experiment listed by `wavefront paper list`.",
            autocompletion=completion.experiments,
        ),
    ],
    *,
    paper: Annotated[
        bool,
        option(
            None,
            "",
            "Use the paper's models, benchmarks and lengths. Other options override them.",
            "--paper",
        ),
    ] = False,
    strategy: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            "Strategy to measure; repeat for several. Write {tau} for an option to try every "
            "value of its grid. Default: the experiment's.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        option(
            None,
            "NAME",
            "Task, or module.Class or FILE.jsonl for your own; repeat for several. Default: the "
            "experiment's.",
            "--task",
            complete=completion.tasks,
        ),
    ] = None,
    items: Annotated[
        int | None,
        option(None, "N", "Items per task. Default: a small number.", "--items", "-i"),
    ] = None,
    length: Annotated[
        int | None,
        option(
            None, "N", "Positions to fill. Default: the experiment's.", "--max-new-tokens", "-n"
        ),
    ] = None,
    steps: Annotated[
        int | None,
        option(None, "T", "At most this many steps. Default: one per position.", "--steps", "-t"),
    ] = None,
    given: Annotated[
        list[str] | None,
        option(
            None,
            "NAME=VALUE",
            "Decoding option for every strategy, such as temperature=0.8 or priority=entropy; "
            "repeat for several. Default: none.",
            "--option",
        ),
    ] = None,
    canvas: Annotated[
        list[int] | None,
        option(
            None,
            "K",
            "Canvas length for stories, as a multiple of --max-new-tokens; repeat for several. "
            "Default: the experiment's.",
            "--canvas",
        ),
    ] = None,
    radius: Annotated[int, option(None, "N", "Radius for measures that use one. Default: 2.")] = 2,
    seed: Annotated[int, option(None, "N", "Random seed for sampling. Default: 0.")] = 0,
    items_seed: ItemsSeed = 0,
    batch_size: Annotated[
        int | None,
        option(None, "N", "Items decoded at once. Default: 8 or fewer.", "--batch-size", "-b"),
    ] = None,
    out: Annotated[
        Path | None,
        option(None, "DIR", "Directory for the results. Default: experiments/NAME.", "--out", "-o"),
    ] = None,
    style: Annotated[
        str | None,
        option(
            None,
            "WORD",
            "paper: the paper's prompts. bare: only the question. Default: the experiment's.",
            "--style",
            complete=completion.words("bare", "paper"),
        ),
    ] = None,
    data: Data = "",
    encoder: Annotated[
        str | None,
        option(None, "NAME", "BERTScore encoder: minilm (default), roberta-large, or a directory."),
    ] = None,
    layer: Annotated[
        int | None, option(None, "N", "Encoder layer. Default: BERTScore's choice.")
    ] = None,
    allow_unsandboxed: AllowUnsandboxed = False,
    quiet: Quiet = False,
    model: CheckpointOptions,
) -> None:
    """Run an experiment on any model, and check the paper's claims.

    By default it uses the built-in model and tasks, and takes a few minutes. Such a small run
    cannot decide most claims, and summary.md says so. The output directory contains summary.md
    with a verdict on every claim, tables with the paper's numbers, figures, numbers.json, and
    run.json for `wavefront report`. If the command is interrupted, run it again to continue.
    """
    from wavefront.evaluation.protocol import parse_options
    from wavefront.evaluation.trials import Runner
    from wavefront.paper import find

    experiment = find(name)
    scale = experiment.scale(
        paper=paper,
        strategies=tuple(strategy) if strategy else None,
        tasks=tuple(task) if task else None,
        models=() if model.model else None,  # the loader's
        items=items,
        length=length,
        steps=steps,
        rows=batch_size,
        canvases=tuple(canvas) if canvas else None,
        style=style,
        options=parse_options(given) if given else None,
    )
    folder, began = out or Path("experiments") / name, time.monotonic()
    with stoppable(folder), ProgressBar(shown=not quiet) as bar:
        runner = Runner(
            name=name,
            scale=scale,
            folder=folder,
            loader=loader_of(model),
            seed=seed,
            items_seed=items_seed,
            radius=radius,
            data=data,
            encoder=encoder or ("roberta-large" if paper else "minilm"),
            layer=layer,
            allow_unsandboxed=allow_unsandboxed,
            command=shlex.join(["wavefront", *sys.argv[1:]]),
            progress=bar.set_share,
        )
        runner.check()
        bar.set_share("loading the model", 0.0)
        page = experiment.run(runner)
        bar.set_share("drawing", 1.0)
        written = page.write(folder)
    say(page.overview())
    minutes, device = (time.monotonic() - began) / 60, page.configuration.get("device")
    print(f"{name} took {minutes:.1f} minutes on {device}.", file=sys.stderr)
    print(f"{len(written)} files in {folder}; summary.md has all tables.", file=sys.stderr)
