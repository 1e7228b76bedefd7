"""Dynamics: does the wave's frontier move smoothly, and does it regret less?"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.figures import kind
from wavefront.analysis.measures import dynamics, eos, order, regret
from wavefront.analysis.measures.dynamics import Frontier, HeatMap
from wavefront.analysis.measures.regret import Regret
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import NOT_MEASURABLE, SATURATED, Claim, direction_verdict
from wavefront.paper.decoder import DecodedItems, ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import STRATEGIES, first_block
from wavefront.results.bootstrap import bootstrap_known_mean, to_column
from wavefront.results.interval import Estimate
from wavefront.results.table import Table
from wavefront.tasks.base import Sample
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=6, length=32)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=16, length=1024, rows=1, style="paper")
COMPARED = STRATEGIES
EVERY = 4  # measure regret at every n-th step
SHARE = 4  # leave-one-out uses one item in n and one step in n
TEXT = (
    "The frontier is the first masked and the last decided position. A plateau is the number of "
    "steps for which the first masked position did not move. The heat map shows the uncertainty of "
    "one item at every masked position. Regret is the probability that a decided token keeps at "
    "later steps: direct, with the token in place, and leave-one-out, with the position masked "
    "again. Leave-one-out uses a part of the items and steps. Intervals are 95 %, bootstrapped "
    "over items."
)
NOTE = "The paper's figure 4 claims a smoother frontier and less regret for the wave."
GAP_COLUMNS = ["task", "strategy", "claim", "wave minus block", "items", "verdict"]


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
    "jump": "mean jump (positions)",
    "first_end": "first end token, share of T",
    "end_share": "end tokens, % of commits",
    "length_ratio": "visible / reference",
    "correct": "correct, %",
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
REGRETS = ("direct", "leave_one_out")


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
            kept = decoder.keep(
                f"{name}, {spec}",
                lambda n=name, s=samples, one=spec: _measure_items(decoder, n, s, spec=one),
            )
            traces[f"{name}, {spec}"] = one = unpack_trace(kept["trace"])
            curves.heats[kind(spec)] = dynamics.heat_map(one, of="probability")
            curves.fronts[spec] = _mean_frontier(kept["frontier"])
            curves.regrets[spec] = _mean_regret(kept["regret"], items=len(samples))
            columns = (to_column(kept["items"][field]) for field in ItemMeasures._fields)
            found[spec] = ItemMeasures(*columns)
        measures[name] = found
        end = f"-{name}" if len(decoder.tasks) > 1 else ""
        pictures[f"dynamics{end}"] = (_draw(curves), f"Frontier, heat map and regret, {name}")
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
        configuration={"steps between regret measurements": EVERY},
    )


def _draw(curves: Curves) -> figures.Figure:
    fronts, heats, regrets = curves
    heat = heats.get("wavefront") or next(iter(heats.values()))
    return figures.dynamics(fronts, heat, regrets=regrets, width=EVERY)


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
            gap, count = bootstrap_known_mean(other - one), int((~(other - one).isnan()).sum())
            verdict = direction_verdict(gap, count, claimed)
            if field in REGRETS and _solved(found[base]) and _solved(wave):
                verdict = f"{NOT_MEASURABLE}: the answers are right, so nothing can be regretted"
            text = f"{COLUMNS[field]}: {claimed} for the wave"
            gaps.append(Gap(name, spec, text, gap, count, verdict))
    return gaps


def _solved(found: ItemMeasures) -> bool:
    """Return whether so many answers are right that the task cannot decide a claim."""
    return float(found.correct.mean()) > SATURATED[1]  # False where the task is not graded


def _measure_items(
    decoder: ItemDecoder, name: str, samples: Sequence[Sample], *, spec: str
) -> dict[str, Any]:
    """Decode and measure every item; return some numbers for each, and the figure's curves."""
    parts: list[ItemMeasures] = []
    fronts: list[Frontier] = []
    regrets: list[Tensor] = []
    first: Trace | None = None
    left = max(1, decoder.items // SHARE)  # items of the leave-one-out regret
    for decoded in decoder.decode_batches(name, samples, spec):
        for trace in decoded.traces:
            first = first or trace.row(0)
            fronts.append(dynamics.frontier(trace))
            rows = len(decoded.samples)
            direct, alone = _regrets(decoder, trace, left=min(left, rows))
            left -= min(left, rows)
            regrets.append(_by_lag(direct, decoder.steps))
            parts.append(_measure_batch(decoder, decoded, direct, alone=alone))
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    front = Frontier.join(fronts)
    # The mean position over items, as the figure shows it.
    length = front.length.double()
    assert first is not None  # there is at least one item
    return {
        "items": dict(zip(ItemMeasures._fields, columns, strict=True)),
        "frontier": {
            "leftmost": torch.minimum(front.leftmost.double(), length).mean(1),
            "furthest": torch.minimum(front.furthest.double() + 1, length).mean(1) - 1,
            "length": length.max(),
        },
        "regret": _rounded(torch.cat(regrets)),
        "trace": pack_trace(first),
    }


def _measure_batch(
    decoder: ItemDecoder, decoded: DecodedItems, direct: Regret, *, alone: Tensor
) -> ItemMeasures:
    (trace,) = decoded.traces
    moves = order.measure(trace)
    lengths = [len(decoder.lm.tokenizer.encode(sample.answer)) for sample in decoded.samples]
    ends = eos.measure(trace, reference=lengths)
    correct = torch.tensor(decoded.correct or [torch.nan] * len(lengths)).double()
    return ItemMeasures(
        plateau=dynamics.frontier(trace).plateau.double(),
        tau=moves.tau,
        jump=moves.jump,
        first_end=ends.when,
        end_share=100 * ends.share,
        length_ratio=ends.ratio,
        correct=100 * correct,
        direct=_item_means(direct, direct.probability),
        drop=_item_means(direct, direct.initial - direct.probability),
        leave_one_out=alone,
    )


def _regrets(decoder: ItemDecoder, trace: Trace, *, left: int) -> tuple[Regret, Tensor]:
    """Measure direct regret on all items of a batch, and leave-one-out on the first `left`."""
    model, at_once = decoder.lm.model, 4 * decoder.scale.rows
    direct = regret.measure(trace, model, every=EVERY, rows_at_once=at_once)
    decoder.finish_part("regret, direct")
    alone = torch.full((direct.rows,), torch.nan, dtype=torch.float64)
    for row in range(left):
        one, every = trace.row(row), max(1, decoder.steps // SHARE)
        found = regret.measure(
            one, model, reading="leave-one-out", every=every, rows_at_once=at_once
        )
        alone[row] = _item_means(found, found.probability)[0]
    decoder.finish_part("regret, leave-one-out")
    return direct, alone


def _item_means(found: Regret, values: Tensor) -> Tensor:
    """Return the mean of the values of every item's events; NaN for an item without any."""
    count = torch.bincount(found.row, minlength=found.rows)
    return torch.bincount(found.row, values.double(), found.rows) / count


def _by_lag(found: Regret, steps: int) -> Tensor:
    """Return each item's mean probability by steps since the commit, (items, bins of EVERY)."""
    bins = -(-steps // EVERY)
    where = found.row * bins + ((found.lag - 1) // EVERY).clamp(max=bins - 1)
    size = found.rows * bins
    sums = torch.bincount(where, found.probability.double(), size)
    return (sums / torch.bincount(where, minlength=size)).view(-1, bins)


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(one, 5) for one in row] for row in values.tolist()]


def _mean_frontier(kept: Mapping[str, Any]) -> Frontier:
    """Return the mean frontier, as that of one row."""
    leftmost, furthest = (to_column(kept[name])[:, None] for name in ("leftmost", "furthest"))
    t = torch.arange(len(leftmost))[:, None]
    return Frontier(t, leftmost, furthest, to_column([kept["length"]]), torch.ones_like(t).bool())


def _mean_regret(kept: Sequence[Sequence[float | None]], *, items: int) -> Regret:
    """Return one event for each item and bin of steps since the commit."""
    values = torch.stack([to_column(row) for row in kept])
    row, at = (~values.isnan()).nonzero().T
    found = values[row, at]
    lag = at * EVERY + 1
    return Regret("direct", row, at, t=lag, lag=lag, probability=found, initial=found, rows=items)


def pack_trace(trace: Trace) -> str:
    """Return the file of a trace as text."""
    with TemporaryDirectory() as folder:
        return b64encode(trace_file.save(trace, Path(folder) / "trace.npz").read_bytes()).decode()


def unpack_trace(text: str) -> Trace:
    """Return a trace that `pack_trace` wrote."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.npz"
        file.write_bytes(b64decode(text))
        return trace_file.load(file)
