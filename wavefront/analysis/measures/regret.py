"""Regret: what the model thinks of a committed token at later steps.

Two readings. `direct`: the probability of the token where it stands, in the canvas that the later
step saw; the model then sees the token it is asked about. `leave-one-out`: the same canvas with
that one place masked again, so that the model must say it once more; a forward per token and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import (
    Curve,
    active_steps,
    curve_sums,
    override_mask,
    renumber_rows,
)
from wavefront.core.errors import check_choice, check_int
from wavefront.core.reading import Sampling, read
from wavefront.models.loader import Model
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Regret:
    """n events: a committed token, and a later step that saw it."""

    reading: str
    row: Tensor  # (n,) long, as the next three
    place: Tensor
    t: Tensor  # of the later step
    lag: Tensor  # steps since its commit, by the row's own clock, from 1
    probability: Tensor  # (n,) float32: the model's, at that step
    initial: Tensor  # (n,) float32: the proposal's, when it was committed
    rows: int = 0  # in the batch

    def by_lag(self) -> Curve:
        """Mean probability against steps since the commit."""
        return curve_sums(self.lag, self.probability).curve

    def by_step(self) -> Curve:
        """Mean probability against t."""
        return curve_sums(self.t, self.probability).curve

    @property
    def mean(self) -> float:
        return float(self.probability.double().mean())

    @property
    def drop(self) -> float:
        """How much less probable than when they were committed; below 0: more."""
        return float((self.initial.double() - self.probability.double()).mean())

    @staticmethod
    def join(parts: Sequence[Regret]) -> Regret:
        """The events of several batches as one."""
        flat = ("place", "t", "lag", "probability", "initial")
        return Regret(
            parts[0].reading,
            renumber_rows([part.row for part in parts], [part.rows for part in parts]),
            *(torch.cat([getattr(part, name) for part in parts]) for name in flat),
            rows=sum(part.rows for part in parts),
        )


@torch.no_grad()
def measure(
    trace: Trace,
    model: Model,
    *,
    reading: Literal["direct", "leave-one-out"] = "direct",
    rows_at_once: int = 64,
    every: int = 1,
) -> Regret:
    """Replay a trace and ask the model about everything that was committed before each step.

    The probability is the model's own: no temperature, no guidance, nothing hidden from it. Only
    steps that count are asked at, and of those each `every`-th of a row.
    """
    check_choice("reading", reading, ("direct", "leave-one-out"))
    check_int("rows_at_once", rows_at_once, 1)
    check_int("every", every, 1)
    tokens, born, initial = _history(trace)
    live = active_steps(trace)
    asked = live & ((live.cumsum(0) - 1) % every == 0)
    wanted = (born >= 0) & asked[..., None]
    step, row, place = wanted.nonzero().T
    ask = _direct if reading == "direct" else _left_out
    found = ask(trace, model, tokens, wanted, rows_at_once)
    return Regret(
        reading,
        row,
        place,
        t=trace.step[step, row] + 1,
        lag=trace.step[step, row] - trace.step[born[wanted], row],
        probability=found,
        initial=initial[wanted],
        rows=trace.first.tokens.shape[0],
    )


def _history(trace: Trace) -> tuple[Tensor, Tensor, Tensor]:
    """(S, B, L) each, as every step found it: tokens, the index of the commit or -1, its p."""
    tokens, born, initial = [], [], []
    since = torch.full_like(trace.first.tokens, -1)
    sure = torch.zeros(since.shape)
    hands = override_mask(trace)
    for index, canvas in enumerate(trace.before()):
        since = since.masked_fill(hands[index], -1)
        tokens.append(canvas.tokens)
        born.append(since)
        initial.append(sure)
        commit = trace.commit[index]
        since = torch.where(commit, index, since).masked_fill(trace.remask[index], -1)
        sure = torch.where(commit, trace.logp[index].exp(), sure)
    if not tokens:
        return since[None][:0], since[None][:0], sure[None][:0]
    return torch.stack(tokens), torch.stack(born), torch.stack(initial)


def _direct(trace: Trace, model: Model, tokens: Tensor, wanted: Tensor, at_once: int) -> Tensor:
    """(n,) float32: every board once, read at all places that are asked about."""
    steps, rows = wanted.any(-1).nonzero().T
    found = []
    for some in _chunks(len(steps), at_once):
        boards, want = tokens[steps[some], rows[some]], wanted[steps[some], rows[some]]
        at = (~want).to(torch.uint8).argsort(dim=-1, stable=True)[:, : int(want.sum(-1).max())]
        own = boards.gather(-1, at)
        said = _probability(trace, model, boards, rows[some], at, own)
        found.append(said[want.gather(-1, at)])  # those asked about come first, by place
    return torch.cat(found) if found else torch.zeros(0)


def _left_out(trace: Trace, model: Model, tokens: Tensor, wanted: Tensor, at_once: int) -> Tensor:
    """(n,) float32: a board for every place asked about, with that place masked."""
    steps, rows, places = wanted.nonzero().T
    found = []
    for some in _chunks(len(steps), at_once):
        boards, at = tokens[steps[some], rows[some]], places[some][:, None]
        own = boards.gather(-1, at)
        boards = boards.scatter(-1, at, model.mask_id)
        found.append(_probability(trace, model, boards, rows[some], at, own)[:, 0])
    return torch.cat(found) if found else torch.zeros(0)


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _probability(
    trace: Trace, model: Model, boards: Tensor, rows: Tensor, at: Tensor, own: Tensor
) -> Tensor:
    """(n, Q) float32 on the CPU: the probability of the tokens `own` at the places `at`."""
    real = trace.first.real
    attend = None if bool(real.all()) else real[rows].to(model.device)
    there: Any = at.to(model.device)
    states = model.hidden(boards.to(model.device), attend, there).flatten(0, 1)
    reading = read(
        lambda chunk: model.head(states[chunk]),
        torch.zeros_like(there, dtype=torch.int32),
        own.to(model.device),
        vocab_size=model.vocab_size,
        mask_id=model.mask_id,
        sampling=Sampling(),
        needs=("current_logp",),
    )
    assert reading.current_logp is not None  # it was asked for
    return reading.current_logp.exp().cpu()
