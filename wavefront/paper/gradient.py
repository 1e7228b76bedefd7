"""Gradient: does entropy grow with the distance to the known, as the theorem assumes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.measures import gradient
from wavefront.analysis.measures.gradient import Gradient
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import Claim, direction_claim, direction_verdict
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import STRATEGIES
from wavefront.results.bootstrap import bootstrap_known_mean, bootstrap_ratio
from wavefront.results.interval import Estimate, bounds
from wavefront.results.table import Table, finite
from wavefront.tasks.base import Sample

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=6, length=32)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=64, length=1024, rows=1, style="paper")
COMPARED = STRATEGIES
NEAR = "near the known"
SCOPES = dict(zip(gradient.SCOPES, (NEAR, "leftmost block", "own scope"), strict=True))
CANVASES = {
    "padded": "N positions, whatever the answer's length",
    "answer": "as many positions as the reference and one end token need",
}
TEXT = (
    "The paper's theorem assumes that entropy grows with the distance to known tokens, and "
    "concludes that the most confident positions lie in the wave's scope. Both are measured on the "
    "canvases of each strategy. Near the known: masked positions within the radius of a known one. "
    "A model is confident from afar of what follows the end of an answer, so there are two "
    "canvases: " + "; ".join(f"{name}, {what}" for name, what in CANVASES.items()) + ". Intervals "
    "are 95 %, bootstrapped over items."
)
COLUMNS = ["task", "canvas", "made by", "rank correlation", "of the means", "paper: above 0"]
SCOPE_COLUMNS = [*COLUMNS[:3], "scope", "surest inside, %", "at random, %", "gap, %",
                 "places in it"]  # fmt: skip
NOTE = (
    "Within a step, then the mean over the steps of an item; of the means: between a distance and "
    "the mean entropy at it."
)
Lot = list[tuple[int, list[Sample]]]  # items by the length of their canvas


class Correlation(NamedTuple):
    """Entropy against distance: a row of the first table."""

    task: str
    canvas: str
    strategy: str
    rank: Estimate
    of_means: float | None
    verdict: str


class Containment(NamedTuple):
    """How often the most confident positions lie in a scope: a row of the second table."""

    task: str
    canvas: str
    strategy: str
    scope: str
    inside: Estimate  # %
    chance: Estimate  # %
    gap: Estimate  # %
    size: float  # positions in the scope


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode, and measure every masked position of every step."""
    correlations: list[Correlation] = []
    contained: list[Containment] = []
    curves, pictures = [], {}
    lots = {name: _lots(decoder, decoder.draw(name)) for name in decoder.tasks}
    groups = [lot for both in lots.values() for lot in both.values()]
    batches = sum(decoder.batches(len(some)) for lot in groups for _, some in lot)
    decoder.expect_parts(len(decoder.strategies) * batches)
    for name, both in lots.items():
        for canvas, lot in both.items():
            entropy: dict[str, figures.Line] = {}
            containment: dict[str, Mapping[str, Any]] = {}
            for spec in decoder.strategies:
                parts = [one for at in lot for one in _gradients(decoder, name, spec, at)]
                joined = Gradient.join(parts)
                entropy[spec], containment[spec] = by_distance(parts), joined.containment
                rank = bootstrap_known_mean(torch.tensor([p.correlation for p in parts]).double())
                verdict = direction_verdict(rank, len(parts), "higher")
                of_means = finite(joined.of_means)
                correlations.append(Correlation(name, canvas, spec, rank, of_means, verdict))
                contained += [
                    Containment(name, canvas, spec, SCOPES[scope], *_shares(parts, scope))
                    for scope in SCOPES
                ]
                curves.append(
                    {
                        "entropy by distance": entropy[spec]._asdict(),
                        "containment": {k: v._asdict() for k, v in containment[spec].items()},
                    }
                )
            which = "-".join([canvas, name] if len(decoder.tasks) > 1 else [canvas])
            drawn = figures.gradient(entropy, containment)
            pictures[f"gradient-{which}"] = (drawn, f"Gradient, {name}: {CANVASES[canvas]}")
    table = Table("Entropy against distance, rank correlation", COLUMNS, correlations, note=NOTE)
    return Measurement(
        title="Information gradient: entropy by distance to known tokens",
        text=TEXT,
        items=decoder.items,
        claims=_claims(correlations, contained, decoder.items),
        tables=[table, Table("Where the surest places lie", SCOPE_COLUMNS, contained)],
        numbers={"measured": [r | c for r, c in zip(table.records(), curves, strict=True)]},
        figures=pictures,
    )


def _claims(
    correlations: list[Correlation], contained: list[Containment], items: int
) -> list[Claim]:
    claims = [
        Claim(
            "Entropy grows with the distance to the known",
            f"{one.task}, {one.canvas}, {one.strategy}",
            one.rank,
            items,
            None,
            one.verdict,
        )
        for one in correlations
    ]
    return claims + [
        direction_claim(
            "The surest places lie near the known, beyond chance (%)",
            f"{one.task}, {one.canvas}, {one.strategy}",
            gap=one.gap,
            items=items,
            claimed="higher",
        )
        for one in contained
        if one.scope == NEAR
    ]


def _lots(decoder: ItemDecoder, samples: list[Sample]) -> dict[str, Lot]:
    """Return the items for each canvas; those of one length are decoded together."""
    own: dict[int, list[Sample]] = {}
    for sample in samples:
        own.setdefault(len(decoder.lm.tokenizer.encode(sample.answer)) + 1, []).append(sample)
    return {"padded": [(decoder.length, samples)], "answer": sorted(own.items(), key=itemgetter(0))}


def _gradients(
    decoder: ItemDecoder, name: str, spec: str, lot: tuple[int, list[Sample]]
) -> list[Gradient]:
    """Measure each item of one canvas length."""
    length, samples = lot
    steps = decoder.steps if length == decoder.length else length
    decoded = decoder.decode(name, samples, spec, max_new_tokens=length, steps=steps)
    return [
        gradient.measure(trace.row(row), radius=decoder.radius)
        for trace in decoded.traces
        for row in range(len(trace.first.tokens))
    ]


def by_distance(parts: Sequence[Gradient]) -> figures.Line:
    """Return mean entropy by distance in octaves (1, 2, 3-4, 5-8, ...), with intervals."""
    longest = max(len(part.entropies.many) for part in parts)
    pads = [longest - len(part.entropies.many) for part in parts]
    many, total = (
        torch.stack([_pad(part.entropies[n], pad) for part, pad in zip(parts, pads, strict=True)])
        for n in (0, 1)
    )
    x, found, low = [], [], 1
    while low < longest:
        high = 1 if low == 1 else 2 * (low - 1)
        one = bootstrap_ratio(total[:, low : high + 1].sum(1), many[:, low : high + 1].sum(1))
        if one is not None:
            x.append(float(high))
            found.append(one)
        low = high + 1
    return figures.Line(x, *zip(*map(bounds, found), strict=True))


def _pad(values: Tensor, pad: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, pad))


def _shares(parts: Sequence[Gradient], scope: str) -> list[Any]:
    """Return the shares inside a scope and by chance in %, their gap, and the scope's mean size."""
    found = [part.containment[scope] for part in parts]
    part, chance = (
        torch.tensor([getattr(one, name) for one in found], dtype=torch.float64)
        for name in ("part", "chance")
    )
    shares = [bootstrap_known_mean(v, scale=100) for v in (part, chance, part - chance)]
    return [*shares, round(sum(one.size for one in found) / len(found), 2)]
