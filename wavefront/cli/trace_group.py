"""`wavefront trace`: the group of the commands on traces."""

from __future__ import annotations

import typer

from wavefront.cli.commands import COMMANDS
from wavefront.cli.lazy_group import HELP, Family, help_without_command
from wavefront.cli.trace import EXAMPLES

traces = typer.Typer(
    cls=Family,
    name="trace",
    help=COMMANDS["trace"].line,
    epilog=EXAMPLES,
    add_completion=False,
    invoke_without_command=True,
    context_settings=HELP,
    rich_markup_mode="rich",
)
traces.callback()(help_without_command)
