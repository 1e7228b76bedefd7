"""`wavefront report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.options import Ids, option
from wavefront.cli.output import complain, say
from wavefront.core.errors import ReportError

EXAMPLES = """\
Examples
wavefront report wave.npz -o wave.html
wavefront report wave.npz block.npz -o report.html
wavefront report runs/main runs/mhco --title "Two experiments"
`wavefront trace record` makes traces; docs/traces.md describes runs.
"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
def report(
    inputs: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Trace files (.npz) and run directories.")
    ],
    *,
    out: Annotated[
        Path, option(None, "FILE", "Where to write the page. Default: report.html.", "--out", "-o")
    ] = Path("report.html"),
    title: Annotated[
        str, option(None, "TEXT", "Title of the page. Default: from the inputs.", "--title")
    ] = "",
    model: Annotated[
        str | None,
        option(
            None,
            "NAME",
            "Model whose tokenizer reads the traces. Default: the texts in each trace.",
            "--model",
            "-m",
            complete=completion.models,
        ),
    ] = None,
    rows: Annotated[
        Ids | None,
        option(None, "N,N", "Rows of each trace to show, such as 0,2. Default: the first 8."),
    ] = None,
) -> None:
    """Write an HTML report of recorded decodes and runs.

    The page holds tables, figures and a player, which plays two decodes side by side. It is one
    file and needs only a browser.
    """
    for one in inputs:
        if one.exists() and out.exists() and one.samefile(out):
            raise ReportError(f"{out} is an input of the report: give another -o.")
    from wavefront.viewer.html_report import make

    made = make(inputs, title=title, model=model, rows=rows)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(made.html, encoding="utf-8", newline="\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ReportError(f"The page cannot be written to {str(out)!r}: {reason}.") from None
    for note in made.notes:
        complain("warning", note)
    say(str(out))
