"""Premature EOS: when and how often a decode commits stop tokens, and how long the text is.

This is the paper's first motivation: a strategy that considers every position decides the end of
the text before the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import budget, stop_ids_of, visible_positions
from wavefront.core.canvas import is_any
from wavefront.core.errors import OptionError
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Endings:
    """The stop tokens of each row. All tensors are (B,) long."""

    first: Tensor  # t of the first commit of a stop token, from 1; 0 if there is none
    steps: Tensor  # T
    ends: Tensor  # commits of stop tokens
    commits: Tensor  # all commits, including remasked ones
    visible: Tensor  # tokens of the visible text
    reference: Tensor | None = None  # tokens of the reference, if given

    @property
    def when(self) -> Tensor:
        """The first stop token as a share of the budget, (B,) float64. NaN if there is none."""
        return torch.where(self.first > 0, self.first.double() / self.steps, float("nan"))

    @property
    def share(self) -> Tensor:
        """The share of commits that are stop tokens, (B,) float64."""
        return self.ends.double() / self.commits

    @property
    def ratio(self) -> Tensor:
        """Visible length divided by reference length, (B,) float64. NaN without a reference."""
        if self.reference is None:
            return torch.full_like(self.visible, float("nan"), dtype=torch.float64)
        return torch.where(self.reference > 0, self.visible.double() / self.reference, float("nan"))

    @staticmethod
    def join(parts: Sequence[Endings]) -> Endings:
        """Join the rows of several batches."""
        names = ("first", "steps", "ends", "commits", "visible")
        references = [part.reference for part in parts if part.reference is not None]
        return Endings(
            *(torch.cat([getattr(part, name) for part in parts]) for name in names),
            reference=torch.cat(references) if len(references) == len(parts) else None,
        )


def measure(
    trace: Trace,
    *,
    stop_ids: Sequence[int] | None = None,
    reference: Sequence[int] | None = None,
) -> Endings:
    """Measure the stop tokens of any trace. `reference` has the token count of each reference."""
    ids = stop_ids_of(trace, stop_ids)
    rows = trace.first.tokens.shape[0]
    if reference is not None and len(reference) != rows:
        raise OptionError(f"There are {rows} rows and {len(reference)} reference lengths.")
    ends = (trace.commit & is_any(trace.tokens, ids)).sum(-1)
    t = torch.where(ends > 0, trace.step + 1, torch.iinfo(torch.long).max)
    first = torch.zeros(rows, dtype=torch.long)
    if len(trace):
        first = torch.where(ends.any(0), t.amin(0), 0)
    return Endings(
        first=first,
        steps=budget(trace),
        ends=ends.sum(0),
        commits=trace.commit.sum((0, 2)),
        visible=visible_positions(trace, ids).sum(-1),
        reference=None if reference is None else torch.tensor(list(reference), dtype=torch.long),
    )
