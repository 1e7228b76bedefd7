"""MHCO: does a more confident position nearby have to wait less often under the wave than block?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.figures import kind
from wavefront.analysis.measures import mhco
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import Claim, correlation_interval, direction_claim, direction_verdict
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import LLADA, LLADA15, Measurement, measure_models
from wavefront.paper.tables import EVALUATED, first_block
from wavefront.results.bootstrap import (
    bootstrap_known_mean,
    bootstrap_ratio,
    bootstrap_ratio_difference,
)
from wavefront.results.interval import Estimate, bounds
from wavefront.results.table import Table, finite_or_none
from wavefront.tasks.base import Sample

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, LLaDA-1.5, gsm8k, math, humaneval"
SMALL = Scale(items=8, length=48)
PAPER = Scale(
    models=(LLADA, LLADA15),
    tasks=("gsm8k", "math", "humaneval"),
    items=64,
    length=1024,
    rows=1,
    style="paper",
)
COMPARED = EVALUATED
READINGS = ("candidates", "extent")
TEXT = (
    "MHCO is the share of committed tokens for which a masked position near the scope, but "
    "outside it, had a strictly higher probability. Outside has two readings: outside the "
    "candidates themselves, and beyond the outermost ones (for block, beyond the block's edges). "
    "Standard is 0 by construction: nothing lies outside its scope. Intervals are 95 %, "
    "bootstrapped over items; differences are in pairs."
)
COLUMNS = ["task", "strategy", "reading", "all steps", "visible steps", "correlation with right",
           "right"]  # fmt: skip
GAP_COLUMNS = ["task", "strategy", "reading", "minus block: all steps",
               "minus block: visible steps", "paper: lower"]  # fmt: skip
NOTE = "The paper's figure 2 has the wave below block on every dataset."


class Rate(NamedTuple):
    """MHCO in % of one task, strategy and reading: a row of the first table."""

    task: str
    strategy: str
    reading: str
    all_steps: Estimate
    visible_steps: Estimate
    correlation: Estimate  # with correct answers
    correct: Estimate


class Gap(NamedTuple):
    """MHCO minus block's, in pairs: a row of the second table."""

    task: str
    strategy: str
    reading: str
    all_steps: Estimate
    visible_steps: Estimate
    verdict: str  # empty unless the strategy is a wave


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode the items of every task under every strategy, and count."""
    decoder.expect_parts(len(decoder.tasks) * len(decoder.strategies) * decoder.batches())
    rates: list[Rate] = []
    gaps: list[Gap] = []
    counts: list[dict[str, int]] = []
    for name in decoder.tasks:
        samples, found = decoder.draw(name), {}
        for spec in decoder.strategies:
            kept = decoder.keep(
                f"{name}, {spec}",
                lambda n=name, s=samples, one=spec: _count(decoder, n, s, spec=one),
            )
            found[spec] = mhco.Readings(*(_counted(reading, kept) for reading in READINGS))
            correct = None if kept["correct"] is None else torch.tensor(kept["correct"])
            for reading in READINGS:
                one = getattr(found[spec], reading)
                rates.append(_rate(name, spec, one, correct=correct))
                counts.append(
                    {
                        "items": one.commits.shape[1],
                        "commits": int(one.commits.sum()),
                        "violations": int(one.violations.sum()),
                    }
                )
        gaps += _gaps(name, found)
    table = Table("MHCO, % of committed tokens", COLUMNS, rates)
    against_block = Table("Against block, in pairs", GAP_COLUMNS, gaps, note=NOTE)
    bars = {reading: [_bar(one) for one in rates if one.reading == reading] for reading in READINGS}
    return Measurement(
        title="MHCO: more confident positions nearby that had to wait",
        text=TEXT,
        items=decoder.items,
        claims=_claims(rates, gaps, decoder.items),
        tables=[table, *([against_block] if gaps else [])],
        numbers={
            "measured": [row | more for row, more in zip(table.records(), counts, strict=True)],
            "gaps": against_block.records(),
        },
        figures={"mhco": (figures.mhco(bars), "MHCO by task, strategy and reading")},
    )


def _count(
    decoder: ItemDecoder, name: str, samples: Sequence[Sample], *, spec: str
) -> dict[str, Any]:
    """Decode the items, and count for each of them: first the steps with visible tokens."""
    parts: dict[str, list[Tensor]] = {}
    correct: list[bool] = []
    for decoded in decoder.decode_batches(name, samples, spec):
        for trace in decoded.traces:
            for reading, one in mhco.measure(trace, decoder.radius)._asdict().items():
                seen = torch.stack([one.visible, ~one.visible])
                for part in ("violations", "commits"):
                    sums = (getattr(one, part) * seen).sum(1)  # (2, items)
                    parts.setdefault(f"{reading} {part}", []).append(sums)
        correct += decoded.correct or []
    return {part: torch.cat(some, 1) for part, some in parts.items()} | {"correct": correct or None}


def _counted(reading: str, kept: Mapping[str, Any]) -> mhco.Mhco:
    """Return the counts that `_count` made, as if a decode had two steps."""
    violations, commits = (
        torch.tensor(kept[f"{reading} {part}"]) for part in ("violations", "commits")
    )
    visible = torch.tensor([[True], [False]]).expand_as(commits)
    return mhco.Mhco(reading, violations, commits, visible)


def _claims(rates: list[Rate], gaps: list[Gap], items: int) -> list[Claim]:
    claims = [
        Claim(
            "The wave has a lower MHCO than block",
            f"{gap.task}, {gap.strategy}, {gap.reading}",
            gap.all_steps,
            items,
            None,
            gap.verdict,
        )
        for gap in gaps
        if kind(gap.strategy) == "wavefront"
    ]
    return claims + [
        direction_claim(
            "Lower MHCO correlates with correct answers (rank correlation below 0)",
            f"{rate.task}, {rate.strategy}, {rate.reading}",
            gap=rate.correlation,
            items=items,
            claimed="lower",
        )
        for rate in rates
        if kind(rate.strategy) == "block"
    ]


def _rate(name: str, spec: str, found: mhco.Mhco, *, correct: Tensor | None) -> Rate:
    return Rate(
        name,
        spec,
        found.reading,
        bootstrap_ratio(*_sums(found, visible=False), scale=100),
        bootstrap_ratio(*_sums(found, visible=True), scale=100),
        None
        if correct is None
        else correlation_interval(finite_or_none(found.correlation(correct)), len(correct)),
        None if correct is None else bootstrap_known_mean(correct.double(), scale=100),
    )


def _sums(found: mhco.Mhco, *, visible: bool) -> tuple[Tensor, Tensor]:
    """Return violations and commits of every item."""
    counted = found.visible if visible else torch.ones_like(found.visible)
    return (found.violations * counted).sum(0), (found.commits * counted).sum(0)


def _bar(rate: Rate) -> figures.Bar:
    value, low, high = (part / 100 for part in bounds(rate.all_steps))
    visible = None if rate.visible_steps is None else bounds(rate.visible_steps)[0] / 100
    return figures.Bar(rate.task, rate.strategy, value, low, high, visible)


def _gaps(name: str, found: Mapping[str, mhco.Readings]) -> list[Gap]:
    base = first_block(found)
    if base is None:
        return []
    gaps = []
    for spec in found:
        for reading in READINGS if spec != base else ():
            one, other = getattr(found[base], reading), getattr(found[spec], reading)
            every, visible = (
                bootstrap_ratio_difference(
                    _sums(one, visible=v), _sums(other, visible=v), scale=100
                )
                for v in (False, True)
            )
            wave, count = kind(spec) == "wavefront", one.commits.shape[1]
            verdict = direction_verdict(every, count, "lower") if wave else ""
            gaps.append(Gap(name, spec, reading, every, visible, verdict))
    return gaps
