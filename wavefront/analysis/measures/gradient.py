"""Information gradient: does entropy grow with the distance to the known? (the paper's appendix)

The theorem assumes it and concludes that the surest places lie in the wave's scope. Here both are
measured, on the canvases of any full trace, whatever strategy made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from wavefront.core.errors import check_int
from wavefront.core.masks import FAR, distance, top
from wavefront.traces.trace import Trace

SCOPES = ("wave", "block", "own")


class Containment(NamedTuple):
    """How the K lowest-entropy places lie to one scope, over the steps that have a K."""

    whole: float  # the share of steps with all K inside
    part: float  # the mean share of the K that are inside
    chance: float  # that share for K masked places drawn at random: a large scope holds more
    size: float  # places in the scope, on average
    steps: int


@dataclass(frozen=True)
class Gradient:
    """Of n counted steps of rows, and of all masked places at them."""

    entropies: CurveSums  # by distance to the known
    row: Tensor  # (n,) long
    t: Tensor  # (n,) long
    rho: Tensor  # (n,) float64: rank correlation of entropy and distance among the masked places
    k: Tensor  # (n,) long
    masked: Tensor  # (n,) long: places masked
    inside: Tensor  # (3, n) long: of the K, those inside each of SCOPES
    sizes: Tensor  # (3, n) long: places in each of SCOPES
    rows: int = 0  # in the batch

    @property
    def by_distance(self) -> Curve:
        """Mean entropy, in nats, of masked places by their distance to the nearest known one."""
        return self.entropies.curve

    @property
    def correlation(self) -> float:
        """The mean over steps of the rank correlation within a step, where it is defined."""
        return float(self.rho.nanmean())

    @property
    def of_means(self) -> float:
        """The rank correlation of distance and mean entropy at that distance."""
        return rank_correlation(self.by_distance.x, self.by_distance.mean)

    @property
    def containment(self) -> dict[str, Containment]:
        """For `wave`, all masked places within R of the known; `block`; and the trace's `own`."""
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
        """The steps of several batches as one."""
        flat = ("t", "rho", "k", "masked")
        return Gradient(
            add_sums([part.entropies for part in parts]),
            renumber_rows([part.row for part in parts], [part.rows for part in parts]),
            *(torch.cat([getattr(part, name) for part in parts]) for name in flat),
            inside=torch.cat([part.inside for part in parts], 1),
            sizes=torch.cat([part.sizes for part in parts], 1),
            rows=sum(part.rows for part in parts),
        )


def measure(trace: Trace, *, radius: int = 2, block: int = 8, k: int | None = None) -> Gradient:
    """Entropy by distance, and where the K lowest entropies lie, at every step that counts.

    K is how many places the step committed, unless `k` says otherwise. The scopes of `radius` and
    `block` are drawn on this trace's canvases, so that both meet the same places.
    """
    need_full(trace, "The information gradient")
    check_int("radius", radius, 0)
    check_int("block", block, 1)
    if k is not None:
        check_int("k", k, 1)
    assert trace.entropy is not None  # a full trace has it
    live = active_steps(trace)
    far, values, columns = [], [], []
    steps = zip(trace.before(), trace.commit, trace.scope, trace.entropy, live, strict=True)
    for canvas, commit, scope, entropy, rows in steps:
        masked = canvas.masked
        away = distance(canvas.known)
        near = masked & (away < FAR)  # with nothing known there is no distance
        far.append(away[near & rows[:, None]])
        values.append(entropy[near & rows[:, None]])
        wanted = commit.sum(-1) if k is None else masked.sum(-1).clamp(max=k)
        lowest = top(-entropy, masked, wanted)
        index = canvas.slot // block
        leftmost = torch.where(masked, index, FAR).amin(-1, keepdim=True)
        scopes = torch.stack([masked & (away <= radius), masked & (index == leftmost), scope])
        counts = [wanted, masked.sum(-1), *(scopes & lowest).sum(-1), *scopes.sum(-1)]
        rho = correlations(away, entropy, near)
        columns.append((rho[rows], torch.stack(counts)[:, rows]))
    rho = torch.cat([c for c, _ in columns]) if columns else torch.zeros(0, dtype=torch.float64)
    counts = torch.cat([c for _, c in columns], 1) if columns else torch.zeros(8, 0).long()
    where = live.nonzero()
    return Gradient(
        curve_sums(torch.cat(far), torch.cat(values)) if far else CurveSums(*[rho] * 3),
        row=where[:, 1],
        t=trace.step[live] + 1,
        rho=rho,
        k=counts[0],
        masked=counts[1],
        inside=counts[2:5],
        sizes=counts[5:],
        rows=trace.first.tokens.shape[0],
    )
