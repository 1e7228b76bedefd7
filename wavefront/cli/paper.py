"""`wavefront paper`: the experiments of the paper."""

from __future__ import annotations

import typer

from wavefront.cli import experiment, measure
from wavefront.cli.command import Command, Group

app = typer.Typer(
    cls=Group,
    help="Reproduce the experiments of the paper.",
    epilog=experiment.EXAMPLES,
    add_completion=False,
)
app.command("list", cls=Command, epilog=experiment.LIST_EXAMPLES)(experiment.experiments)
app.command("run", cls=Command, epilog=experiment.EXAMPLES)(experiment.experiment)
app.command("measure", cls=Command, epilog=measure.EXAMPLES)(measure.measure)
