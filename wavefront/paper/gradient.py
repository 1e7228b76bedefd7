"""Gradient: does entropy grow with the distance to the known, as the theorem assumes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.measures import gradient
from wavefront.analysis.measures.gradient import Gradient
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale
from wavefront.paper.claims import Claim, direction_claim, direction_verdict, exact_claim
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import STRATEGIES
from wavefront.results.bootstrap import (
    bootstrap,
    bootstrap_known_mean,
    bootstrap_ratio,
    to_column,
)
from wavefront.results.interval import Estimate, Interval, bounds
from wavefront.results.table import Table
from wavefront.tasks.base import Sample

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=6, length=32)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=64, length=1024, rows=1, style="paper")
COMPARED = STRATEGIES
NEAR = "near known text"
SCOPES = dict(zip(gradient.SCOPES, (NEAR, "leftmost block", "own scope"), strict=True))
CANVASES = {
    "padded": "N positions for any length of the answer",
    "answer": "as many positions as the reference and one end token need",
}
TEXT = (
    "The paper's theorem assumes that entropy grows with the distance to known tokens, and "
    "concludes that the most confident positions are in the wave's scope. Both are measured on the "
    'canvases of each strategy. "Near known text" means masked positions within the radius of a '
    "known one. Far from known text, a model is still confident about what follows the end of an "
    "answer, so there are two canvases: "
    + "; ".join(f"{name}, {what}" for name, what in CANVASES.items())
    + ". Intervals are 95 %, bootstrapped over items."
)
COLUMNS = ["task", "canvas", "made by", "rank correlation", "of the means", "paper: above 0"]
SCOPE_COLUMNS = [*COLUMNS[:3], "scope", "surest inside, %", "at random, %", "gap, %",
                 "places in it"]  # fmt: skip
NOTE = (
    "Within a step, then the mean over the steps of an item; of the means: between a distance and "
    "the mean entropy at it."
)
DRAWS = 1000  # resamples of a rank correlation, whose statistic is slow


class Correlation(NamedTuple):
    """Entropy against distance: a row of the first table."""

    task: str
    canvas: str
    strategy: str
    rank: Estimate
    of_means: Estimate
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
    size: Estimate  # positions in the scope


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode, and measure every masked position of every step."""
    correlations: list[Correlation] = []
    contained: list[Containment] = []
    curves, pictures = [], {}
    lots = {name: decoder.draw(name) for name in decoder.tasks}
    decoder.expect_parts(len(lots) * len(CANVASES) * len(decoder.strategies) * decoder.batches())
    for name, samples in lots.items():
        for canvas in CANVASES:
            entropy: dict[str, figures.Line] = {}
            containment: dict[str, Mapping[str, Any]] = {}
            for spec in decoder.strategies:
                kept = decoder.keep(
                    f"{name}, {spec}, {canvas}",
                    lambda n=name, s=samples, one=spec, c=canvas: _measure_items(
                        decoder, n, s, spec=one, canvas=c
                    ),
                )
                entropy[spec], containment[spec] = by_distance(kept), joined_containment(kept)
                rank = bootstrap_known_mean(to_column(kept["correlation"]))
                verdict = direction_verdict(rank, len(kept["correlation"]), "higher")
                of_means = _estimate(kept["of_means"])
                correlations.append(Correlation(name, canvas, spec, rank, of_means, verdict))
                contained += [
                    Containment(name, canvas, spec, SCOPES[scope], *_shares(kept["scopes"][scope]))
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
        tables=[table, Table("Where the most confident positions are", SCOPE_COLUMNS, contained)],
        numbers={"measured": [r | c for r, c in zip(table.records(), curves, strict=True)]},
        figures=pictures,
    )


def _claims(
    correlations: list[Correlation], contained: list[Containment], items: int
) -> list[Claim]:
    claims = [
        Claim(
            "Entropy grows with the distance to known text",
            f"{one.task}, {one.canvas}, {one.strategy}",
            one.rank,
            items,
            None,
            one.verdict,
        )
        for one in correlations
    ]
    near = [one for one in contained if one.scope == NEAR]
    claims += [
        exact_claim(
            "The most confident positions are always near known text",
            f"{one.task}, {one.canvas}, {one.strategy}",
            holds=bounds(one.inside)[0] == 100,
            items=items,
        )
        for one in near
    ]
    return claims + [
        direction_claim(
            "The most confident positions are near known text, beyond chance (%)",
            f"{one.task}, {one.canvas}, {one.strategy}",
            gap=one.gap,
            items=items,
            claimed="higher",
        )
        for one in near
    ]


def _measure_items(
    decoder: ItemDecoder, name: str, samples: Sequence[Sample], *, spec: str, canvas: str
) -> dict[str, Any]:
    """Decode the items on one canvas, and return a few numbers for each."""
    tight = canvas == "answer"
    batches = (
        decoder.decode_tightly(samples, spec)
        if tight
        else decoder.decode_batches(name, samples, spec)
    )
    parts: list[Gradient] = []
    for decoded in batches:
        for trace in decoded.traces:
            parts += gradient.measure_rows(trace, radius=decoder.radius)
    longest = max(len(part.entropies.many) for part in parts)
    many, total = (
        torch.stack([_pad(part.entropies[n], longest - len(part.entropies[n])) for part in parts])
        for n in (0, 1)
    )  # (items, distances)
    octaves = _octaves(longest)
    held = [part.containment for part in parts]
    return {
        "correlation": [part.correlation for part in parts],
        "of_means": _of_means(many, total),
        "distances": [high for _, high in octaves],
        "many": [many[:, low : high + 1].sum(1) for low, high in octaves],
        "total": [total[:, low : high + 1].sum(1) for low, high in octaves],
        "scopes": {
            scope: {
                field: [getattr(one[scope], field) for one in held]
                for field in gradient.Containment._fields
            }
            for scope in SCOPES
        },
    }


def _octaves(longest: int) -> list[tuple[int, int]]:
    """Return the distances 1, 2, 3-4, 5-8, ... that are pooled, first and last."""
    found, low = [], 1
    while low < longest:
        high = 1 if low == 1 else 2 * (low - 1)
        found.append((low, high))
        low = high + 1
    return found


def _of_means(many: Tensor, total: Tensor) -> Estimate:
    """Return the rank correlation of a distance and the mean entropy at it, over items."""
    return bootstrap(
        lambda weights: gradient.correlation_of_means(weights @ many, weights @ total),
        len(many),
        draws=DRAWS,
    )


def by_distance(kept: Mapping[str, Any]) -> figures.Line:
    """Return mean entropy by distance in octaves (1, 2, 3-4, 5-8, ...), with intervals."""
    x, found = [], []
    for at, many, total in zip(kept["distances"], kept["many"], kept["total"], strict=True):
        one = bootstrap_ratio(to_column(total), to_column(many))
        if one is not None:
            x.append(float(at))
            found.append(one)
    return figures.Line(x, *zip(*map(bounds, found), strict=True))


def joined_containment(kept: Mapping[str, Any]) -> dict[str, gradient.Containment]:
    """Return the containment over the steps of all items."""
    found: dict[str, gradient.Containment] = {}
    for scope, columns in kept["scopes"].items():
        steps = to_column(columns["steps"])
        means = [
            float((to_column(columns[name]).nan_to_num() * steps).sum() / steps.sum())
            for name in gradient.Containment._fields[:-1]
        ]
        found[scope] = gradient.Containment(*means, steps=int(steps.sum()))
    return found


def _estimate(kept: Any) -> Estimate:
    """Return an estimate that is on record."""
    return Interval(**kept) if isinstance(kept, dict) else kept


def _pad(values: Tensor, pad: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, pad))


def _shares(columns: Mapping[str, Sequence[float]]) -> list[Estimate]:
    """Return the shares inside a scope and by chance in %, their gap, and the scope's mean size."""
    part, chance, size = (to_column(columns[name]) for name in ("part", "chance", "size"))
    shares = [bootstrap_known_mean(v, scale=100) for v in (part, chance, part - chance)]
    return [*shares, bootstrap_known_mean(size)]
