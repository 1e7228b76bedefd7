"""`wavefront train`: the trainer of the built-in models."""

from __future__ import annotations

from typing import Annotated

import typer

from wavefront.cli.command import Command
from wavefront.cli.option_names import OPTION_NAMES
from wavefront.cli.options import UsageError
from wavefront.cli.output import stdout
from wavefront.core.errors import did_you_mean

ACTIONS = {
    "run": "train, or continue with --resume; writes the model to OUT/model",
    "adapt": "turn an autoregressive checkpoint into a diffusion model",
    "tokenizer": "train the tokenizer that a run needs, on the same tasks",
    "loss": "measure the loss of a checkpoint on held-out problems",
    "export": "write the checkpoint of an interrupted run",
    "speed": "measure how fast training data is generated",
}
LISTED = "\n".join(f"{action:<10} {meaning}" for action, meaning in ACTIONS.items())
EXAMPLES = f"""\
Actions, each with its own --help
{LISTED}

Main options of a run
--out DIR --tokenizer DIR      output directory, and the tokenizer
--steps N or --minutes X       length; runs with --steps resume bit for bit
--init DIR                     initial weights; default: random
--mixture gsm=3,navigate=1     tasks and their weights; default: all tasks
--width, --layers, --heads     shape; default: 19 million parameters
--tokens-per-step, --buckets   tokens per batch, and lengths of its rows
--lr, --warmup, --decay-fraction, --optimizer, --ema

A first run on a CPU: in five minutes it learns the format, not the answers
wavefront train tokenizer --out small/tokenizer --size 320 \\
  --mixture boolean_expressions
wavefront train run --out small --tokenizer small/tokenizer --minutes 5 \\
  --mixture boolean_expressions --width 128 --layers 4 --heads 4 \\
  --mlp-width 384 --tokens-per-step 2048 --buckets 64,96 --warmup 50 \\
  --optimizer muon --workers 1
wavefront generate "not ( True ) and ( True ) is" -m small/model -n 48

Adapt a Llama that writes its own training texts; run it again to continue
wavefront train adapt --config runs/tale.toml --original llama2.data \\
  --out tale --minutes 9
"""
app = typer.Typer(add_completion=False)


def _complete_action(incomplete: str) -> list[tuple[str, str]]:
    return [(one, meaning) for one, meaning in ACTIONS.items() if one.startswith(incomplete)]


# From the first argument on, everything belongs to the trainer.
@app.command(cls=Command, epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
def train(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ACTION", hidden=True, autocompletion=_complete_action),
    ] = None,
) -> None:
    """Train a diffusion model, or adapt an autoregressive one.

    The built-in model ripple was trained on the procedural tasks. An example is a question with a
    worked answer. A random share of the answer is masked, and the model learns to predict it.
    Training runs on one GPU, or slowly on a CPU, and can be resumed.
    """
    if not arguments:
        print(context.get_help(), end="")
        raise typer.Exit(2)
    action = arguments[0]
    if action not in ACTIONS:
        listed = ", ".join(ACTIONS)
        raise UsageError(
            f"There is no action {action!r}{did_you_mean(action, ACTIONS)}; there are: {listed}."
        )
    from wavefront.train.command import actions, run_action

    if "--help" in arguments or "-h" in arguments:
        _print_help(action)
        return

    options = [one for one in actions()[action]._actions if one.option_strings]
    context.meta[OPTION_NAMES] = {one.dest: one.option_strings[0] for one in options}
    # argparse exits with status 2 if the command line is wrong.
    run_action(arguments)


def _print_help(action: str) -> None:
    """Print the help page of an action in the style of the other commands."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from wavefront.train.command import actions

    parser, console = actions()[action], stdout()
    console.width = min(console.width, 100 if console.is_terminal else 80)
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(style="bold yellow", no_wrap=True)
    table.add_column(ratio=1)
    for one in parser._actions:
        metavar = "" if one.nargs == 0 else str(one.metavar or "")
        table.add_row(
            Text("\n".join(one.option_strings)),
            Text(metavar),
            Text((one.help or "").replace("%%", "%")),
        )
    console.print(Text(f"\n Usage: wavefront train {action} [OPTIONS]\n", "bold"))
    console.print(Text(f" {parser.description}\n"))
    console.print(Panel(table, title="Options", title_align="left", border_style="dim"))
