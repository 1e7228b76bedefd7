"""Calibration: is the model better calibrated at the positions that the wave chooses?

Teacher forcing (the paper's table 15 and figure 3): the strategy chooses positions, and the
reference is written there. Each proposed token is compared with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.figures import kind
from wavefront.analysis.measures.calibration import (
    Outcomes,
    Reliability,
    decode_forced,
    forced_batch,
)
from wavefront.core.state import Config
from wavefront.engine.options import plan
from wavefront.engine.session import model_properties
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import Claim, direction_claim, direction_verdict
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import EVALUATED, first_block
from wavefront.results.bootstrap import bootstrap, bootstrap_ratio
from wavefront.results.interval import Estimate
from wavefront.results.table import Table
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import prompt_ids

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k, math, humaneval"
SMALL = Scale(items=6, length=48)
PAPER = Scale(
    models=(LLADA,),
    tasks=("gsm8k", "math", "humaneval"),
    items=128,
    length=1024,
    rows=1,
    style="paper",
)
COMPARED = EVALUATED
BINS = 10
DRAWS = 2000
READINGS = {
    "reference": "the canvas holds the reference and one end token",
    "padded": "the canvas is filled with end tokens up to N positions",
    "prefix": "the reference is written strictly from the left",
}
TEXT = (
    "Under teacher forcing the strategy chooses positions, and the reference is written there. "
    "Each choice gives the probability of the proposal and whether it was correct. ECE is the "
    f"mean gap between the two over {BINS} bins of equal width, MCE the largest. Readings: "
    + "; ".join(f"{name}, {what}" for name, what in READINGS.items())
    + ". Intervals are 95 %, bootstrapped over items. Those of MCE, a largest value, are rough."
)
COLUMNS = ["task", "reading", "strategy", "ECE", "MCE", "correct, %", "mean confidence", "choices"]
GAP_COLUMNS = ["task", "reading", "strategy", "ECE minus block's", "MCE minus block's",
               "paper: lower ECE"]  # fmt: skip
NOTE = "The paper's table 15 has a lower ECE for the wave than for block on every dataset."


class Errors(NamedTuple):
    """Calibration errors of one task, reading and strategy: a row of the first table."""

    task: str
    reading: str
    strategy: str
    ece: Estimate
    mce: Estimate
    correct: Estimate  # %
    confidence: Estimate  # mean
    choices: int


class BinSums(NamedTuple):
    """The choices of every item, summed by bins of confidence, (items, bins) float64 each."""

    choices: Tensor
    right: Tensor
    confidence: Tensor

    @staticmethod
    def of(kept: Mapping[str, Any]) -> BinSums:
        """Return the sums that are on record."""
        names = BinSums._fields
        return BinSums(*(torch.tensor(kept[name], dtype=torch.float64) for name in names))

    @staticmethod
    def sum(found: Outcomes) -> BinSums:
        """Sum the outcomes of a batch."""
        sure = found.confidence.double()
        where = found.row * BINS + (sure * BINS).long().clamp(max=BINS - 1)
        size = found.rows * BINS
        columns = (torch.ones_like(sure), found.correct.double(), sure)
        return BinSums(*(torch.bincount(where, one, size).view(-1, BINS) for one in columns))

    @property
    def gap(self) -> Tensor:
        """Right minus confidence."""
        return self.right - self.confidence

    @property
    def curve(self) -> Reliability:
        """The reliability of all items together."""
        count, right, sure = (one.sum(0) for one in self)
        edges = torch.arange(BINS + 1).double() / BINS
        return Reliability(edges, count.long(), sure / count, right / count)


class Gap(NamedTuple):
    """ECE minus block's, in pairs: a row of the second table."""

    task: str
    reading: str
    strategy: str
    ece: Estimate
    mce: Estimate
    verdict: str  # on ECE; empty unless the strategy is a wave


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode with the references as truth, under every strategy and reading."""
    decoder.expect_parts(
        len(decoder.tasks) * len(READINGS) * len(decoder.strategies) * decoder.batches()
    )
    errors: list[Errors] = []
    gaps: list[Gap] = []
    bins, pictures = [], {}
    for name in decoder.tasks:
        samples = decoder.draw(name)
        for reading in READINGS:
            found = {
                spec: BinSums.of(
                    decoder.keep(
                        f"{name}, {spec}, {reading}",
                        lambda s=samples, one=spec, how=reading: _forced(
                            decoder, s, one, reading=how
                        ),
                    )
                )
                for spec in decoder.strategies
            }
            curves = {spec: one.curve for spec, one in found.items()}
            for spec, one in found.items():
                errors.append(_errors(name, reading, spec, found=one))
                bins.append([curves[spec].count, curves[spec].confidence, curves[spec].accuracy])
            gaps += _gaps(name, reading, found)
            which = "-".join([reading, name] if len(decoder.tasks) > 1 else [reading])
            caption = f"Reliability, {name}: {READINGS[reading]}"
            pictures[f"reliability-{which}"] = (figures.reliability(curves), caption)
    table = Table("Calibration under teacher forcing", COLUMNS, errors)
    against_block = Table("Against block, in pairs", GAP_COLUMNS, gaps, note=NOTE)
    return Measurement(
        title="Calibration: confidence and correctness",
        text=TEXT,
        items=decoder.items,
        claims=_claims(gaps, decoder.items),
        tables=[table, *([against_block] if gaps else [])],
        numbers={
            "measured": [row | {"bins": b} for row, b in zip(table.records(), bins, strict=True)],
            "gaps": against_block.records(),
        },
        figures=pictures,
        configuration={"bins": BINS, "steps (T)": "one per position"},
    )


def _claims(gaps: list[Gap], items: int) -> list[Claim]:
    claims: list[Claim] = []
    for gap in gaps:
        if kind(gap.strategy) != "wavefront":
            continue
        where = f"{gap.task}, {gap.strategy}, {gap.reading}"
        for text, found in (
            ("The wave has a lower ECE than block", gap.ece),
            ("The wave has a lower MCE than block on complex tasks", gap.mce),
        ):
            claims.append(direction_claim(text, where, gap=found, items=items, claimed="lower"))
    return claims


def _forced(
    decoder: ItemDecoder, samples: list[Sample], spec: str, *, reading: str
) -> dict[str, Tensor]:
    lm, parts, rows = decoder.lm, [], decoder.scale.rows
    options = {"strategy": spec, "max_new_tokens": decoder.length, "seed": decoder.seed}
    options["eos"] = "keep"  # the whole reference is written
    config: Config = plan(options, model_properties(lm.model, lm.stop_ids, lm._id_of)).config
    for start in range(0, len(samples), rows):
        some = samples[start : start + rows]
        lesson = forced_batch(
            [prompt_ids(lm.tokenizer, sample.prompt) for sample in some],
            [lm.tokenizer.encode(sample.answer) for sample in some],
            eos=lm.stop_ids[0],
            mask_id=lm.model.mask_id,
            pad_id=lm.model.pad_id,
            length=decoder.length if reading == "padded" else None,
            device=lm.model.device,
        )
        outcomes = decode_forced(lm.model, lesson, config, prefix=reading == "prefix")
        parts.append(BinSums.sum(outcomes))
        decoder.finish_part(f"{spec}, {reading}")
    columns = zip(*parts, strict=True)
    return {name: torch.cat(some) for name, some in zip(BinSums._fields, columns, strict=True)}


def _errors(name: str, reading: str, spec: str, *, found: BinSums) -> Errors:
    sums, items = (found.gap, found.choices), len(found.choices)
    choices = found.choices.sum(1)
    return Errors(
        name,
        reading,
        spec,
        bootstrap(lambda weights: _ece(weights, *sums), items, draws=DRAWS),
        bootstrap(lambda weights: _mce(weights, *sums), items, draws=DRAWS),
        bootstrap_ratio(found.right.sum(1), choices, scale=100),
        bootstrap_ratio(found.confidence.sum(1), choices),
        int(choices.sum()),
    )


def _ece(weights: Tensor, gap: Tensor, count: Tensor) -> Tensor:
    """Return ECE, the mean gap, (draws,), for weights on items, (draws, items)."""
    return (weights @ gap).abs().sum(1) / (weights @ count).sum(1)


def _mce(weights: Tensor, gap: Tensor, count: Tensor) -> Tensor:
    """Return MCE, the largest gap over non-empty bins, (draws,), for weights (draws, items)."""
    share = (weights @ gap).abs() / (weights @ count)
    return share.nan_to_num(nan=0.0).max(1).values  # NaN: no choice falls into the bin


def _gaps(name: str, reading: str, found: dict[str, BinSums]) -> list[Gap]:
    base = first_block(found)
    if base is None:
        return []
    gaps, items = [], len(found[base].choices)
    for spec in found:
        if spec != base:
            one, other = ((sums.gap, sums.choices) for sums in (found[base], found[spec]))
            ece, mce = (
                bootstrap(
                    lambda w, f=f, one=one, other=other: f(w, *other) - f(w, *one),
                    items,
                    draws=DRAWS,
                )
                for f in (_ece, _mce)
            )
            wave = kind(spec) == "wavefront"
            verdict = direction_verdict(ece, items, "lower") if wave else ""
            gaps.append(Gap(name, reading, spec, ece, mce, verdict))
    return gaps
