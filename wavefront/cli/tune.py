"""`wavefront tune`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.eval_options import loader_of
from wavefront.cli.options import (
    AllowUnsandboxed,
    BatchSize,
    CheckpointOptions,
    Data,
    ItemsSeed,
    Quiet,
    flatten_options,
    option,
)
from wavefront.cli.output import ProgressBar, print_results, say, say_json, stoppable

EXAMPLES = """\
Examples
wavefront tune boolean_expressions -n 48
wavefront tune prompts.jsonl -n 128 --device cuda --items 400
wavefront tune gsm --candidate "block(size=16)" --candidate rcr
wavefront tune gsm --candidate "block(selector=threshold(tau={tau}))"
wavefront tune gsm --candidate "wavefront(size=8) | eos=defer, steps=32"
wavefront tune gsm --max-forwards 20
"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def tune(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TASK|FILE",
            help="A task, module.Class for your own, or a JSONL file. Each line of a file has a "
            "prompt, and an answer or a target.",
            autocompletion=completion.graded_tasks,
        ),
    ],
    *,
    candidate: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            'Strategy to try, with decoding options after a bar: "block(size=8) | eos=defer"; '
            "repeat for several. Write {tau} for an option to try every value of its grid. "
            "Default: a list of standard, wavefront, block and tide settings.",
            "--candidate",
            complete=completion.strategies,
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            "Strategy to compare with; repeat for several. The first one is the reference. "
            "Default: the default strategy, block(size=8) and wavefront.",
            "--baseline",
            complete=completion.strategies,
        ),
    ] = None,
    max_forwards: Annotated[
        float | None,
        option(
            None,
            "X",
            "Choose the best accuracy within X forward passes per item. Default: no limit.",
        ),
    ] = None,
    forward_cost: Annotated[
        float | None,
        option(None, "X", "Accuracy points traded per forward pass. Default: none."),
    ] = None,
    items: Annotated[
        int | None,
        option(
            None,
            "N",
            "Number of items; half to choose, half to test. Default: 24, or the whole file.",
            "--items",
            "-i",
        ),
    ] = None,
    kind: Annotated[
        str,
        option(
            None,
            "WORD",
            "Kind of answer in a file: number, choice, yes_no, text, ... Default: inferred.",
        ),
    ] = "",
    max_new_tokens: Annotated[
        int, option(None, "N", "Tokens per answer. Default: 64.", "--max-new-tokens", "-n")
    ] = 64,
    steps: Annotated[
        int | None,
        option(
            None,
            "T",
            "At most this many steps per answer. Default: one per token.",
            "--steps",
            "-t",
        ),
    ] = None,
    items_seed: ItemsSeed = 0,
    batch_size: BatchSize = 8,
    style: Annotated[
        str,
        option(
            None,
            "WORD",
            "paper: the paper's prompts. bare: only the question. Default: bare.",
            complete=completion.words("bare", "paper"),
        ),
    ] = "bare",
    out: Annotated[
        Path | None,
        option(None, "DIR", "Directory for the results. Default: tuned/NAME.", "--out", "-o"),
    ] = None,
    data: Data = "",
    allow_unsandboxed: AllowUnsandboxed = False,
    as_json: Annotated[bool, option(None, "", "Print the choice as JSON.", "--json")] = False,
    quiet: Quiet = False,
    model: CheckpointOptions,
) -> None:
    """Find the strategy that suits your prompts.

    The tune half of the items is used to choose a strategy. By default this is the strategy with
    the fewest forward passes whose accuracy is not significantly below the first baseline. The
    report half is used to compare the choice with the baselines. The choice is printed last, as a
    command. Tables, a plot and all answers go to a directory. If the command is interrupted, run it
    again to continue.
    """
    from wavefront.core.errors import check_choice
    from wavefront.evaluation.task_spec import FILES
    from wavefront.evaluation.trials import Runner, Scale
    from wavefront.evaluation.tune import BASES, TRIES, Objective
    from wavefront.evaluation.tune import tune as run
    from wavefront.tasks.base import STYLES

    check_choice("style", style, STYLES)
    is_file = what.endswith(FILES) or ("/" in what and "(" not in what)
    task = f"jsonl(path={what!r}, answers={kind!r})" if is_file else what
    wanted = Objective(max_forwards=max_forwards, forward_cost=forward_cost)
    many = items if items is not None or is_file else 24
    home = out or Path("tuned") / (Path(what).stem if is_file else what.partition("(")[0])
    scale = Scale(tasks=(task,), items=many, length=max_new_tokens, steps=steps, rows=batch_size,
                  style=style)  # fmt: skip  # pyright: ignore[reportArgumentType]
    with stoppable(home), ProgressBar(shown=not quiet) as bar:
        runner = Runner(
            name="tune",
            scale=scale,
            folder=home,
            loader=loader_of(model),
            items_seed=items_seed,
            data=data,
            allow_unsandboxed=allow_unsandboxed,
            command=shlex.join(["wavefront", *sys.argv[1:]]),
            progress=bar.set_share,
        )
        runner.check()
        bar.set_share("loading the model", 0.0)
        found = run(runner, candidate or TRIES, bases=baseline or BASES, objective=wanted)
        bar.set_share("drawing", 1.0)
        written = found.write(home)
    if as_json:
        say_json(found.numbers["chosen"])
    else:
        say(f"{found.title}. Wanted: {found.configuration['wanted']}.")
        for table in found.tables:
            print_results(table)
        say(f"\nThe choice, to paste:\n{found.numbers['chosen']['command']}")
    print(f"{len(written)} files in {home}; summary.md has all tables.", file=sys.stderr)
