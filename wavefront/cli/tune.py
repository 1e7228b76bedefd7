"""`wavefront tune`: prompts with answers in, a strategy out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli.eval_options import EngineOptions, loader_of
from wavefront.cli.evaluate import Accept, stoppable
from wavefront.cli.options import DATA, ModelOptions, option
from wavefront.cli.output import say, say_json
from wavefront.cli.paper import progress_bar

EXAMPLES = """\
Examples
wavefront tune boolean_expressions -n 48
wavefront tune prompts.jsonl -n 128 --device cuda --items 400
wavefront tune gsm --candidate "block(size=16)" --candidate "tide(horizon=64)"
wavefront tune gsm --candidate "wavefront(size=8, radius=2) | eos=defer, steps=32"
wavefront tune gsm --max-forwards 20
"""


def tune(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TASK|FILE",
            help="A task, or a JSONL file of objects with prompt, and answer or target.",
        ),
    ],
    *,
    candidate: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            'A strategy to try, options of the decode after a bar: "block(size=8) | eos=defer"; '
            "may be given again. By default a list of waves, blocks and tides.",
            "--candidate",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            "What it is compared with, the first being the base of the choice; may be given "
            "again. By default block(size=8) and the default wavefront.",
            "--baseline",
        ),
    ] = None,
    max_forwards: Annotated[
        float | None,
        option(None, "X", "Choose the most right answers with at most so many.", "--max-forwards"),
    ] = None,
    forward_cost: Annotated[
        float | None,
        option(None, "X", "Points of percent that a forward is worth.", "--forward-cost"),
    ] = None,
    items: Annotated[
        int | None,
        option(None, "N", "Both halves; by default 24, or all of a file.", "--items", "-i"),
    ] = None,
    kind: Annotated[
        str,
        option(None, "WORD", "What the answers of a file are: number, choice, yes_no, text, ..."),
    ] = "",
    places: Annotated[
        int, option(None, "N", "Of the canvas; by default 64.", "--max-new-tokens", "-n")
    ] = 64,
    steps: Annotated[
        int | None, option(None, "T", "To fill it in; by default N.", "--steps", "-t")
    ] = None,
    seed: Annotated[int, option(None, "N", "Of the items and the halves; by default 0.")] = 0,
    batch_size: Annotated[
        int, option(None, "N", "Items to decode at once; by default 8.", "--batch-size", "-b")
    ] = 8,
    style: Annotated[str, option(None, "WORD", "bare (the default) or paper.", "--style")] = "bare",
    out: Annotated[
        Path | None, option(None, "DIR", "Where files go; by default tuned/NAME.", "--out", "-o")
    ] = None,
    data: Annotated[str, option(None, "DIR", DATA)] = "",
    accept: Accept = False,
    as_json: Annotated[bool, option(None, "", "The choice as JSON.", "--json")] = False,
    quiet: Annotated[bool, option(None, "", "No progress.", "--quiet", "-q")] = False,
    model: ModelOptions,
) -> None:
    """Find the strategy that suits your prompts, and see what it is worth.

    Half of the items choose, by default the fewest forwards among the strategies that are not shown
    to have fewer right answers than the base. The other half shows the choice beside the bases,
    item by item. The choice is printed last, ready to paste; tables, a plot of right answers
    against forwards and all answers go into a directory. Stopped by anything, the same command
    goes on.
    """
    from wavefront.core.errors import check_choice
    from wavefront.evaluation.trials import Runner, Scale
    from wavefront.evaluation.tune import BASES, TRIES, Objective
    from wavefront.evaluation.tune import tune as run
    from wavefront.tasks.base import STYLES

    check_choice("style", style, STYLES)
    is_file = what.endswith((".jsonl", ".json")) or "/" in what
    task = f"jsonl(path={what!r}, answers={kind!r})" if is_file else what
    wanted = Objective(max_forwards=max_forwards, forward_cost=forward_cost)
    many = items if items is not None or is_file else 24
    home = out or Path("tuned") / Path(what).stem
    with stoppable(home), progress_bar(shown=not quiet) as progress:
        runner = Runner(
            name="tune",
            scale=Scale(tasks=(task,), items=many, length=places, steps=steps, rows=batch_size,
                        style=style),  # pyright: ignore[reportArgumentType]
            folder=home,
            loader=loader_of(model, EngineOptions()),
            items_seed=seed,
            data=data,
            allow_unsandboxed=accept,
            command=shlex.join(["wavefront", *sys.argv[1:]]),
            progress=progress,
        )  # fmt: skip
        runner.check()
        progress("loading the model", 0.0)
        found = run(runner, candidate or TRIES, bases=baseline or BASES, objective=wanted)
        progress("drawing", 1.0)
        written = found.write(home)
    if as_json:
        say_json(found.numbers["chosen"])
    else:
        say(found.markdown().rstrip())
        say(f"\n{found.numbers['chosen']['command']}")
    print(f"{len(written)} files in {home}", file=sys.stderr)
