"""Decode_order: what each strategy decides when, on one item (the paper's figure 1)."""

from __future__ import annotations

from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.measures import eos, order
from wavefront.paper.studies._bench import Bench
from wavefront.paper.studies._findings import Findings, number
from wavefront.results.table import Table

DEFAULTS: dict[str, Any] = {"items": 1}
TEXT = (
    "One held-out item under each strategy. A row of a panel is a step: the place it decided, the "
    "places it could have decided, and what was there before. Kendall's tau is 1 when places are "
    "decided from left to right, -1 from right to left, and near 0 in no order."
)


def run(bench: Bench) -> Findings:
    """Decode one item under every strategy and draw it."""
    name = bench.tasks[0]
    samples = bench.draw(name, 1)
    bench.expect(len(bench.strategies), count=1)
    traces, rows, numbers = {}, [], {}
    for spec in bench.strategies:
        made = bench.decode(name, samples, spec)
        traces[spec] = made.traces[0]
        found, ends = order.measure(traces[spec]), eos.measure(traces[spec])
        when = int(ends.first[0]) or None
        right = made.correct[0] if made.correct else None
        cells = [number(float(one[0])) for one in (found.tau, found.jump, found.adjacent)]
        rows.append([spec, made.answers[0].forwards, *cells, when, right])
        numbers[spec] = {"forwards": made.answers[0].forwards, "text": made.answers[0].text}
        numbers[spec] |= dict(zip(("tau", "jump", "adjacent"), cells, strict=True))
        numbers[spec] |= {"first end token at step": when, "right": right}
    table = Table(
        "In which order",
        [
            "strategy",
            "forwards",
            "Kendall's tau",
            "mean jump (places)",
            "next to a known place",
            "first end token at step",
            "right",
        ],
        rows,
    )
    return Findings(
        title=f"Strategies: one item of {name} under each strategy",
        text=TEXT,
        configuration=bench.configuration() | {"item": samples[0].id, "items of each task": 1},
        tables=[table],
        numbers={"n": 1, "strategies": numbers},
        figures={"strategies": (figures.strategies(traces), "What is decided when")},
        traces={
            f"trace-{figures.kind(s)}-{n}": (t, s) for n, (s, t) in enumerate(traces.items(), 1)
        },
    )
