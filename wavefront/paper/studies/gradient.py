"""Gradient: does entropy grow with the distance to the known, and are the surest places near it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from wavefront.analysis import figures
from wavefront.analysis.measures import gradient
from wavefront.analysis.measures.gradient import Gradient
from wavefront.paper.studies._bench import Bench
from wavefront.paper.studies._findings import Findings, number
from wavefront.results.bootstrap import ends, mean, ratio, verdict
from wavefront.results.table import Table
from wavefront.tasks.base import Sample

DEFAULTS: dict[str, Any] = {}
SCOPES = dict(zip(gradient.SCOPES, ("near the known", "leftmost block", "own scope"), strict=True))
CANVASES = {
    "padded": "N places, whatever the answer's length",
    "answer": "as many places as the reference and one end token need",
}
TEXT = (
    "The paper's theorem assumes that entropy grows with the distance to what is known, and "
    "concludes that the surest places lie in the wave's scope. Both are measured on the canvases "
    "that each strategy made. Near the known: masked places within the radius of any known place. "
    "A model is sure from far away of what follows the end of an answer, so there are two "
    "canvases: " + "; ".join(f"{name}, {what}" for name, what in CANVASES.items()) + ". Intervals "
    "are 95 %, bootstrapped over items."
)
COLUMNS = ["task", "canvas", "made by", "rank correlation", "of the means", "paper: above 0"]
SHARES = ["scope", "surest inside, %", "at random, %", "gap, %", "places in it"]
INSIDE = [*COLUMNS[:3], *SHARES]


def run(bench: Bench) -> Findings:
    """Decode, and look at every masked place of every step."""
    rows, inside, numbers, pictures = [], [], [], {}
    lots = {name: _lots(bench, bench.draw(name)) for name in bench.tasks}
    groups = [lot for both in lots.values() for lot in both.values()]
    batches = sum(bench.batches(len(some)) for lot in groups for _, some in lot)
    bench.expect(len(bench.strategies) * batches)
    for name, both in lots.items():
        for canvas, lot in both.items():
            entropy: dict[str, figures.Line] = {}
            contained: dict[str, Mapping[str, Any]] = {}
            for spec in bench.strategies:
                parts = [one for at in lot for one in _measured(bench, name, spec, *at)]
                whole = Gradient.join(parts)
                entropy[spec], contained[spec] = by_distance(parts), whole.containment
                rho = mean(torch.tensor([part.correlation for part in parts]).double())
                claim = verdict(rho, len(parts), claimed="higher")
                rows.append([name, canvas, spec, rho, number(whole.of_means), claim])
                inside += [[name, canvas, spec, *_contained(parts, scope)] for scope in SCOPES]
                numbers.append(dict(zip(COLUMNS, rows[-1], strict=True)))
                numbers[-1]["entropy by distance"] = entropy[spec]._asdict()
                numbers[-1]["containment"] = {k: v._asdict() for k, v in contained[spec].items()}
            which = "-".join([canvas, name] if len(bench.tasks) > 1 else [canvas])
            drawn = figures.gradient(entropy, contained)
            pictures[f"gradient-{which}"] = (drawn, f"Gradient, {name}: {CANVASES[canvas]}")
    return Findings(
        title="Information gradient: entropy by distance to the known",
        text=TEXT,
        configuration=bench.configuration(),
        tables=[
            Table("Entropy against distance, rank correlation", COLUMNS, rows, note=NOTE),
            Table("Where the surest places lie", INSIDE, inside),
        ],
        numbers={"n": bench.items, "measured": numbers},
        figures=pictures,
    )


Lot = list[tuple[int, list[Sample]]]  # items by the places of their canvas


def _lots(bench: Bench, samples: list[Sample]) -> dict[str, Lot]:
    """The items for each canvas; those of one length are decoded together."""
    own: dict[int, list[Sample]] = {}
    for sample in samples:
        own.setdefault(len(bench.lm.tokenizer.encode(sample.answer)) + 1, []).append(sample)
    return {"padded": [(bench.length, samples)], "answer": sorted(own.items(), key=itemgetter(0))}


def _measured(
    bench: Bench, name: str, spec: str, length: int, samples: list[Sample]
) -> list[Gradient]:
    """One an item."""
    steps = bench.budget if length == bench.length else length
    made = bench.decode(name, samples, spec, max_new_tokens=length, steps=steps)
    return [
        gradient.measure(trace.row(row), radius=bench.radius)
        for trace in made.traces
        for row in range(len(trace.first.tokens))
    ]


NOTE = (
    "Within a step, then the mean over the steps of an item; of the means: between a distance and "
    "the mean entropy at it."
)


def by_distance(parts: Sequence[Gradient]) -> figures.Line:
    """Mean entropy by distance in octaves (1, 2, 3-4, 5-8, ...), with intervals over items."""
    longest = max(len(part.entropies.many) for part in parts)
    pads = [longest - len(part.entropies.many) for part in parts]
    many, total = (
        torch.stack([_wide(part.entropies[n], pad) for part, pad in zip(parts, pads, strict=True)])
        for n in (0, 1)
    )
    x, found, low = [], [], 1
    while low < longest:
        high = 1 if low == 1 else 2 * (low - 1)
        one = ratio(total[:, low : high + 1].sum(1), many[:, low : high + 1].sum(1))
        if one is not None:
            x.append(float(high))
            found.append(one)
        low = high + 1
    return figures.Line(x, *zip(*map(ends, found), strict=True))


def _wide(values: Tensor, pad: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, pad))


def _contained(parts: Sequence[Gradient], scope: str) -> list[Any]:
    """A scope's cells of the second table: shares in %, the gap in pairs."""
    found = [part.containment[scope] for part in parts]
    part, chance = (
        torch.tensor([getattr(one, name) for one in found], dtype=torch.float64)
        for name in ("part", "chance")
    )
    shares = [mean(v, scale=100) for v in (part, chance, part - chance)]
    size = sum(one.size for one in found) / len(found)
    return [SCOPES[scope], *shares, round(size, 2)]
