"""Wrapped: an experiment that a study measures already, with the paper's claims beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wavefront.paper import studies
from wavefront.paper._claims import Claim
from wavefront.paper._lab import Lab, short
from wavefront.paper._page import page
from wavefront.paper.studies import Findings
from wavefront.results.bootstrap import FEWEST, Found
from wavefront.results.table import Interval

Judge = Callable[[Findings, str], list[Claim]]  # of the findings on a model


def wrapped(lab: Lab, name: str, judge: Judge, **chosen: Any) -> Findings:
    """Run a study on every model, and put the parts on one page."""
    study = studies.find(name)
    given = {**study.DEFAULTS, **chosen}
    given = {key: value for key, value in given.items() if key not in ("items", "tasks")}
    parts = {short(model): study.run(lab.bench(model, **given)) for model in lab.models}
    several = len(parts) > 1
    tables, figures, traces, claims = [], {}, {}, []
    numbers: dict[str, Any] = {}
    for model, found in parts.items():
        tables += [replace(one, title=f"{one.title}, {model}") if several else one
                   for one in found.tables]  # fmt: skip
        end = f"-{model}" if several else ""
        figures |= {f"{one}{end}": made for one, made in found.figures.items()}
        traces |= {f"{one}{end}": made for one, made in found.traces.items()}
        numbers[model] = found.numbers
        claims += judge(found, model)
    first = next(iter(parts.values()))
    return page(
        lab,
        title=first.title,
        text=first.text,
        claims=claims,
        tables=tables,
        figures=figures,
        numbers={"n": first.numbers["n"], "measured": numbers},
        configuration={
            **first.configuration,
            "command": lab.command,
            "tasks": list(lab.scale.tasks),
        },
        traces=traces,
    )


def rows_of(found: Findings, title: str) -> list[dict[str, Any]]:
    """The rows of a table of a study by their columns."""
    table = next((one for one in found.tables if one.title == title), None)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows] if table else []


def told(row: Mapping[str, Any], text: str, *, parts: Sequence[str], gap: str, verdict: str,
         items: int) -> Claim:  # fmt: skip
    """A claim that a study has judged, by the same rule."""
    where = ", ".join(str(row[part]) for part in parts)
    return Claim(text, where, row[gap], items, None, str(row[verdict]))


def correlated(value: float | None, items: int) -> Found:
    """A rank correlation with its 95 % interval, by Fisher's transformation."""
    if value is None or items < FEWEST or abs(value) >= 1:
        return value
    middle, half = math.atanh(value), 1.959964 / math.sqrt(items - 3)
    return Interval(value, math.tanh(middle - half), math.tanh(middle + half))
