"""`wavefront experiment` and `wavefront paper list`: the paper, a table or figure a command."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli.eval_options import loader_of
from wavefront.cli.options import (
    AllowUnsandboxed,
    CheckpointOptions,
    Data,
    ItemsSeed,
    Quiet,
    UsageError,
    flatten_options,
    option,
)
from wavefront.cli.output import ProgressBar, print_columns, say, say_json, stoppable

if TYPE_CHECKING:
    from wavefront.paper import Scale

EXAMPLES = """\
Examples
wavefront paper list
wavefront paper run main
wavefront paper run main --items 200 -n 128 --device cuda --out runs/main
wavefront paper run steps --task gsm -n 96
wavefront paper run bertscore --task wikitext --data DIR --encoder minilm
wavefront paper run main --paper --model DIR --items 100
wavefront report experiments/main
"""
LIST_EXAMPLES = """\
Examples
wavefront paper list
wavefront paper list --json
"""


@flatten_options
def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of `wavefront paper list`.")
    ] = None,
    *,
    listed: Annotated[bool, option(None, "", "List all, and leave.", "--list")] = False,
    paper: Annotated[
        bool,
        option(
            None,
            "",
            "The paper's scale: its models, benchmarks and lengths. Options given besides win.",
            "--paper",
        ),
    ] = False,
    task: Annotated[
        list[str] | None,
        option(None, "NAME", "Where items come from; may be given again.", "--task"),
    ] = None,
    items: Annotated[
        int | None, option(None, "N", "Of each task; by default a few.", "--items", "-i")
    ] = None,
    places: Annotated[
        int | None, option(None, "N", "Of the canvas.", "--max-new-tokens", "-n")
    ] = None,
    steps: Annotated[
        int | None, option(None, "T", "To fill it in; by default N, a token each.", "--steps", "-t")
    ] = None,
    items_seed: ItemsSeed = 0,
    batch_size: Annotated[
        int | None, option(None, "N", "Items to decode at once.", "--batch-size", "-b")
    ] = None,
    out: Annotated[
        Path | None,
        option(None, "DIR", "Where files go; by default experiments/NAME.", "--out", "-o"),
    ] = None,
    data: Data = "",
    encoder: Annotated[
        str | None,
        option(None, "NAME", "Of BERTScore: minilm (the default), roberta-large, a directory."),
    ] = None,
    layer: Annotated[int | None, option(None, "N", "Of the encoder.")] = None,
    allow_unsandboxed: AllowUnsandboxed = False,
    quiet: Quiet = False,
    model: CheckpointOptions,
) -> None:
    """Repeat an experiment of the paper, on any model and data, and hold it against its claims.

    By default on the embedded model with its own tasks, so that it ends in minutes; so few items
    decide little, and the page says so. Everything goes into a directory: the table beside the
    paper's numbers, figures, numbers.json, summary.md with a verdict on every claim, and run.json
    for `wavefront report`. Stopped by anything, the same command goes on.
    """
    if listed or name is None:
        if not listed:
            raise UsageError("Name an experiment; `wavefront paper list` lists them.")
        experiments()
        return
    from wavefront import paper as shelf

    chosen = shelf.find(name)
    given = {"tasks": tuple(task or ()), "items": items, "length": places, "steps": steps}
    given["rows"] = batch_size
    given["models"] = () if model.model else None
    scale = _scaled(chosen.PAPER if paper else chosen.SMALL, given)
    home = out or Path("experiments") / name
    with stoppable(home), ProgressBar(shown=not quiet) as bar:
        lab = shelf.Lab(
            name=name,
            scale=scale,
            home=home,
            loader=loader_of(model),
            seed=items_seed,
            data=data,
            encoder=encoder or ("roberta-large" if paper else "minilm"),
            layer=layer,
            allow_unsandboxed=allow_unsandboxed,
            command=shlex.join(["wavefront", *sys.argv[1:]]),
            progress=bar.set_share,
        )
        lab.check()
        bar.set_share("loading the model", 0.0)
        found = chosen.run(lab)
        bar.set_share("drawing", 1.0)
        written = found.write(home)
    say(found.markdown().rstrip())
    print(f"{len(written)} files in {home}", file=sys.stderr)


def experiments(
    *, as_json: Annotated[bool, option(None, "", "JSON objects, one per line.", "--json")] = False
) -> None:
    """List the experiments: the paper's table or figure, what is asked, and what each needs."""
    from wavefront import paper as shelf

    told = [shelf.about(name) for name in shelf.names()]
    if as_json:
        for one in told:
            say_json(one)
        return
    columns = ("name", "paper", "what", "needs")
    print_columns(columns, [[one[part] for part in columns] for one in told])


def _scaled(scale: Scale, given: dict[str, Any]) -> Scale:
    """A scale with what was given in its place."""
    changes = {name: value for name, value in given.items() if value is not None and value != ()}
    if given["models"] == ():
        changes["models"] = ()  # the one that was named
    return replace(scale, **changes)
