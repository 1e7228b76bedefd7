"""Helpers of several measures: which steps and positions count, rank correlation, curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas, is_any
from wavefront.core.errors import OptionError, TraceError
from wavefront.core.masks import positions
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Curve:
    """A mean for each integer x that has values. All tensors are (n,)."""

    x: Tensor  # long
    mean: Tensor  # float64
    std: Tensor  # float64, of the single values
    count: Tensor  # long


class CurveSums(NamedTuple):
    """The sums behind a curve, (n,) float64 each. Index x holds the sums of the values at x."""

    many: Tensor
    total: Tensor
    square: Tensor

    @property
    def curve(self) -> Curve:
        x = self.many.nonzero()[:, 0]
        count, total, square = (part[x] for part in self)
        mean = total / count
        return Curve(x, mean, (square / count - mean**2).clamp(min=0).sqrt(), count.long())


def curve_sums(x: Tensor, values: Tensor) -> CurveSums:
    """Sum the values (n,) for each x (n,) long, from 0."""
    wide = values.double()
    return CurveSums(*(torch.bincount(x, weights) for weights in (wide**0, wide, wide**2)))


def add_sums(parts: Sequence[CurveSums]) -> CurveSums:
    """Add the sums of all parts."""
    longest = max((len(part.many) for part in parts), default=0)
    columns = zip(*([_pad(c, longest) for c in part] for part in parts), strict=True)
    return CurveSums(*(torch.stack(c).sum(0) for c in columns))


def _pad(part: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, size - len(part)))


def pad_steps(boards: Sequence[Tensor]) -> Tensor:
    """Concatenate boards (S, B) of several traces along rows, padding short ones with zeros."""
    longest = max(len(board) for board in boards)
    return torch.cat(
        [torch.nn.functional.pad(board, (0, 0, 0, longest - len(board))) for board in boards], 1
    )


def renumber_rows(rows: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Renumber the rows of several batches as if they were one batch."""
    before = [sum(counts[:index]) for index in range(len(counts))]
    return torch.cat([row + start for row, start in zip(rows, before, strict=True)])


# --- of a trace -------------------------------------------------------------------------------


def need_full(trace: Trace, measure: str) -> None:
    """Raise TraceError unless the trace has statistics for every masked position."""
    if not trace.full:
        raise TraceError(
            f"{measure} needs statistics of every masked position, and this trace has only those "
            "of its strategy's candidates. Record it with trace='full'."
        )


def option(trace: Trace, name: str) -> Any:
    """Return an option from the trace's header, or None if it is not there."""
    options = trace.about.get("options")
    return options.get(name) if isinstance(options, dict) else None


def stop_ids_of(trace: Trace, given: Sequence[int] | None) -> tuple[int, ...]:
    """Return the given stop tokens, or the stop tokens in the header."""
    ids = option(trace, "stop_ids") if given is None else given
    if ids is None:
        raise TraceError("The trace does not name its stop tokens; pass stop_ids.")
    return tuple(int(token) for token in ids)


def active_steps(trace: Trace) -> Tensor:
    """Return the steps at which a row committed or remasked a token, (S, B) bool.

    Other steps of a row do not count: the row was done, the step was repeated, or it was a no-op.
    Their statistics are stale, or belong to a canvas that another step counts.
    """
    return trace.written.any(-1) | trace.remask.any(-1)


def budget(trace: Trace) -> Tensor:
    """Return T, (B,) long: from the header, or else the last active step."""
    last = torch.where(active_steps(trace), trace.step + 1, 0)
    rows = trace.first.tokens.shape[0]
    last = last.amax(0) if len(trace) else torch.zeros(rows, dtype=torch.long)
    steps = option(trace, "steps")
    return last if steps is None else torch.full_like(last, int(steps))


def final_canvas(trace: Trace) -> Canvas:
    """Return the canvas after the last step."""
    canvas = trace.first
    for after in trace.replay():
        canvas = after
    return canvas


def visible_positions(trace: Trace, stop_ids: Sequence[int]) -> Tensor:
    """Return the visible text, (B, L) bool: each hole up to its first stop token or mask."""
    canvas = final_canvas(trace)
    here, inside = positions(canvas.masked), trace.answer
    before = torch.nn.functional.pad(inside[:, :-1], (1, 0), value=False)
    start = torch.where(inside & ~before, here, -1).cummax(-1).values
    end = inside & (canvas.masked | is_any(canvas.tokens, stop_ids))
    last_end = torch.where(end, here, -1).cummax(-1).values
    return inside & (last_end < start)


def lasting_commits(trace: Trace) -> Tensor:
    """Return the commits that were neither remasked nor overridden later, (S, B, L) bool."""
    # An override happens before its step, so the step's own commit comes after it.
    gone = trace.remask | torch.cat([override_mask(trace)[1:], torch.zeros_like(trace.remask[:1])])
    return trace.commit & ~(gone.flip(0).cumsum(0).flip(0) > 0)


def override_mask(trace: Trace) -> Tensor:
    """Return where a token was overridden before the step, (S, B, L) bool."""
    board = torch.zeros_like(trace.commit)
    board[tuple(trace.overrides[trace.overrides[:, 0] < len(trace), :3].T)] = True
    return board


# --- ranks ------------------------------------------------------------------------------------


def correlations(x: Tensor, y: Tensor, among: Tensor) -> Tensor:
    """Return Spearman's rho of x and y (..., L) over the positions `among`, (...,) float64.

    Equal values share their mean rank. NaN if there are fewer than two values or all are equal.
    """
    count = among.sum(-1, keepdim=True).double()
    a, b = (
        torch.where(among, _ranks(values, among) - (count + 1) / 2, 0.0) for values in (x, y)
    )  # the mean rank is (n + 1) / 2, ties or not
    return (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()


def _ranks(values: Tensor, among: Tensor) -> Tensor:
    """Return ranks from 1, (..., L) float64, with mean ranks for ties. Only `among` is valid."""
    finite = torch.where(among, values.double(), float("inf"))  # sorts after all valid values
    ordered = finite.sort(-1).values
    below = torch.searchsorted(ordered, finite, right=False)
    upto = torch.searchsorted(ordered, finite, right=True)
    return (below + upto + 1).double() / 2


def rank_correlation(x: Any, y: Any) -> float:
    """Return Spearman's rho of two lists of numbers, without pairs that contain a NaN."""
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (x, y))
    if a.shape != b.shape or a.dim() != 1:
        raise OptionError(
            f"A rank correlation needs two equal lists, not {[*a.shape]} and {[*b.shape]}."
        )
    return float(correlations(a, b, ~(a.isnan() | b.isnan())))
