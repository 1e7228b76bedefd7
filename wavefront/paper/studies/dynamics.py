"""Dynamics: frontier, heat map and regret, and where answers end (the paper's figure 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.measures import dynamics, order, regret
from wavefront.analysis.measures.dynamics import Frontier, HeatMap
from wavefront.analysis.measures.regret import Regret
from wavefront.paper.studies import _endings
from wavefront.paper.studies._bench import Bench, Decoded, base_of
from wavefront.paper.studies._findings import Findings
from wavefront.results.bootstrap import item_means, mean, mean_gap, verdict
from wavefront.results.table import Table

DEFAULTS: dict[str, Any] = {}
EVERY = 4  # each so-many-th step is asked at for regret
SHARE = 4  # one item in so many, and as many moments, for the reading that costs most
TEXT = (
    "The frontier is the first masked and the last decided place. A plateau is how long the first "
    "masked place stayed where it was. The heat map is one item: how much doubt the model has at "
    "every masked place. Regret is the probability that a decided token keeps at later steps: "
    "direct, as it stands there, and leave-one-out, the place masked again; the second is measured "
    "on a part of the items and steps. Intervals are 95 %, bootstrapped over items."
)
MOVES = ("longest plateau (steps)", "Kendall's tau", "mean jump (places)")
KEEPS = ("direct", "drop since the commit", "leave-one-out")
TABLES = {
    "How it moves": MOVES,
    "Where answers end": _endings.COLUMNS,
    "What decided tokens keep (probability)": KEEPS,
}
GAPS = ["task", "strategy", "claim", "wave less block", "items", "verdict"]
CLAIMS = {"longest plateau (steps)": "lower", "direct": "higher", "leave-one-out": "higher"}


def run(bench: Bench) -> Findings:
    """Decode, replay and ask again."""
    bench.expect(len(bench.tasks) * len(bench.strategies) * 3 * bench.batches())
    rows: dict[str, list[list[Any]]] = {title: [] for title in TABLES}
    gaps, pictures, traces = [], {}, {}
    for name in bench.tasks:
        samples = bench.draw(name)
        fronts: dict[str, Frontier] = {}
        heats: dict[str, HeatMap] = {}
        direct: dict[str, Regret] = {}
        items: dict[str, dict[str, Tensor]] = {}
        for spec in bench.strategies:
            made = bench.decode(name, samples, spec)
            one = traces[f"{name}, {spec}"] = made.traces[0].row(0)
            heats[figures.kind(spec)] = dynamics.heat_map(one, of="probability")
            fronts[spec] = Frontier.join([dynamics.frontier(trace) for trace in made.traces])
            direct[spec], alone = _regrets(bench, made)
            items[spec] = _by_item(fronts[spec], direct[spec], alone, made)
            items[spec] |= _endings.endings(bench, made, samples)
            for title, columns in TABLES.items():
                rows[title].append([name, spec, *(mean(items[spec][one]) for one in columns)])
        gaps += _gaps(name, items)
        heat = heats.get("wavefront") or next(iter(heats.values()))
        drawn = {
            "dynamics": figures.dynamics(fronts, heat, direct, width=EVERY),
            "frontier": figures.frontier(fronts),
            "heatmap": figures.heatmap(heat),
            "regret": figures.regret(direct, width=EVERY),
        }
        end = f"-{name}" if len(bench.tasks) > 1 else ""
        pictures |= {f"{one}{end}": (made, f"{one}, {name}") for one, made in drawn.items()}
    tables = [Table(t, ["task", "strategy", *TABLES[t]], found) for t, found in rows.items()]
    if gaps:
        note = "The paper's figure 4 claims a smoother frontier and less regret for the wave."
        tables.append(Table("Against block, in pairs", GAPS, gaps, note=note))
    return Findings(
        title="Dynamics: how a decode moves",
        text=TEXT,
        configuration=bench.configuration() | {"regret asked at every": EVERY},
        tables=tables,
        numbers={
            "n": bench.items,
            **{t.title: [dict(zip(t.columns, r, strict=True)) for r in t.rows] for t in tables},
        },
        figures=pictures,
        traces={f"trace-{n}": (trace, s) for n, (s, trace) in enumerate(traces.items(), 1)},
    )


def _regrets(bench: Bench, made: Decoded) -> tuple[Regret, Regret]:
    """Direct over all items; leave-one-out over the first of them, at a few moments."""
    model, direct, alone = bench.lm.model, [], []
    left, at_once = max(1, bench.items // SHARE), 4 * bench.batch
    for trace in made.traces:
        direct.append(regret.measure(trace, model, every=EVERY, rows_at_once=at_once))
        bench.part("regret, direct")
        for row in range(min(left, len(trace.first.tokens))):
            one, every = trace.row(row), max(1, bench.budget // SHARE)
            alone.append(
                regret.measure(
                    one, model, reading="leave-one-out", every=every, rows_at_once=at_once
                )
            )
            left -= 1
        bench.part("regret, leave-one-out")
    return Regret.join(direct), Regret.join(alone)


def _by_item(front: Frontier, direct: Regret, alone: Regret, made: Decoded) -> dict[str, Tensor]:
    """The columns of two tables as (items,) float64."""
    orders = [order.measure(trace) for trace in made.traces]
    lost = direct.initial - direct.probability
    return {
        "longest plateau (steps)": front.plateau.double(),
        "Kendall's tau": torch.cat([one.tau for one in orders]),
        "mean jump (places)": torch.cat([one.jump for one in orders]),
        "direct": item_means(direct.row, direct.probability, direct.rows),
        "drop since the commit": item_means(direct.row, lost, direct.rows),
        "leave-one-out": item_means(alone.row, alone.probability, alone.rows),
    }


def _gaps(name: str, items: dict[str, dict[str, Tensor]]) -> list[list[Any]]:
    base = base_of(items)
    rows: list[list[Any]] = []
    for spec in items:
        if base is None or figures.kind(spec) != "wavefront":
            continue
        for column, claimed in CLAIMS.items():
            one, other = items[base][column], items[spec][column]
            gap = mean_gap(one, other)
            claim = f"{column}: {claimed} for the wave"
            said = verdict(gap, len(one), claimed=claimed)
            rows.append([name, spec, claim, gap, len(one), said])
    return rows
