"""MHCO: how often a position is committed before a more confident one (the paper's section 4.4).

MHCO_t is the share of the tokens committed at step t that violate the order. A committed position
violates it if a masked position has a strictly higher probability, is outside the scope but within
`radius` of it, and is not committed itself. "Outside" has two readings that give different results,
so both are always computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import (
    lasting_commits,
    need_full,
    option,
    pad_steps,
    rank_correlation,
    stop_ids_of,
    visible_positions,
)
from wavefront.core import spec
from wavefront.core.bounds import MAX_POSITIONS
from wavefront.core.errors import SpecError, check_int
from wavefront.core.masks import distance, extent
from wavefront.strategies.block import Block
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Mhco:
    """The counts of one reading, per step and row."""

    reading: str  # "candidates" or "extent"
    violations: Tensor  # (S, B) long: commits with a more confident position outside
    commits: Tensor  # (S, B) long
    visible: Tensor  # (S, B) bool: the step commits a token of the visible text

    @property
    def by_step(self) -> Tensor:
        """MHCO_t, (S, B) float64. NaN if nothing is committed."""
        return self.violations.double() / self.commits

    def rows(self, visible: bool = False) -> Tensor:
        """Return the share over each row's committed tokens, (B,) float64. NaN if there is none.

        With `visible`, count only the steps that commit visible tokens.
        """
        steps = self.visible if visible else torch.ones_like(self.visible)
        return (self.violations * steps).sum(0).double() / (self.commits * steps).sum(0)

    def mean(self, visible: bool = False) -> float:
        """Return the share over the committed tokens of all rows."""
        steps = self.visible if visible else torch.ones_like(self.visible)
        return float((self.violations * steps).sum().double() / (self.commits * steps).sum())

    def correlation(self, correct: Any, visible: bool = False) -> float:
        """Return Spearman's rho between an item's MHCO and whether its answer is right."""
        return rank_correlation(self.rows(visible), torch.as_tensor(correct).double())


class Readings(NamedTuple):
    """The measure in both readings: outside the candidates, and outside their extent."""

    candidates: Mhco
    extent: Mhco

    @staticmethod
    def join(parts: Sequence[Readings]) -> Readings:
        """Join the rows of several batches."""
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
    """Measure MHCO of a full trace. Use the same `radius` for every strategy that you compare.

    `block` is the size of the strategy's blocks, whose edges are its extent. By default it comes
    from the trace's header. For other strategies the extent ends at the outermost candidates.
    """
    need_full(trace, "MHCO")
    check_int("radius", radius, 0, high=MAX_POSITIONS)
    size = _block_size(trace) if block is None else block
    check_int("block", size, 1, high=MAX_POSITIONS)
    read = visible_positions(trace, stop_ids_of(trace, stop_ids))
    visible = (lasting_commits(trace) & read).any(-1)
    commits = trace.commit.sum(-1)
    found: dict[str, list[Tensor]] = {"candidates": [], "extent": []}
    steps = zip(trace.before(), trace.commit, trace.candidates, trace.logp, strict=True)
    for canvas, commit, candidates, logp in steps:
        # In float32: positions whose probabilities all round to 1 are equal.
        confidence = logp.exp()
        boards = {"candidates": candidates, "extent": extent(candidates, canvas.slot, size)}
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
    """Return the block size of a block strategy from the header, or 1 for other strategies."""
    text = option(trace, "strategy")
    try:
        # The file is not trusted: look up only names of our own registries.
        strategy = spec.resolve_builtin(text, "strategies") if text else None
    except SpecError:
        return 1
    return strategy.size if isinstance(strategy, Block) else 1
