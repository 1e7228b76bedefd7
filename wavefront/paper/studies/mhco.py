"""Mhco: how often a surer place near by had to wait, both readings (the paper's figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.measures import mhco
from wavefront.paper.studies._bench import EVALUATED, Bench, base_of
from wavefront.paper.studies._findings import Findings, number
from wavefront.results.bootstrap import ends, mean, ratio, ratio_gap, verdict
from wavefront.results.table import Table

DEFAULTS: dict[str, Any] = {"strategies": EVALUATED}
READINGS = ("candidates", "extent")
TEXT = (
    "MHCO is the share of committed tokens for which a masked place within the radius of the "
    "scope, but outside it, had a strictly higher probability. Outside has two readings: outside "
    "the candidates themselves, and beyond their outermost ones (for block, beyond the block's "
    "edges). Standard is 0 by construction: nothing lies outside its scope. Intervals are 95 %, "
    "bootstrapped over items; differences are in pairs."
)
Found = Mapping[str, mhco.Readings]


def run(bench: Bench) -> Findings:
    """Decode the items of every task under every strategy, and count."""
    bench.expect(len(bench.tasks) * len(bench.strategies) * bench.batches())
    rows, gaps, numbers = [], [], []
    bars: dict[str, list[figures.Bar]] = {reading: [] for reading in READINGS}
    for name in bench.tasks:
        samples, found = bench.draw(name), {}
        for spec in bench.strategies:
            made = bench.decode(name, samples, spec)
            parts = [mhco.measure(trace, bench.radius) for trace in made.traces]
            found[spec] = mhco.Readings.join(parts)
            right = None if made.correct is None else torch.tensor(made.correct)
            for reading in READINGS:
                one = _of(name, spec, getattr(found[spec], reading), right)
                numbers.append(one)
                bars[reading].append(_bar(one))
                rows.append([name, spec, *(one[column] for column in COLUMNS[2:])])
        gaps += _gaps(name, found)
    tables = [Table("MHCO, % of committed tokens", COLUMNS, rows)]
    if gaps:
        tables.append(Table("Against block, in pairs", GAPS, gaps, note=CLAIM))
    return Findings(
        title="MHCO: surer places near by that had to wait",
        text=TEXT,
        configuration=bench.configuration(),
        tables=tables,
        numbers={
            "n": bench.items,
            "measured": numbers,
            "gaps": [dict(zip(GAPS, g, strict=True)) for g in gaps],
        },
        figures={"mhco": (figures.mhco(bars), "MHCO by task, strategy and reading")},
    )


COLUMNS = [
    "task",
    "strategy",
    "reading",
    "all steps",
    "visible steps",
    "correlation with right",
    "right",
]
GAPS = [
    "task",
    "strategy",
    "reading",
    "less block: all steps",
    "less block: visible steps",
    "paper: lower",
]
CLAIM = "The paper's figure 2 has the wave below block on every dataset."


def _of(name: str, spec: str, found: mhco.Mhco, right: Tensor | None) -> dict[str, Any]:
    return {
        "task": name,
        "strategy": spec,
        "reading": found.reading,
        "all steps": ratio(*_sums(found, visible=False), scale=100),
        "visible steps": ratio(*_sums(found, visible=True), scale=100),
        "correlation with right": None if right is None else number(found.correlation(right)),
        "right": None if right is None else mean(right.double(), scale=100),
        "items": found.commits.shape[1],
        "commits": int(found.commits.sum()),
        "violations": int(found.violations.sum()),
    }


def _sums(found: mhco.Mhco, *, visible: bool) -> tuple[Tensor, Tensor]:
    """Violations and commits of every item."""
    counted = found.visible if visible else torch.ones_like(found.visible)
    return (found.violations * counted).sum(0), (found.commits * counted).sum(0)


def _bar(one: Mapping[str, Any]) -> figures.Bar:
    visible = one["visible steps"]
    value, low, high = (part / 100 for part in ends(one["all steps"]))
    seen = None if visible is None else ends(visible)[0] / 100
    return figures.Bar(one["task"], one["strategy"], value, low, high, seen)


def _gaps(name: str, found: Found) -> list[list[Any]]:
    base = base_of(found)
    if base is None:
        return []
    rows = []
    for spec in found:
        for reading in READINGS if spec != base else ():
            one, other = getattr(found[base], reading), getattr(found[spec], reading)
            both = [
                ratio_gap(_sums(one, visible=v), _sums(other, visible=v), scale=100)
                for v in (False, True)
            ]
            wave, count = figures.kind(spec) == "wavefront", one.commits.shape[1]
            claim = verdict(both[0], count, claimed="lower") if wave else ""
            rows.append([name, spec, reading, *both, claim])
    return rows
