"""Endings: how early answers end, the paper's first motivation, item by item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wavefront.analysis.measures import eos
from wavefront.paper.studies._bench import Bench, Decoded
from wavefront.tasks.base import Sample

COLUMNS = (
    "first end token, share of T",
    "end tokens, % of commits",
    "visible / reference",
    "right, %",
)


def endings(bench: Bench, made: Decoded, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Every column as (items,) float64, NaN where there is nothing to say."""
    lengths = [len(bench.lm.tokenizer.encode(sample.answer)) for sample in samples]
    found = []
    for trace in made.traces:
        rows = len(trace.first.tokens)
        found.append(eos.measure(trace, reference=lengths[:rows]))
        lengths = lengths[rows:]
    right = torch.tensor(made.correct or [torch.nan] * len(samples)).double()
    values = (
        torch.cat([one.when for one in found]),
        100 * torch.cat([one.share for one in found]),
        torch.cat([one.ratio for one in found]),
        100 * right,
    )
    return dict(zip(COLUMNS, values, strict=True))
