"""Information gradient: whether entropy grows with the distance to known tokens.

The theorem in the paper's appendix assumes that H(x_i) grows with the distance of i to the nearest
known token. It concludes that the most confident positions are in the wave's scope. This module
measures both on the canvases of any full trace, with any strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import (
    Curve,
    CurveSums,
    active_steps,
    add_sums,
    correlations,
    curve_sums,
    need_full,
    rank_correlation,
    renumber_rows,
)
from wavefront.core.bounds import MAX_POSITIONS
from wavefront.core.errors import check_int
from wavefront.core.masks import FAR, distance, top
from wavefront.traces.trace import Trace

SCOPES = ("wave", "block", "own")


class Containment(NamedTuple):
    """How many of the K lowest-entropy positions are in a scope, over the steps with a K."""

    whole: float  # the share of steps with all K inside
    part: float  # the mean share of the K that are inside
    chance: float  # that share for K random masked positions; a larger scope contains more
    size: float  # mean number of positions in the scope
    steps: int


@dataclass(frozen=True)
class Gradient:
    """The results of n active steps of rows, and of all masked positions at them."""

    entropies: CurveSums  # by distance to the nearest known token
    row: Tensor  # (n,) long
    t: Tensor  # (n,) long
    rho: Tensor  # (n,) float64: rank correlation of entropy and distance over masked positions
    k: Tensor  # (n,) long
    masked: Tensor  # (n,) long: masked positions
    inside: Tensor  # (3, n) long: of the K, those inside each of SCOPES
    sizes: Tensor  # (3, n) long: positions in each of SCOPES
    rows: int = 0  # in the batch

    @property
    def by_distance(self) -> Curve:
        """Mean entropy of masked positions, in nats, by distance to the nearest known token."""
        return self.entropies.curve

    @property
    def correlation(self) -> float:
        """The rank correlation within a step, averaged over the steps where it is defined."""
        return float(self.rho.nanmean())

    @property
    def of_means(self) -> float:
        """The rank correlation of distance and mean entropy at that distance."""
        return rank_correlation(self.by_distance.x, self.by_distance.mean)

    @property
    def containment(self) -> dict[str, Containment]:
        """By scope: `wave` (masked positions within R), `block`, and the trace's `own`."""
        asked = self.k > 0
        k, masked = self.k[asked], self.masked[asked]
        found = {}
        for index, name in enumerate(SCOPES):
            inside, size = self.inside[index, asked], self.sizes[index, asked]
            found[name] = Containment(
                whole=float((inside == k).double().mean()),
                part=float((inside / k).double().mean()),
                chance=float((size / masked).double().mean()),
                size=float(size.double().mean()),
                steps=len(k),
            )
        return found

    @staticmethod
    def join(parts: Sequence[Gradient]) -> Gradient:
        """Join the steps of several batches."""
        flat = ("t", "rho", "k", "masked")
        return Gradient(
            add_sums([part.entropies for part in parts]),
            renumber_rows([part.row for part in parts], [part.rows for part in parts]),
            *(torch.cat([getattr(part, name) for part in parts]) for name in flat),
            inside=torch.cat([part.inside for part in parts], 1),
            sizes=torch.cat([part.sizes for part in parts], 1),
            rows=sum(part.rows for part in parts),
        )


def correlation_of_means(many: Tensor, total: Tensor) -> Tensor:
    """Return the rank correlation of a distance and the mean entropy at it, (...,) float64.

    `many` and `total`, (..., D), count and sum the entropies at the distances 0 to D - 1.
    """
    mean = (total / many).nan_to_num()
    at = torch.arange(many.shape[-1]).double()
    return correlations(at.expand_as(mean), mean, many > 0)


def measure(trace: Trace, *, radius: int = 2, block: int = 8, k: int | None = None) -> Gradient:
    """Measure entropy by distance, and the K lowest-entropy positions, at every active step.

    K is how many positions the step committed, unless you pass `k`. The scopes of `radius` and
    `block` are computed on this trace's canvases, so that both see the same positions.
    """
    steps = _measure_steps(trace, radius=radius, block=block, k=k)
    empty = CurveSums(*[torch.zeros(0, dtype=torch.float64)] * 3)
    sums = curve_sums(steps.away, steps.entropy) if len(trace) else empty
    return replace(steps.gradient, entropies=sums)


def measure_rows(
    trace: Trace, *, radius: int = 2, block: int = 8, k: int | None = None
) -> list[Gradient]:
    """Measure every row by itself, as `measure` does with `trace.row`, but in one pass."""
    steps = _measure_steps(trace, radius=radius, block=block, k=k)
    found, rows = steps.gradient, trace.first.tokens.shape[0]
    parts: list[Gradient] = []
    for row in range(rows):
        mine, events = found.row == row, steps.row == row
        parts.append(
            Gradient(
                curve_sums(steps.away[events], steps.entropy[events]),
                row=torch.zeros_like(found.row[mine]),
                t=found.t[mine],
                rho=found.rho[mine],
                k=found.k[mine],
                masked=found.masked[mine],
                inside=found.inside[:, mine],
                sizes=found.sizes[:, mine],
                rows=1,
            )
        )
    return parts


class _Steps(NamedTuple):
    """All active steps of a trace, and all masked positions at them."""

    gradient: Gradient  # without its entropies
    away: Tensor  # (m,) long: the distance of a position to the nearest known token
    entropy: Tensor  # (m,) float32
    row: Tensor  # (m,) long


def _measure_steps(trace: Trace, *, radius: int, block: int, k: int | None) -> _Steps:
    need_full(trace, "The information gradient")
    check_int("radius", radius, 0, high=MAX_POSITIONS)
    check_int("block", block, 1, high=MAX_POSITIONS)
    if k is not None:
        check_int("k", k, 1)
    assert trace.entropy is not None  # a full trace has it
    live = active_steps(trace)
    none = torch.zeros(0, dtype=torch.long)
    far, values, of_row, columns = [none], [torch.zeros(0)], [none], []
    steps = zip(trace.before(), trace.commit, trace.candidates, trace.entropy, live, strict=True)
    for canvas, commit, candidates, entropy, rows in steps:
        masked = canvas.masked & entropy.isfinite()  # without the blocks that were not read yet
        away = distance(canvas.known)
        near = masked & (away < FAR)  # without a known token there is no distance
        counted = near & rows[:, None]
        far.append(away[counted])
        values.append(entropy[counted])
        of_row.append(counted.nonzero()[:, 0])
        wanted = commit.sum(-1) if k is None else masked.sum(-1).clamp(max=k)
        lowest = top(-entropy, masked, wanted)
        index = canvas.slot // block
        leftmost = torch.where(masked, index, FAR).amin(-1, keepdim=True)
        scopes = torch.stack([masked & (away <= radius), masked & (index == leftmost), candidates])
        counts = [wanted, masked.sum(-1), *(scopes & lowest).sum(-1), *scopes.sum(-1)]
        rho = correlations(away, entropy, near)
        columns.append((rho[rows], torch.stack(counts)[:, rows]))
    rho = torch.cat([c for c, _ in columns]) if columns else torch.zeros(0, dtype=torch.float64)
    counts = torch.cat([c for _, c in columns], 1) if columns else torch.zeros(8, 0).long()
    where = live.nonzero()
    gradient = Gradient(
        CurveSums(*[rho[:0]] * 3),
        row=where[:, 1],
        t=trace.step[live] + 1,
        rho=rho,
        k=counts[0],
        masked=counts[1],
        inside=counts[2:5],
        sizes=counts[5:],
        rows=trace.first.tokens.shape[0],
    )
    return _Steps(gradient, torch.cat(far), torch.cat(values), torch.cat(of_row))
