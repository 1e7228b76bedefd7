"""`wavefront report`: traces and runs as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli.options import Ids, option
from wavefront.cli.output import complain, say
from wavefront.core.errors import ReportError

EXAMPLES = """\
Examples
wavefront report wave.npz -o wave.html
wavefront report wave.npz block.npz -o report.html
wavefront report runs/main runs/mhco --title "Two experiments"
A trace is made by `wavefront trace record`; docs/report.md has the layout
of a run directory.
"""


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Trace files (.npz) and run directories."),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the page.")
    ] = Path("report.html"),
    title: Annotated[
        str,
        typer.Option("--title", metavar="TEXT", help="The title; by default from what is in it."),
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Whose tokenizer reads the traces; by default each brings its own texts.",
        ),
    ] = None,
    rows: Annotated[
        Ids | None,
        option(None, "N,N", "Which rows of every trace to show: 0,2. By default the first 8."),
    ] = None,
) -> None:
    """Make one HTML page of recorded decodes and of runs: tables, figures, and a player.

    Two decodes play side by side. The page needs nothing but a browser: it can be sent as it is.
    """

    for one in inputs:
        if one.exists() and output.exists() and one.samefile(output):
            raise ReportError(f"{output} is what the report is made of: give another -o.")
    from wavefront.viewer.html_report import make

    made = make(inputs, title=title, model=model, rows=rows)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(made.html, encoding="utf-8", newline="\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ReportError(f"The page cannot be written to {str(output)!r}: {reason}.") from None
    for note in made.notes:
        complain("warning", note)
    say(str(output))
