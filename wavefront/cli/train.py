"""`wavefront train`: the trainer of the built-in model, behind the same command."""

from __future__ import annotations

from typing import Annotated

import typer

from wavefront.cli.options import UsageError
from wavefront.core.errors import did_you_mean

VERBS = {
    "run": "train, or go on with --resume; the model is written to OUT/model",
    "tokenizer": "make the tokenizer that a run needs, from the same tasks",
    "loss": "judge a checkpoint by its loss on held-out problems",
    "export": "write the checkpoint of a run that was stopped",
    "speed": "see how fast data is made, which bounds how fast a GPU can train",
}
LISTED = "\n".join(f"{verb:<10} {meaning}" for verb, meaning in VERBS.items())
EXAMPLES = f"""\
Verbs, each with a --help of its own
{LISTED}

What a run is made of
--out DIR --tokenizer DIR      where it goes, and what it reads with
--steps N or --minutes X       how long; steps are resumed bit for bit
--init DIR                     weights to start from; by default random ones
--mixture gsm=3,navigate=1     tasks and their weights; by default all tasks
--width, --layers, --heads     the shape; by default 19 million parameters
--tokens-per-step, --buckets   rows at once, and the lengths they may have
--lr, --warmup, --decay-fraction, --optimizer, --ema

A first run on a CPU: five minutes teach how answers look, not to be right
wavefront train tokenizer --out small/tokenizer --size 320 \\
  --mixture boolean_expressions
wavefront train run --out small --tokenizer small/tokenizer --minutes 5 \\
  --mixture boolean_expressions --width 128 --layers 4 --heads 4 \\
  --mlp-width 384 --tokens-per-step 2048 --buckets 64,96 --warmup 50 \\
  --optimizer muon --workers 1
wavefront generate "not ( True ) and ( True ) is" -m small/model -n 48
"""
# From the first word on, everything belongs to the trainer; before it there is only --help.
SETTINGS = {"allow_interspersed_args": False}


def train(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="VERB", hidden=True)] = None,
) -> None:
    """Train a diffusion language model on the procedural tasks, as ripple was trained.

    A row is a question and its worked answer. A random share of the answer's places is masked, and
    the model learns to fill them. It runs on one GPU, or slowly on a CPU, and goes on where it was
    stopped.
    """
    if not arguments:
        print(context.get_help(), end="")
        raise typer.Exit(2)
    verb = arguments[0]
    if verb not in VERBS:
        listed = ", ".join(VERBS)
        raise UsageError(
            f"There is no verb {verb!r}{did_you_mean(verb, VERBS)}; there are: {listed}."
        )
    from wavefront.train.command import main

    # What it returns is about values; a command line that it cannot read does not return.
    raise typer.Exit(1 if main(arguments) else 0)
