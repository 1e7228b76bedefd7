"""The results page of an experiment: tables, figures, numbers and traces in a directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavefront.core.errors import ReportError
from wavefront.results import table
from wavefront.results.table import Run, RunFile, Table, to_json
from wavefront.storage.write_file import write_text
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace

if TYPE_CHECKING:  # a page without figures needs no matplotlib
    from wavefront.analysis.figures import Figure

Figures = Mapping[str, "tuple[Figure, str]"]  # by file name: the figure and its caption
Traces = Mapping[str, tuple[Trace, str]]
LONG = 20  # rows; a longer table is folded
NO_FIGURES = (
    "The figures are missing, because matplotlib is not installed here: run the same command again "
    "where it is. Nothing is decoded again."
)


@dataclass(frozen=True, kw_only=True)
class ResultsPage:
    """Everything an experiment reports."""

    title: str
    text: str  # how to read it, in a few sentences
    configuration: Mapping[str, Any]
    tables: Sequence[Table]
    numbers: Mapping[str, Any]  # all measured values, also those that no table shows
    figures: Figures
    traces: Traces = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)  # further Markdown, by file name

    def __post_init__(self) -> None:
        # The name of a figure may hold a task, and a task may be the path of a file.
        for part in ("figures", "traces"):
            named = {name.replace("/", "-"): one for name, one in getattr(self, part).items()}
            object.__setattr__(self, part, named)
        if self.figures and find_spec("matplotlib") is None:  # a machine that only decodes
            object.__setattr__(self, "figures", {})
            object.__setattr__(self, "text", f"{self.text}\n\n{NO_FIGURES}")

    def write(self, folder: str | Path) -> list[Path]:
        """Write a run directory, which `wavefront report` turns into a page; return the files."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        if self.figures:
            from wavefront.analysis.figures import save

            for name, (picture, _) in self.figures.items():
                written += save(picture, home, name)
        for name, text in self.pages.items():
            write_text(home / f"{name}.md", text, error=ReportError)
            written.append(home / f"{name}.md")
        for name, (trace, _) in self.traces.items():
            written.append(trace_file.save(trace, home / f"{name}.npz"))
        data = to_json({"configuration": self.configuration, **self.numbers})
        numbers = home / "numbers.json"
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
        write_text(numbers, text, error=ReportError)
        summary = home / "summary.md"
        write_text(summary, self.markdown(), error=ReportError)
        run = Run(
            self.title,
            self.text,
            to_json(self.configuration),
            self.tables,
            [RunFile(f"{name}.svg", caption) for name, (_, caption) in self.figures.items()],
            [RunFile(f"{name}.npz", caption) for name, (_, caption) in self.traces.items()],
        )
        return [*written, numbers, summary, table.save(run, home)]

    def markdown(self) -> str:
        """Return the page as Markdown: title, text, tables, figures, configuration."""
        parts = [f"# {self.title}\n", f"{self.text}\n"]
        for one in self.tables:
            text = _with_note(one)
            parts += [f"## {one.title}\n"]
            parts += [
                folded(f"{len(one.rows)} rows", text) if len(one.rows) > LONG else f"{text}\n"
            ]
        if self.figures:
            parts.append("## Figures\n")
            parts += [f"![{caption}]({name}.svg)\n" for name, (_, caption) in self.figures.items()]
        settings = [f"* {name}: `{value}`" for name, value in self.configuration.items()]
        return "\n".join([*parts, folded("Configuration", "\n".join(settings))])

    def overview(self) -> str:
        """Return what a terminal shows: title, text, and the tables that a page does not fold."""
        short = [one for one in self.tables if len(one.rows) <= LONG]
        tables = [f"## {one.title}\n\n{_with_note(one)}" for one in short]
        return "\n\n".join([f"# {self.title}", self.text, *tables])


def _with_note(one: Table) -> str:
    return one.markdown() + (f"\n\n{one.note}" if one.note else "")


def folded(title: str, text: str) -> str:
    """Return Markdown that a page shows only after a click on its title."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>\n'
