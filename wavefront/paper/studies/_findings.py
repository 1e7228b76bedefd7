"""Findings: what a study found, and how it is written into a run directory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavefront.analysis.figures import Figure, save
from wavefront.results.table import Interval, Item, Run, Table
from wavefront.results.table import save as save_run
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All that a study hands over."""

    title: str
    text: str  # how to read it, in a few sentences
    configuration: Mapping[str, Any]
    tables: Sequence[Table]
    numbers: Mapping[str, Any]  # all that was measured, also what no table shows
    figures: Mapping[str, tuple[Figure, str]]  # by file name: the picture and its caption
    traces: Mapping[str, tuple[Trace, str]] = field(default_factory=dict)

    def write(self, folder: str | Path) -> list[Path]:
        """Everything into a run directory, which `wavefront report` turns into a page."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for name, (picture, _) in self.figures.items():
            written += save(picture, home, name)
        for name, (trace, _) in self.traces.items():
            written.append(trace_file.save(trace, home / f"{name}.npz"))
        whole = {"configuration": dict(self.configuration), **self.numbers}
        numbers = home / "numbers.json"
        numbers.write_text(json.dumps(clean(whole), indent=1, allow_nan=False) + "\n", "utf-8")
        summary = home / "summary.md"
        summary.write_text(self.markdown(), "utf-8")
        made = Run(
            self.title,
            self.text,
            clean(dict(self.configuration)),
            self.tables,
            [Item(f"{name}.svg", caption) for name, (_, caption) in self.figures.items()],
            [Item(f"{name}.npz", caption) for name, (_, caption) in self.traces.items()],
        )
        return [*written, numbers, summary, save_run(made, home)]

    def markdown(self) -> str:
        """The tables and figures, under the title and above the configuration."""
        parts = [f"# {self.title}\n", f"{self.text}\n"]
        for table in self.tables:
            parts += [f"## {table.title}\n", *markdown_rows(table), ""]
            parts += [f"{table.note}\n"] if table.note else []
        if self.figures:
            parts.append("## Figures\n")
            parts += [f"![{told}]({name}.svg)\n" for name, (_, told) in self.figures.items()]
        parts.append("## Configuration\n")
        parts += [f"* {name}: `{value}`" for name, value in self.configuration.items()]
        return "\n".join(parts) + "\n"


def markdown_rows(table: Table) -> list[str]:
    """A table as Markdown lines."""
    head = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    return head + ["| " + " | ".join(shown(cell) for cell in row) + " |" for row in table.rows]


def shown(cell: Any) -> str:
    """A cell as text; a number with three decimals, an interval in brackets."""
    if isinstance(cell, Interval):
        return f"{cell.value:.3f} [{cell.low:.3f}, {cell.high:.3f}]"
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    return " ".join(str(cell).split("\n")).replace("|", "\\|")


def number(value: float) -> float | None:
    """A number for a table; what is not one is left empty."""
    return float(value) if math.isfinite(value) else None


def clean(value: Any) -> Any:
    """The same for JSON: tensors and tuples as lists, no NaN."""
    if hasattr(value, "tolist"):
        return clean(value.tolist())
    if isinstance(value, Interval):
        return clean(vars(value))
    if isinstance(value, Mapping):
        return {str(name): clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
