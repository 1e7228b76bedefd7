"""MHCO: how often a place is committed before a surer one just outside the scope (section 4.4).

A committed place violates the order when some masked place outside the scope, within `radius` of
it and not committed itself, has a strictly higher probability. "Outside" has two readings, and they
decide the comparison, so both are always computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import (
    lasting,
    need_full,
    option,
    pad_steps,
    rank_correlation,
    stop_ids_of,
    visible_places,
)
from wavefront.core import spec
from wavefront.core.errors import SpecError, check_int
from wavefront.core.masks import distance, extent
from wavefront.strategies.block import Block
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Mhco:
    """One reading, counted per step and row."""

    reading: str  # "candidates" or "extent"
    violations: Tensor  # (S, B) long: commits that something outside beats
    commits: Tensor  # (S, B) long
    visible: Tensor  # (S, B) bool: the step commits a token that is read in the end

    @property
    def by_step(self) -> Tensor:
        """(S, B) float64: MHCO_t; NaN where nothing is committed."""
        return self.violations.double() / self.commits

    def rows(self, visible: bool = False) -> Tensor:
        """(B,) float64: the share over a row's committed tokens; NaN where there is none.

        `visible` keeps to the steps that commit visible tokens.
        """
        steps = self.visible if visible else torch.ones_like(self.visible)
        return (self.violations * steps).sum(0).double() / (self.commits * steps).sum(0)

    def mean(self, visible: bool = False) -> float:
        """The share over the committed tokens of all rows."""
        steps = self.visible if visible else torch.ones_like(self.visible)
        return float((self.violations * steps).sum().double() / (self.commits * steps).sum())

    def correlation(self, correct: Any, visible: bool = False) -> float:
        """Spearman's rho between an item's MHCO and whether its answer is right."""
        return rank_correlation(self.rows(visible), torch.as_tensor(correct).double())


class Readings(NamedTuple):
    """Both, because they differ: what could not be chosen, and what lies beyond the edges."""

    candidates: Mhco
    extent: Mhco

    @staticmethod
    def join(parts: Sequence[Readings]) -> Readings:
        """The rows of several batches as one."""
        return Readings(*(_join(column) for column in zip(*parts, strict=True)))


def _join(parts: Sequence[Mhco]) -> Mhco:
    names = ("violations", "commits", "visible")
    return Mhco(parts[0].reading, *(pad_steps([getattr(p, name) for p in parts]) for name in names))


def measure(
    trace: Trace,
    radius: int = 2,
    *,
    stop_ids: Sequence[int] | None = None,
    block: int | None = None,
) -> Readings:
    """MHCO of a full trace; `radius` is the same for every strategy that is compared.

    `block` is the size of the strategy's blocks, whose edges are its extent; by default what the
    trace's header says, and for other strategies the extent ends at the outermost candidates.
    """
    need_full(trace, "MHCO")
    check_int("radius", radius, 0)
    size = _block_size(trace) if block is None else block
    check_int("block", size, 1)
    read = visible_places(trace, stop_ids_of(trace, stop_ids))
    visible = (lasting(trace) & read).any(-1)
    commits = trace.commit.sum(-1)
    found: dict[str, list[Tensor]] = {"candidates": [], "extent": []}
    steps = zip(trace.before(), trace.commit, trace.scope, trace.logp, strict=True)
    for canvas, commit, scope, logp in steps:
        # The probability as float32 has it: places that all round to 1 do not beat one another.
        confidence = logp.exp()
        boards = {"candidates": scope, "extent": extent(scope, canvas.slot, size)}
        for reading, board in boards.items():
            outside = canvas.masked & ~commit & ~board & (distance(board) <= radius)
            best = torch.where(outside, confidence, -1.0).amax(-1, keepdim=True)
            found[reading].append((commit & (best > confidence)).sum(-1))
    empty = torch.zeros_like(commits)
    return Readings(
        *(
            Mhco(name, torch.stack(counts) if counts else empty, commits, visible)
            for name, counts in found.items()
        )
    )


def _block_size(trace: Trace) -> int:
    """The block size of a strategy of blocks, from the header; 1 for all others."""
    text = option(trace, "strategy")
    try:
        # A file may come from anywhere: only names of our own shelves are looked up.
        strategy = spec.resolve(text, "strategies", outside=False) if text else None
    except SpecError:
        return 1
    return strategy.size if isinstance(strategy, Block) else 1
