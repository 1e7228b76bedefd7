"""Calibration: is the model better calibrated at the positions that the wave chooses?

Teacher forcing (the paper's table 15 and figure 3): the strategy chooses positions, the reference
is written there, and the token it would have written is compared with it.
"""

from __future__ import annotations

from typing import NamedTuple

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
from wavefront.engine.session import source
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import Claim, direction_verdict
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import EVALUATED, first_block
from wavefront.results.bootstrap import bootstrap
from wavefront.results.interval import Estimate
from wavefront.results.table import Table, finite
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
    + ". Intervals are 95 %, bootstrapped over items."
)
COLUMNS = ["task", "reading", "strategy", "ECE", "MCE", "right, %", "mean confidence", "choices"]
GAP_COLUMNS = ["task", "reading", "strategy", "ECE less block's", "paper: lower"]
NOTE = "The paper's table 15 has a lower ECE for the wave than for block on every dataset."


class Errors(NamedTuple):
    """Calibration errors of one task, reading and strategy: a row of the first table."""

    task: str
    reading: str
    strategy: str
    ece: Estimate
    mce: float | None
    correct: float  # %
    confidence: float  # mean
    choices: int


class Gap(NamedTuple):
    """ECE minus block's, in pairs: a row of the second table."""

    task: str
    reading: str
    strategy: str
    ece: Estimate
    verdict: str  # empty unless the strategy is a wave


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Force the references under every strategy and reading."""
    decoder.expect_parts(
        len(decoder.tasks) * len(READINGS) * len(decoder.strategies) * decoder.batches()
    )
    errors: list[Errors] = []
    gaps: list[Gap] = []
    bins, pictures = [], {}
    for name in decoder.tasks:
        samples = decoder.draw(name)
        for reading in READINGS:
            found = {spec: _forced(decoder, samples, spec, reading) for spec in decoder.strategies}
            curves = {spec: one.reliability(BINS) for spec, one in found.items()}
            for spec, one in found.items():
                errors.append(_errors(name, reading, spec, (one, curves[spec])))
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
        claims=_claims(errors, gaps, decoder.items),
        tables=[table, *([against_block] if gaps else [])],
        numbers={
            "measured": [row | {"bins": b} for row, b in zip(table.records(), bins, strict=True)],
            "gaps": against_block.records(),
        },
        figures=pictures,
        configuration={"bins": BINS, "steps (T)": "one per position"},
    )


def _claims(errors: list[Errors], gaps: list[Gap], items: int) -> list[Claim]:
    claims = [
        Claim(
            "The wave has a lower ECE than block",
            f"{gap.task}, {gap.strategy}, {gap.reading}",
            gap.ece,
            items,
            None,
            gap.verdict,
        )
        for gap in gaps
        if kind(gap.strategy) == "wavefront"
    ]
    # MCE is the gap of one bin and has no interval here, so it is shown without a verdict.
    base = {(one.task, one.reading): one.mce for one in errors if kind(one.strategy) == "block"}
    for one in errors:
        block = base.get((one.task, one.reading))
        if kind(one.strategy) == "wavefront" and block is not None and one.mce is not None:
            claims.append(
                Claim(
                    "The wave has a lower MCE than block on complex tasks",
                    f"{one.task}, {one.strategy}, {one.reading}",
                    one.mce - block,
                    items,
                    None,
                    "undecided: a largest gap has no interval here",
                )
            )
    return claims


def _forced(decoder: ItemDecoder, samples: list[Sample], spec: str, reading: str) -> Outcomes:
    lm, parts, rows = decoder.lm, [], decoder.scale.rows
    options = {"strategy": spec, "max_new_tokens": decoder.length, "seed": decoder.seed}
    config: Config = plan(options, source(lm.model, lm.stop_ids, lm._id_of)).config
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
        parts.append(decode_forced(lm.model, lesson, config, prefix=reading == "prefix"))
        decoder.finish_part(f"{spec}, {reading}")
    return Outcomes.join(parts)


def _errors(name: str, reading: str, spec: str, found: tuple[Outcomes, Reliability]) -> Errors:
    outcomes, curve = found
    sums = _sums(outcomes)
    return Errors(
        name,
        reading,
        spec,
        bootstrap(lambda weights: _ece(weights, *sums), outcomes.rows, draws=DRAWS),
        finite(curve.mce),
        100 * float(outcomes.correct.double().mean()),
        float(outcomes.confidence.double().mean()),
        curve.total,
    )


def _sums(found: Outcomes) -> tuple[Tensor, Tensor]:
    """Return correct minus confidence, and the number of choices, (items, bins) each."""
    where = found.row * BINS + (found.confidence.double() * BINS).long().clamp(max=BINS - 1)
    gap = found.correct.double() - found.confidence.double()
    size = found.rows * BINS
    count = torch.bincount(where, minlength=size).double()
    return torch.bincount(where, gap, size).view(-1, BINS), count.view(-1, BINS)


def _ece(weights: Tensor, gap: Tensor, count: Tensor) -> Tensor:
    """Return ECE, (draws,), under weights on items, (draws, items)."""
    return (weights @ gap).abs().sum(1) / (weights @ count).sum(1)


def _gaps(name: str, reading: str, found: dict[str, Outcomes]) -> list[Gap]:
    base = first_block(found)
    if base is None:
        return []
    gaps, items = [], found[base].rows
    for spec in found:
        if spec != base:
            one, other = _sums(found[base]), _sums(found[spec])
            gap = bootstrap(
                lambda w, one=one, other=other: _ece(w, *other) - _ece(w, *one), items, draws=DRAWS
            )
            wave = kind(spec) == "wavefront"
            verdict = direction_verdict(gap, items, "lower") if wave else ""
            gaps.append(Gap(name, reading, spec, gap, verdict))
    return gaps
