"""Output of the commands: results go to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def stderr() -> Console:
    """Return a console for everything that is not a result."""
    return Console(stderr=True, highlight=False, emoji=False, markup=False)


def stdout() -> Console:
    """Return a console for tables. It does not wrap lines in a file or a pipe."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = 1000
    return console


class ProgressBar:
    """A progress bar on standard error.

    It draws only if `shown` is True and standard error is a terminal.

    With `delay`, the bar appears once the work has taken that many seconds.
    """

    def __init__(
        self, description: str = "", *, total: float | None = None, shown: bool, delay: float = 0
    ) -> None:
        from rich import progress

        from wavefront.viewer import can_animate

        self.console = stderr()
        self._start = time.monotonic() + delay if shown and can_animate(self.console) else None
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task(description, total=total)
        self._started = False

    def update(self, done: float, total: float | None = None, description: str = "") -> None:
        """Set the amount done and, optionally, the total and the description."""
        self._bar.update(self._task, completed=done, total=total, description=description or None)
        self._draw()

    def advance(self, description: str = "") -> None:
        """Count one more unit of work as done."""
        self.update(self._bar.tasks[0].completed + 1, description=description)

    def set_share(self, description: str, share: float) -> None:
        """Set the description, and the share that is done, from 0 to 1."""
        self.update(share, 1.0, description)

    def _draw(self) -> None:
        if self._start is not None and time.monotonic() >= self._start:
            self._bar.start()
            self._started = True

    def __enter__(self) -> ProgressBar:
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._bar.stop()


@contextlib.contextmanager
def loading_status(*, shown: bool) -> Iterator[None]:
    """Show on a terminal that the model is being loaded."""
    console = stderr()
    busy = shown and console.is_terminal
    with console.status("loading the model") if busy else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Say how to continue if the command is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        note = f"\nInterrupted. Results so far are in {out}. Run the same command to continue."
        print(note, file=sys.stderr)
        raise typer.Exit(130) from None


def print_table(title: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print a title and one row per entry: its name, its syntax and its description."""
    console = stdout()
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    in_line = sum(columns) + 6 <= console.width
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, written, meaning in rows:
        # On a narrow terminal the second column goes below the third.
        below = Text(f"{meaning}\n").append(written, "dim") if written else Text(meaning)
        cells = (Text(written), Text(meaning)) if in_line else (below,)
        table.add_row(Text(f"  {name}", "bold", no_wrap=True), *cells)
    console.print(Text(title, "bold"))
    _print_without_padding(console, table)
    print()


def print_columns(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under the names of their columns, with numbers to the right.

    If a table with numbers does not fit the terminal, print a paragraph for each row. A table of
    texts may wrap them, but if a word does not fit, print a paragraph for each row too.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = 0  # columns of text at the beginning, which say what a row is about
    for index, name in enumerate(columns):
        texts = all(isinstance(row[index], str) and not row[index][:1].isdigit() for row in rows)
        left = texts and not any(row[index].startswith(("+", "-")) for row in rows)
        names += left and names == index
        table.add_column(name, justify="left" if left else "right")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = stdout()
    natural = console.measure(table, options=console.options.update(max_width=1000))
    least = natural.minimum if names == len(columns) else natural.maximum
    if least <= console.width:
        _print_without_padding(console, table)
        return
    if names == len(columns):
        _print_paragraphs(console, columns, rows)
        return
    for row in rows:
        console.print(Text(" · ".join(str(cell) for cell in row[:names]), "bold"))
        pairs = zip(columns[names:], row[names:], strict=True)
        # A number stays on the line of its name.
        facts = [f"{name}: {cell}".replace(" ", "\u00a0") for name, cell in pairs if cell != ""]
        for line in textwrap.wrap(",  ".join(facts), console.width - 4, break_on_hyphens=False):
            console.print(Text(f"  {line}".replace("\u00a0", " ")))


def _print_paragraphs(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print the first cell of each row as a title, and one line for each other cell."""
    for row in rows:
        console.print(Text(row[0], "bold"))
        for name, cell in zip(columns[1:], row[1:], strict=True):
            fact = f"{name}: {', '.join(cell.splitlines())}"
            lines = textwrap.wrap(
                fact, console.width, initial_indent="  ", subsequent_indent="    "
            )
            console.print(Text("\n".join(lines)))


def _print_without_padding(console: Console, table: Table) -> None:
    """Print a table without the spaces that rich adds at the ends of lines."""
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def print_results(table: Any) -> None:
    """Print a `wavefront.results.table.Table`: its title, its rows and its note."""
    from wavefront.results.table import cell_text

    def text(cell: Any) -> str:
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        # `cell_text` writes for Markdown.
        return "" if cell is None else cell_text(cell).replace("\\|", "|")

    rows = [[text(cell) for cell in row] for row in table.rows]
    print()
    stdout().print(Text(table.title, "bold"))
    print_columns(table.columns, rows)
    if table.note:
        stdout().print(Text(table.note))


def print_examples(text: str) -> None:
    """Print the end of a help page: paragraphs of a heading and lines to copy."""
    for paragraph in filter(str.strip, text.split("\n\n")):
        heading, *lines = paragraph.strip().splitlines()
        stdout().print(Text(f" {heading}\n", "bold"), end="")
        print("\n".join(f"   {line}" for line in lines) + "\n")


def complain(kind: str, sentence: str) -> None:
    """Print `error: ...` or `warning: ...` on one line of standard error."""
    from wavefront.viewer import printable

    style = "bold red" if kind == "error" else "bold yellow"
    # The sentence may quote a file or a model, so remove its control characters.
    message = Text.assemble((f"{kind}: ", style), printable(" ".join(sentence.split())))
    stderr().print(message, soft_wrap=True)


def say(text: str) -> None:
    """Print a result. On a terminal, control characters are replaced."""
    from wavefront.viewer import printable

    print(printable(text) if sys.stdout.isatty() else text, flush=True)


def say_note(text: str) -> None:
    """Print a hint on standard error, where it does not mix with results in a pipe."""
    from wavefront.viewer import printable

    print(printable(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print one JSON object on one line, in ASCII."""
    print(json.dumps(value), flush=True)
