"""Dynamics: does the wave's frontier move smoothly, and does it regret less?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.figures import kind
from wavefront.analysis.measures import dynamics, eos, order, regret
from wavefront.analysis.measures.dynamics import Frontier, HeatMap
from wavefront.analysis.measures.regret import Regret
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import Claim, direction_verdict
from wavefront.paper.decoder import DecodedItems, ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import STRATEGIES, first_block
from wavefront.results.bootstrap import bootstrap_known_mean
from wavefront.results.interval import Estimate
from wavefront.results.table import Table
from wavefront.tasks.base import Sample

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=6, length=32)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=16, length=1024, rows=1, style="paper")
COMPARED = STRATEGIES
EVERY = 4  # regret is measured at every so-many-th step
SHARE = 4  # leave-one-out uses one item in so many, at as many steps
TEXT = (
    "The frontier is the first masked and the last decided position. A plateau is the number of "
    "steps for which the first masked position did not move. The heat map shows the uncertainty of "
    "one item at every masked position. Regret is the probability that a decided token keeps at "
    "later steps: direct, as it stands, and leave-one-out, with the position masked again. "
    "Leave-one-out uses a part of the items and steps. Intervals are 95 %, bootstrapped over items."
)
NOTE = "The paper's figure 4 claims a smoother frontier and less regret for the wave."
GAP_COLUMNS = ["task", "strategy", "claim", "wave less block", "items", "verdict"]


class ItemMeasures(NamedTuple):
    """What was measured under one strategy, (items,) float64 each; NaN where undefined."""

    plateau: Tensor
    tau: Tensor
    jump: Tensor
    first_end: Tensor
    end_share: Tensor
    length_ratio: Tensor
    correct: Tensor
    direct: Tensor
    drop: Tensor
    leave_one_out: Tensor


COLUMNS = {
    "plateau": "longest plateau (steps)",
    "tau": "Kendall's tau",
    "jump": "mean jump (places)",
    "first_end": "first end token, share of T",
    "end_share": "end tokens, % of commits",
    "length_ratio": "visible / reference",
    "correct": "right, %",
    "direct": "direct",
    "drop": "drop since the commit",
    "leave_one_out": "leave-one-out",
}
TABLES = {
    "How it moves": ("plateau", "tau", "jump"),
    "Where answers end": ("first_end", "end_share", "length_ratio", "correct"),
    "What decided tokens keep (probability)": ("direct", "drop", "leave_one_out"),
}
CLAIMED = {"plateau": "lower", "direct": "higher", "leave_one_out": "higher"}


class Gap(NamedTuple):
    """A wave minus block, in pairs: a row of the last table."""

    task: str
    strategy: str
    claim: str
    gap: Estimate
    items: int
    verdict: str


class Curves(NamedTuple):
    """What the figures of one task show, by strategy."""

    fronts: dict[str, Frontier]
    heats: dict[str, HeatMap]
    regrets: dict[str, Regret]


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode, replay, and read the probabilities of decided tokens again."""
    decoder.expect_parts(len(decoder.tasks) * len(decoder.strategies) * 3 * decoder.batches())
    measures: dict[str, dict[str, ItemMeasures]] = {}
    pictures, traces = {}, {}
    for name in decoder.tasks:
        samples, curves, found = decoder.draw(name), Curves({}, {}, {}), {}
        for spec in decoder.strategies:
            decoded = decoder.decode(name, samples, spec)
            one = traces[f"{name}, {spec}"] = decoded.traces[0].row(0)
            curves.heats[kind(spec)] = dynamics.heat_map(one, of="probability")
            found[spec] = _measure_items(decoder, (spec, decoded), samples, curves)
        measures[name] = found
        end = f"-{name}" if len(decoder.tasks) > 1 else ""
        drawn = _draw(curves)
        pictures |= {f"{one}{end}": (made, f"{one}, {name}") for one, made in drawn.items()}
    gaps = [gap for name, found in measures.items() for gap in _gaps(name, found)]
    tables = [_table(title, fields, measures) for title, fields in TABLES.items()]
    if gaps:
        tables.append(Table("Against block, in pairs", GAP_COLUMNS, gaps, note=NOTE))
    return Measurement(
        title="Dynamics: how a decode proceeds",
        text=TEXT,
        items=decoder.items,
        claims=[
            Claim(gap.claim, f"{gap.task}, {gap.strategy}", gap.gap, gap.items, None, gap.verdict)
            for gap in gaps
        ],
        tables=tables,
        numbers={one.title: one.records() for one in tables},
        figures=pictures,
        traces={f"trace-{n}": (trace, s) for n, (s, trace) in enumerate(traces.items(), 1)},
        configuration={"regret measured every so many steps": EVERY},
    )


def _draw(curves: Curves) -> dict[str, figures.Figure]:
    fronts, heats, regrets = curves
    heat = heats.get("wavefront") or next(iter(heats.values()))
    return {
        "dynamics": figures.dynamics(fronts, heat, regrets, width=EVERY),
        "frontier": figures.frontier(fronts),
        "heatmap": figures.heatmap(heat),
        "regret": figures.regret(regrets, width=EVERY),
    }


def _table(
    title: str, fields: Sequence[str], measures: dict[str, dict[str, ItemMeasures]]
) -> Table:
    rows = [
        [name, spec, *(bootstrap_known_mean(getattr(one, field)) for field in fields)]
        for name, found in measures.items()
        for spec, one in found.items()
    ]
    return Table(title, ["task", "strategy", *(COLUMNS[field] for field in fields)], rows)


def _gaps(name: str, found: dict[str, ItemMeasures]) -> list[Gap]:
    base = first_block(found)
    gaps = []
    for spec, wave in found.items():
        if base is None or kind(spec) != "wavefront":
            continue
        for field, claimed in CLAIMED.items():
            one, other = getattr(found[base], field), getattr(wave, field)
            gap = bootstrap_known_mean(other - one)
            verdict = direction_verdict(gap, len(one), claimed)
            text = f"{COLUMNS[field]}: {claimed} for the wave"
            gaps.append(Gap(name, spec, text, gap, len(one), verdict))
    return gaps


def _measure_items(
    decoder: ItemDecoder,
    decode: tuple[str, DecodedItems],
    samples: Sequence[Sample],
    curves: Curves,
) -> ItemMeasures:
    """Measure every item; keep the curves of the figures."""
    spec, decoded = decode
    front = curves.fronts[spec] = Frontier.join([dynamics.frontier(t) for t in decoded.traces])
    direct, alone = _regrets(decoder, decoded)
    curves.regrets[spec] = direct
    orders = [order.measure(trace) for trace in decoded.traces]
    lengths = [len(decoder.lm.tokenizer.encode(sample.answer)) for sample in samples]
    ends = []
    for trace in decoded.traces:
        rows = len(trace.first.tokens)
        ends.append(eos.measure(trace, reference=lengths[:rows]))
        lengths = lengths[rows:]
    correct = torch.tensor(decoded.correct or [torch.nan] * len(samples)).double()
    return ItemMeasures(
        plateau=front.plateau.double(),
        tau=torch.cat([one.tau for one in orders]),
        jump=torch.cat([one.jump for one in orders]),
        first_end=torch.cat([one.when for one in ends]),
        end_share=100 * torch.cat([one.share for one in ends]),
        length_ratio=torch.cat([one.ratio for one in ends]),
        correct=100 * correct,
        direct=_item_means(direct, direct.probability),
        drop=_item_means(direct, direct.initial - direct.probability),
        leave_one_out=_item_means(alone, alone.probability),
    )


def _regrets(decoder: ItemDecoder, decoded: DecodedItems) -> tuple[Regret, Regret]:
    """Measure direct regret on all items, and leave-one-out on the first of them."""
    model, direct, alone = decoder.lm.model, [], []
    left, at_once = max(1, decoder.items // SHARE), 4 * decoder.scale.rows
    for trace in decoded.traces:
        direct.append(regret.measure(trace, model, every=EVERY, rows_at_once=at_once))
        decoder.finish_part("regret, direct")
        for row in range(min(left, len(trace.first.tokens))):
            one, every = trace.row(row), max(1, decoder.steps // SHARE)
            alone.append(
                regret.measure(
                    one, model, reading="leave-one-out", every=every, rows_at_once=at_once
                )
            )
            left -= 1
        decoder.finish_part("regret, leave-one-out")
    return Regret.join(direct), Regret.join(alone)


def _item_means(found: Regret, values: Tensor) -> Tensor:
    """Return the mean of the values of every item's events; NaN for an item without any."""
    count = torch.bincount(found.row, minlength=found.rows)
    return torch.bincount(found.row, values.double(), found.rows) / count
