"""What several measures need: which steps and places count, distances in ranks, curves."""

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
    """A mean against whole numbers, where there is anything to average: all (n,)."""

    x: Tensor  # long
    mean: Tensor  # float64
    std: Tensor  # float64, of the values themselves
    count: Tensor  # long


class CurveSums(NamedTuple):
    """What a curve is made of, (n,) float64 each: index x holds the values found at x."""

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
    """Values (n,) gathered by x (n,) long, from 0."""
    wide = values.double()
    return CurveSums(*(torch.bincount(x, weights) for weights in (wide**0, wide, wide**2)))


def add_sums(parts: Sequence[CurveSums]) -> CurveSums:
    """The sums of all parts together."""
    longest = max((len(part.many) for part in parts), default=0)
    columns = zip(*([_pad(c, longest) for c in part] for part in parts), strict=True)
    return CurveSums(*(torch.stack(c).sum(0) for c in columns))


def _pad(part: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(part, (0, size - len(part)))


def pad_steps(boards: Sequence[Tensor]) -> Tensor:
    """Boards (S, B) of several traces side by side; the shorter ones are followed by zeros."""
    longest = max(len(board) for board in boards)
    return torch.cat(
        [torch.nn.functional.pad(board, (0, 0, 0, longest - len(board))) for board in boards], 1
    )


def renumber_rows(rows: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Row numbers of several batches, renumbered as if the batches were one."""
    before = [sum(counts[:index]) for index in range(len(counts))]
    return torch.cat([row + start for row, start in zip(rows, before, strict=True)])


# --- of a trace -------------------------------------------------------------------------------


def need_full(trace: Trace, measure: str) -> None:
    """Refuse a trace that does not know every masked place."""
    if not trace.full:
        raise TraceError(
            f"{measure} reads every masked place, and this trace holds only what its strategy "
            "asked for: record it with trace='full'."
        )


def option(trace: Trace, name: str) -> Any:
    """What the trace's header says of an option; None when it says nothing."""
    options = trace.about.get("options")
    return options.get(name) if isinstance(options, dict) else None


def stop_ids_of(trace: Trace, given: Sequence[int] | None) -> tuple[int, ...]:
    """The tokens that end a text: those given, or those of the header."""
    ids = option(trace, "stop_ids") if given is None else given
    if ids is None:
        raise TraceError("The trace does not say which tokens end a text: give stop_ids.")
    return tuple(int(one) for one in ids)


def active_steps(trace: Trace) -> Tensor:
    """(S, B) bool: the row committed or took back something.

    A row that is done stands still, and so does one whose step was void or idle: its statistics are
    old ones then, or those of a canvas that is counted anyway.
    """
    return trace.commit.any(-1) | trace.remask.any(-1)


def budget(trace: Trace) -> Tensor:
    """(B,) long: T, as the header says; without one, the last step that counted."""
    made = torch.where(active_steps(trace), trace.step + 1, 0)
    rows = trace.first.tokens.shape[0]
    made = made.amax(0) if len(trace) else torch.zeros(rows, dtype=torch.long)
    said = option(trace, "steps")
    return made if said is None else torch.full_like(made, int(said))


def final_canvas(trace: Trace) -> Canvas:
    """What the decode left."""
    canvas = trace.first
    for after in trace.replay():
        canvas = after
    return canvas


def visible_positions(trace: Trace, stop_ids: Sequence[int]) -> Tensor:
    """(B, L) bool: the answer as it is read, each hole up to its first stop or undecided place."""
    canvas = final_canvas(trace)
    here, inside = positions(canvas.masked), canvas.slot >= 0
    before = torch.nn.functional.pad(inside[:, :-1], (1, 0), value=False)
    start = torch.where(inside & ~before, here, -1).cummax(-1).values
    end = inside & (canvas.masked | is_any(canvas.tokens, stop_ids))
    last_end = torch.where(end, here, -1).cummax(-1).values
    return inside & (last_end < start)


def lasting_commits(trace: Trace) -> Tensor:
    """(S, B, L) bool: the commits not taken back, at once or later, nor written over by hand."""
    # A hand writes before its step, so the step's own commit comes after it.
    gone = trace.remask | torch.cat([override_mask(trace)[1:], torch.zeros_like(trace.remask[:1])])
    return trace.commit & ~(gone.flip(0).cumsum(0).flip(0) > 0)


def override_mask(trace: Trace) -> Tensor:
    """(S, B, L) bool: where a token was written by hand before the step."""
    board = torch.zeros_like(trace.commit)
    board[tuple(trace.overrides[trace.overrides[:, 0] < len(trace), :3].T)] = True
    return board


# --- ranks ------------------------------------------------------------------------------------


def correlations(x: Tensor, y: Tensor, among: Tensor) -> Tensor:
    """(...,) float64: Spearman's rho of x and y (..., L) over the places `among`.

    Equal values share their mean rank. NaN where there are fewer than two, or all are equal.
    """
    count = among.sum(-1, keepdim=True).double()
    a, b = (
        torch.where(among, _ranks(values, among) - (count + 1) / 2, 0.0) for values in (x, y)
    )  # the mean rank is (n + 1) / 2, ties or not
    return (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()


def _ranks(values: Tensor, among: Tensor) -> Tensor:
    """(..., L) float64: ranks from 1, ties at their mean; meaningless outside `among`."""
    finite = torch.where(among, values.double(), float("inf"))  # after all that count
    ordered = finite.sort(-1).values
    below = torch.searchsorted(ordered, finite, right=False)
    upto = torch.searchsorted(ordered, finite, right=True)
    return (below + upto + 1).double() / 2


def rank_correlation(x: Any, y: Any) -> float:
    """Spearman's rho of two lists of numbers; pairs that hold a NaN are left out."""
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (x, y))
    if a.shape != b.shape or a.dim() != 1:
        raise OptionError(f"A rank correlation pairs two lists, not {[*a.shape]} and {[*b.shape]}.")
    return float(correlations(a, b, ~(a.isnan() | b.isnan())))
