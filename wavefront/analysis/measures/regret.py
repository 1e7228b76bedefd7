"""Regret: the model's probability of a committed token at later steps (the paper's figure 4).

There are two readings. `direct` is the probability of the token in the canvas of the later step,
where the model sees the token itself. `leave-one-out` masks that one position first, so that the
model must predict the token again. It takes one forward pass per token and step.
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
from wavefront.models.protocol import Model
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Regret:
    """n events, each a committed token and a later step."""

    reading: str
    row: Tensor  # (n,) long, as the next three
    place: Tensor
    t: Tensor  # of the later step
    lag: Tensor  # steps since its commit, in the row's own steps, from 1
    probability: Tensor  # (n,) float32: the model's, at that step
    initial: Tensor  # (n,) float32: the proposal's, when it was committed
    rows: int = 0  # in the batch

    def by_lag(self) -> Curve:
        """Return the mean probability by steps since the commit."""
        return curve_sums(self.lag, self.probability).curve

    def by_step(self) -> Curve:
        """Return the mean probability by t."""
        return curve_sums(self.t, self.probability).curve

    @property
    def mean(self) -> float:
        return float(self.probability.double().mean())

    @property
    def drop(self) -> float:
        """The mean drop in probability since the commit. Negative means a rise."""
        return float((self.initial.double() - self.probability.double()).mean())

    @staticmethod
    def join(parts: Sequence[Regret]) -> Regret:
        """Join the events of several batches."""
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
    """Replay a trace, and compute the probability of every committed token at later steps.

    It is the model's own probability, without temperature or guidance. Only every `every`-th active
    step of a row is measured.
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
    found = ask(trace, model, tokens, wanted=wanted, at_once=rows_at_once)
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
    """Return the state before every step, (S, B, L) each: tokens, commit index or -1, its p."""
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


def _direct(trace: Trace, model: Model, tokens: Tensor, *, wanted: Tensor, at_once: int) -> Tensor:
    """Return (n,) float32: one forward pass per board, read at all wanted positions."""
    steps, rows = wanted.any(-1).nonzero().T
    found = []
    for some in _chunks(len(steps), at_once):
        boards, want = tokens[steps[some], rows[some]], wanted[steps[some], rows[some]]
        at = (~want).to(torch.uint8).argsort(dim=-1, stable=True)[:, : int(want.sum(-1).max())]
        own = boards.gather(-1, at)
        said = _probability(trace, model, boards, rows=rows[some], at=at, own=own)
        found.append(said[want.gather(-1, at)])  # wanted positions come first, in order
    return torch.cat(found) if found else torch.zeros(0)


def _left_out(
    trace: Trace, model: Model, tokens: Tensor, *, wanted: Tensor, at_once: int
) -> Tensor:
    """Return (n,) float32: one board per wanted position, with that position masked."""
    steps, rows, places = wanted.nonzero().T
    found = []
    for some in _chunks(len(steps), at_once):
        boards, at = tokens[steps[some], rows[some]], places[some][:, None]
        own = boards.gather(-1, at)
        boards = boards.scatter(-1, at, model.mask_id)
        found.append(_probability(trace, model, boards, rows=rows[some], at=at, own=own)[:, 0])
    return torch.cat(found) if found else torch.zeros(0)


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _probability(
    trace: Trace, model: Model, boards: Tensor, *, rows: Tensor, at: Tensor, own: Tensor
) -> Tensor:
    """Return the probability of the tokens `own` at the positions `at`, (n, Q) float32."""
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
    assert reading.current_logp is not None  # because `needs` names it
    return reading.current_logp.exp().cpu()
