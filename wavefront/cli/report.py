"""`wavefront report`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.options import Ids, option
from wavefront.cli.output import complain, say
from wavefront.core.errors import ReportError
from wavefront.storage.write_file import write_text

if TYPE_CHECKING:
    from wavefront.results.table import Run

RUN_FILE, HEADER = "run.json", "header.json"  # of an experiment, and of an evaluation
EXAMPLES = """\
Examples
wavefront report wave.npz -o wave.html
wavefront report wave.npz block.npz -o report.html
wavefront report runs/main runs/mhco --title "Two experiments"
wavefront report runs/gsm -o gsm.html
`wavefront trace record` makes traces; docs/traces.md describes runs.
"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Trace files (.npz), and directories of an experiment or an evaluation.",
        ),
    ],
    *,
    out: Annotated[
        Path, option(None, "FILE", "Where to write the page. Default: report.html.", "--out", "-o")
    ] = Path("report.html"),
    title: Annotated[
        str, option(None, "TEXT", "Title of the page. Default: derived from the inputs.", "--title")
    ] = "",
    model: Annotated[
        str | None,
        option(
            None,
            "NAME",
            "Model whose tokenizer reads the traces: a name as in `wavefront generate -m`, or "
            "module:factory for your own. Default: use the texts stored in each trace.",
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
    file and needs only a browser. For an evaluation it shows the summary, the differences between
    its runs, and the wrong answers.
    """
    for one in inputs:
        if one.exists() and out.exists() and one.samefile(out):
            raise ReportError(f"{out} is an input of the report: give another -o.")
    from wavefront.lm import factory_tokenizer, is_factory
    from wavefront.viewer.html_report import make

    own = factory_tokenizer(model) if model is not None and is_factory(model) else model
    made = make([_evaluation(one) or one for one in inputs], title=title, model=own, rows=rows)
    with contextlib.suppress(OSError):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, made.html, error=ReportError)
    for note in made.notes:
        complain("warning", note)
    say(str(out))


def _evaluation(folder: Path) -> Run | None:
    """Return the section of a directory that `wavefront eval` wrote; None if it is something else.

    Raises `RunError` if the evaluation is not graded.
    """
    if (folder / RUN_FILE).is_file() or not (
        (folder / HEADER).is_file() or any(folder.glob(f"*/{HEADER}"))
    ):
        return None
    from wavefront.evaluation import runs_in
    from wavefront.evaluation.grades import check_graded
    from wavefront.evaluation.show import report_section

    runs = runs_in(folder)
    for run in runs:
        check_graded(run)
    return report_section(runs)
