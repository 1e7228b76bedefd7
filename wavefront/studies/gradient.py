"""Gradient: does entropy grow with the distance to the known, and are the surest places near it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wavefront import figures
from wavefront.measures import gradient
from wavefront.measures.gradient import Gradient
from wavefront.report.run import Table
from wavefront.studies._bench import EVALUATED, Bench
from wavefront.studies._findings import Findings, number
from wavefront.studies._intervals import ends, mean, ratio, verdict

DEFAULTS: dict[str, Any] = {"schedules": EVALUATED}
SCOPES = {"wave": "near the known", "block": "leftmost block", "own": "own scope"}
TEXT = (
    "The paper's theorem assumes that entropy grows with the distance to what is known, and "
    "concludes that the surest places lie in the wave's scope. Both are measured on the canvases "
    "that each strategy made. Near the known: masked places within the radius of any known place. "
    "Places after the end of an answer are masked places like any other here, and the model is "
    "sure of them from far away. Intervals are 95 %, bootstrapped over items."
)
COLUMNS = ["task", "made by", "rank correlation", "of the means", "paper: above 0"]
INSIDE = ["task", "made by", "scope", "surest inside, %", "at random, %", "gap, %", "places in it"]


def run(bench: Bench) -> Findings:
    """Decode, and look at every masked place of every step."""
    bench.expect(len(bench.tasks) * len(bench.schedules) * bench.batches())
    rows, inside, numbers = [], [], []
    pictures = {}
    for name in bench.tasks:
        samples = bench.draw(name)
        entropy: dict[str, figures.Line] = {}
        contained: dict[str, Mapping[str, Any]] = {}
        for spec in bench.schedules:
            made = bench.decode(name, samples, spec)
            parts = [
                gradient.measure(trace.row(row), radius=bench.radius)
                for trace in made.traces
                for row in range(len(trace.first.tokens))
            ]
            whole = Gradient.join(parts)
            entropy[spec], contained[spec] = by_distance(parts), whole.containment
            rho = mean(torch.tensor([part.correlation for part in parts], dtype=torch.float64))
            rows.append(
                [
                    name,
                    spec,
                    rho,
                    number(whole.of_means),
                    verdict(rho, len(parts), claimed="higher"),
                ]
            )
            inside += [[name, spec, *_contained(parts, scope)] for scope in SCOPES]
            numbers.append(
                {
                    "task": name,
                    "made by": spec,
                    "rank correlation": rho,
                    "of the means": number(whole.of_means),
                    "entropy by distance": entropy[spec]._asdict(),
                    "containment": {k: one._asdict() for k, one in contained[spec].items()},
                }
            )
        which = f"gradient-{name}" if len(bench.tasks) > 1 else "gradient"
        pictures[which] = (figures.gradient(entropy, contained), f"Information gradient, {name}")
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
