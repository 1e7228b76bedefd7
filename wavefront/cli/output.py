"""What goes where: answers to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def stderr() -> Console:
    """A console for everything that is not an answer."""
    return Console(stderr=True, highlight=False, emoji=False, markup=False)


def stdout() -> Console:
    """A console for tables. Into a file or a pipe it wraps nothing: an entry stays on its line."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = 1000
    return console


def print_table(title: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """A title and a row per entry: its name, how it is written, what it is."""
    console = stdout()
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    in_line = sum(columns) + 6 <= console.width
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, written, meaning in rows:
        # Where a line is too short, what is written goes below its meaning.
        below = Text(f"{meaning}\n").append(written, "dim") if written else Text(meaning)
        cells = (Text(written), Text(meaning)) if in_line else (below,)
        table.add_row(Text(f"  {name}", "bold", no_wrap=True), *cells)
    with console.capture() as drawn:  # the table is padded to the right, which no reader wants
        console.print(table)
    console.print(Text(title, "bold"))
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()) + "\n")


def print_examples(text: str | None) -> None:
    """The end of a help page: a heading, and lines that can be copied as they are."""
    heading, *lines = (text or "").splitlines() or [""]
    if heading:
        stdout().print(Text(f" {heading}\n", "bold"), end="")
        print("\n".join(f"   {line}" for line in lines) + "\n")


def complain(kind: str, sentence: str) -> None:
    """`error: …` or `warning: …`, on one line however long."""
    from wavefront.viewer import printable

    style = "bold red" if kind == "error" else "bold yellow"
    # A sentence may quote a file or a model, so it is as untrusted as they are.
    message = Text.assemble((f"{kind}: ", style), printable(" ".join(sentence.split())))
    stderr().print(message, soft_wrap=True)


def say(text: str) -> None:
    """An answer: as it is into a file or a pipe, without control characters on a terminal."""
    from wavefront.viewer import printable

    print(printable(text) if sys.stdout.isatty() else text, flush=True)


def say_json(value: Any) -> None:
    """One object on one line; ASCII, which every reader takes and no terminal acts upon."""
    print(json.dumps(value), flush=True)
