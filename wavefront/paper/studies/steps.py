"""Steps: right answers against the step budget and against forwards made (the paper's table 11)."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from wavefront.analysis import figures
from wavefront.core.errors import OptionError, WavefrontWarning
from wavefront.core.spec import resolve
from wavefront.paper.studies._bench import EVALUATED, Bench, base_of
from wavefront.paper.studies._findings import Findings
from wavefront.results.bootstrap import Found, ends, mean, mean_gap
from wavefront.results.table import Table

DEFAULTS: dict[str, Any] = {"strategies": EVALUATED}
RATIOS = (8, 4, 2, 1)
TEXT = (
    "Decodes stop where the answer ends, so that fewer forwards are made than steps asked for; "
    "forwards are an item's own steps. Intervals are 95 %, bootstrapped over items; differences "
    "are in pairs."
)
COLUMNS = ["task", "strategy", "T", "right, %", "forwards", "tokens per forward", "less block, %"]


def run(bench: Bench) -> Findings:
    """Decode at an eighth, a quarter, half and all of N steps."""
    bench.expect(len(bench.tasks) * len(bench.strategies) * len(RATIOS) * bench.batches())
    rows, pictures, left_out = [], {}, []
    budgets = sorted({max(1, bench.length // ratio) for ratio in RATIOS})
    for name in bench.tasks:
        samples = bench.draw(name)
        points: dict[str, list[figures.Point]] = {spec: [] for spec in bench.strategies}
        for steps in budgets:
            found = {}
            for spec in bench.strategies:
                if not _runs(spec, bench.length, steps):
                    left_out.append(f"{spec} at T = {steps}")
                    continue
                made = bench.decode(name, samples, spec, trace="", steps=steps, eos="stop")
                right = torch.tensor(made.correct or [torch.nan] * len(samples)).double()
                found[spec] = right
                forwards = mean(torch.tensor([float(one.steps) for one in made.answers]))
                share = mean(right, scale=100)
                tokens = sum(len(one.tokens) for one in made.answers)
                rate = tokens / max(1, sum(one.steps for one in made.answers))
                rows.append([name, spec, steps, share, forwards, rate])
                if share is not None and forwards is not None:
                    points[spec].append(_point(steps, forwards, share))
            base = base_of(found)
            for row, spec in zip(rows[-len(found) :], found, strict=True):
                other = spec != base and base is not None
                row.append(mean_gap(found[base], found[spec], scale=100) if other else None)
        if any(points.values()):
            which = f"accuracy-{name}" if len(bench.tasks) > 1 else "accuracy"
            pictures[which] = (figures.accuracy(points), f"Accuracy against cost, {name}")
    note = f"Left out, being too few steps: {', '.join(left_out)}." if left_out else ""
    return Findings(
        title="Steps: accuracy against cost",
        text=TEXT,
        configuration=bench.configuration() | {"steps (T)": budgets, "eos": "stop"},
        tables=[Table("Right answers and their cost", COLUMNS, rows, note=note)],
        numbers={
            "n": bench.items,
            "measured": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        },
        figures=pictures,
    )


def _runs(spec: str, length: int, steps: int) -> bool:
    """Whether a strategy takes so few steps; one that takes them in blocks may not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WavefrontWarning)
            resolve(spec, "strategies").validate(length, steps)
    except OptionError:
        return False
    return True


def _point(steps: int, forwards: Found, share: Found) -> figures.Point:
    value, low, high = (part / 100 for part in ends(share))
    return figures.Point(steps, ends(forwards)[0], value, low, high)
