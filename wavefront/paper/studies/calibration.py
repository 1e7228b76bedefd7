"""Calibration: is the model right as often as it is sure, where each strategy looks?

Teacher forcing (the paper's table 15 and figure 3): the strategy chooses places, the truth is
written there, and the proposal it would have written is held against it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.measures.calibration import Outcomes, decode_forced, forced_batch
from wavefront.core.state import Config
from wavefront.engine.options import plan
from wavefront.engine.session import source
from wavefront.paper.studies._bench import EVALUATED, Bench, base_of
from wavefront.paper.studies._findings import Findings, number
from wavefront.results.bootstrap import resampled, verdict
from wavefront.results.table import Table
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import prompt_ids

DEFAULTS: dict[str, Any] = {"strategies": EVALUATED, "items": 8}  # three readings cost thrice
BINS = 10
READINGS = {
    "reference": "the canvas holds the reference and one end token",
    "padded": "the canvas is filled up with end tokens to N places",
    "prefix": "the truth is written strictly from the left",
}
TEXT = (
    "Under teacher forcing the strategy chooses places, the truth is written there, and each "
    "choice is one pair: the probability of the proposal, and whether it was the truth. ECE is the "
    f"mean gap between the two over {BINS} bins of equal width, MCE the largest. Readings: "
    + "; ".join(f"{name}, {what}" for name, what in READINGS.items())
    + ". Intervals are 95 %, bootstrapped over items."
)
COLUMNS = ["task", "reading", "strategy", "ECE", "MCE", "right, %", "mean confidence", "choices"]
GAPS = ["task", "reading", "strategy", "ECE less block's", "paper: lower"]


def run(bench: Bench) -> Findings:
    """Decode the references under every strategy and reading."""
    bench.expect(len(bench.tasks) * len(READINGS) * len(bench.strategies) * bench.batches())
    rows, gaps, numbers, pictures = [], [], [], {}
    for name in bench.tasks:
        samples = bench.draw(name)
        for reading in READINGS:
            found = {spec: _taught(bench, samples, spec, reading) for spec in bench.strategies}
            for spec, one in found.items():
                numbers.append(_numbers(name, reading, spec, one))
                rows.append([numbers[-1][column] for column in COLUMNS])
            gaps += _gaps(name, reading, found)
            which = "-".join([reading, name] if len(bench.tasks) > 1 else [reading])
            drawn = figures.reliability({s: one.reliability(BINS) for s, one in found.items()})
            pictures[f"reliability-{which}"] = (drawn, f"Reliability, {name}: {READINGS[reading]}")
    tables = [Table("Calibration under teacher forcing", COLUMNS, rows)]
    if gaps:
        tables.append(Table("Against block, in pairs", GAPS, gaps, note=CLAIM))
    return Findings(
        title="Calibration: sure and right",
        text=TEXT,
        configuration=bench.configuration() | {"bins": BINS, "steps (T)": "as many as places"},
        tables=tables,
        numbers={
            "n": bench.items,
            "measured": numbers,
            "gaps": [dict(zip(GAPS, gap, strict=True)) for gap in gaps],
        },
        figures=pictures,
    )


CLAIM = "The paper's table 15 has a lower ECE for the wave than for block on every dataset."


def _taught(bench: Bench, samples: list[Sample], spec: str, reading: str) -> Outcomes:
    lm, parts = bench.lm, []
    options = {"strategy": spec, "max_new_tokens": bench.length, "seed": bench.seed}
    made: Config = plan(options, source(lm.model, lm.stop_ids, lm._id_of)).config
    for start in range(0, len(samples), bench.batch):
        some = samples[start : start + bench.batch]
        lesson = forced_batch(
            [prompt_ids(lm.tokenizer, sample.prompt) for sample in some],
            [lm.tokenizer.encode(sample.answer) for sample in some],
            eos=lm.stop_ids[0],
            mask_id=lm.model.mask_id,
            pad_id=lm.model.pad_id,
            length=bench.length if reading == "padded" else None,
            device=lm.model.device,
        )
        parts.append(decode_forced(lm.model, lesson, made, prefix=reading == "prefix"))
        bench.part(f"{spec}, {reading}")
    return Outcomes.join(parts)


def _numbers(name: str, reading: str, spec: str, found: Outcomes) -> dict[str, Any]:
    bins = found.reliability(BINS)
    return {
        "task": name,
        "reading": reading,
        "strategy": spec,
        "ECE": resampled(lambda w: _ece(w, *_sums(found)), found.rows, draws=2000),
        "MCE": number(bins.mce),
        "right, %": 100 * float(found.correct.double().mean()),
        "mean confidence": float(found.confidence.double().mean()),
        "choices": bins.total,
        "bins": [bins.count, bins.confidence, bins.accuracy],
    }


def _sums(found: Outcomes) -> tuple[Tensor, Tensor]:
    """(items, bins) each: right answers less confidence, and choices."""
    where = found.row * BINS + (found.confidence.double() * BINS).long().clamp(max=BINS - 1)
    gap = found.correct.double() - found.confidence.double()
    size = found.rows * BINS
    many = torch.bincount(where, minlength=size).double()
    return torch.bincount(where, gap, size).view(-1, BINS), many.view(-1, BINS)


def _ece(weights: Tensor, gap: Tensor, many: Tensor) -> Tensor:
    """(draws,) of weights (draws, items)."""
    return (weights @ gap).abs().sum(1) / (weights @ many).sum(1)


def _gaps(name: str, reading: str, found: dict[str, Outcomes]) -> list[list[Any]]:
    base = base_of(found)
    if base is None:
        return []
    rows = []
    for spec in found:
        if spec != base:
            one, other = _sums(found[base]), _sums(found[spec])
            gap = resampled(
                lambda w, one=one, other=other: _ece(w, *other) - _ece(w, *one),
                found[base].rows,
                draws=2000,
            )
            wave = figures.kind(spec) == "wavefront"
            claim = verdict(gap, found[base].rows, claimed="lower") if wave else ""
            rows.append([name, reading, spec, gap, claim])
    return rows
