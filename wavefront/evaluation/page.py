"""The results page of an experiment: tables, figures, numbers and traces in a directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavefront.analysis.figures import Figure, save
from wavefront.results import table
from wavefront.results.table import Item, Run, Table, to_json
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace

Figures = Mapping[str, tuple[Figure, str]]  # by file name: the figure and its caption
Traces = Mapping[str, tuple[Trace, str]]


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

    def write(self, folder: str | Path) -> list[Path]:
        """Write a run directory, which `wavefront report` turns into a page; return the files."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for name, (picture, _) in self.figures.items():
            written += save(picture, home, name)
        for name, (trace, _) in self.traces.items():
            written.append(trace_file.save(trace, home / f"{name}.npz"))
        data = to_json({"configuration": self.configuration, **self.numbers})
        numbers = home / "numbers.json"
        numbers.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", "utf-8")
        summary = home / "summary.md"
        summary.write_text(self.markdown(), "utf-8")
        run = Run(
            self.title,
            self.text,
            to_json(self.configuration),
            self.tables,
            [Item(f"{name}.svg", caption) for name, (_, caption) in self.figures.items()],
            [Item(f"{name}.npz", caption) for name, (_, caption) in self.traces.items()],
        )
        return [*written, numbers, summary, table.save(run, home)]

    def markdown(self) -> str:
        """Return the page as Markdown: title, text, tables, figures, configuration."""
        parts = [f"# {self.title}\n", f"{self.text}\n"]
        for one in self.tables:
            parts += [f"## {one.title}\n", one.markdown(), ""]
            parts += [f"{one.note}\n"] if one.note else []
        if self.figures:
            parts.append("## Figures\n")
            parts += [f"![{caption}]({name}.svg)\n" for name, (_, caption) in self.figures.items()]
        parts.append("## Configuration\n")
        parts += [f"* {name}: `{value}`" for name, value in self.configuration.items()]
        return "\n".join(parts) + "\n"
