"""Fork: a recorded decode continued from one of its steps, to see what would have happened.

`at` counts recorded steps: the fork goes on from the canvas that step `at` saw, with the T - at
steps that were left (a row's own steps, those passed over included).

* **The same strategy** goes on exactly as it was: the decode is run again up to there, held against
  the record, and handed over with all that the strategy remembers. Unless something is changed by
  hand, the rest is the rest of the record.
* **Another strategy** takes over the canvas as it stands, and needs no record but that. What is
  decided is given to it, as in infilling; the M places still masked are counted anew from 0, and
  its clock runs from 0 to T - at. So any strategy can take over, and nothing decided before the
  fork is taken back. At step 0 that is the strategy's own decode.
* **By hand** tokens are written before the step, over a decided place or on a masked one. The clock
  goes on, and what is written counts as decided; a strategy that takes back may take that back too,
  and having no score for what it did not fill, it may doubt that first.

A trace of a fork holds the steps before it as well, and in `about["fork"]` how it came about: so it
can be shown, run again, and forked like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from wavefront.core import spec
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError, TraceError, check_int
from wavefront.core.state import Step
from wavefront.core.strategy import Strategy
from wavefront.engine.replay import (
    ReplayHook,
    RestoredState,
    check_model,
    difference,
    perform,
    segments,
    take_over,
    write_by_hand,
)
from wavefront.engine.session import DecodeSession, describe, source
from wavefront.engine.step import count_computed
from wavefront.models.protocol import Model
from wavefront.traces.trace import Trace, write


class Forked(DecodeSession):
    """A decode from the fork on; its trace and its counts begin where the recorded one began."""

    def __init__(
        self, model: Model, moment: RestoredState, before: Trace, about: Mapping[str, Any]
    ) -> None:
        canvas = moment.rows.canvas._replace(slot=moment.slot)
        record = "full" if before.full else "basic"
        hook = ReplayHook(moment)
        super().__init__(model, canvas, moment.plan, record=record, state=moment.rows, hook=hook)
        self._before, self._about, self.begun = before, about, len(before)
        self._price = count_computed([moment.config], canvas) * max(1, moment.plan.speculate)
        self.forwards = before.forwards
        self.token_forwards = self.forwards * self._price
        self._made = before.commit.any(-1).sum(0).to(canvas.tokens.device)

    def __next__(self) -> Step:
        step = super().__next__()
        paid = self._before.forwards
        step = step._replace(
            number=step.number + self.begun,
            forwards=step.forwards + paid,
            token_forwards=step.token_forwards + paid * self._price,
        )
        self.forwards, self.token_forwards = step.forwards, step.token_forwards
        return step

    def trace(self) -> Trace:
        after = super().trace()
        assert after is not None  # it is always recorded
        return self._before.followed_by(replace(after, about=self._about))


def fork(
    model: Model,
    trace: Trace,
    at: int,
    *,
    strategy: str | Strategy | None = None,
    overrides: Mapping[int, int] | None = None,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
) -> Forked:
    """Go on from the canvas that step `at` saw, as the module says.

    `strategy` is another strategy, by default the same. `put` maps places, counted from 0 over
    those to fill, to the tokens to write there; it needs a trace of one row.
    """
    if not len(check_model(model, trace)):
        raise TraceError("The trace has no step to fork at: record one that has.")
    check_int("at", at, 0, len(trace) - 1)
    asked = None if strategy is None else resolve(strategy).with_ids(id_of)
    chain = segments(trace, source(model, stop_ids, id_of), asked)
    chain = [segment for segment in chain if segment.at <= at]  # what came later plays no part
    last, own = chain[-1], trace.step[at].to(model.device)
    hands = _hands(model, trace, overrides or {})
    if asked is None or repr(asked) == repr(last.plan.config.strategy):
        moment, seen = perform(model, trace, chain, own)
        _hold_against(trace.until(at), seen)
        moment = write_by_hand(moment, hands.to(model.device))
    else:
        canvas = write(next(islice(trace.before(), at, None)), hands)
        canvas = Canvas(*(part.to(model.device) for part in canvas))
        made = replace(last.plan, config=replace(last.plan.config, strategy=asked))
        moment = take_over(canvas, canvas.slot, own, made, "full" if trace.full else "basic")
    parent = dict(last.about)
    for name in ("texts", "special_ids"):
        parent.pop(name, None)  # the fork has its own
    forked = {"at": at, "steps": own.tolist(), "put": hands.tolist(), "of": parent}
    about = {**trace.about, **describe(model, moment.plan), "fork": forked}
    return Forked(model, moment, _with_hands(trace, at, hands), about)


def resolve(strategy: str | Strategy) -> Strategy:
    """The strategy that a spec string or an object stands for."""
    made = spec.resolve(strategy, "strategies") if isinstance(strategy, str) else strategy
    if not isinstance(made, Strategy):
        raise OptionError(f"strategy must be a spec string or a Strategy, not {made!r}.")
    return made


def _hands(model: Model, trace: Trace, overrides: Mapping[int, int]) -> Tensor:
    """(E, 3) long: row, place, token."""
    if overrides and trace.first.slot.shape[0] > 1:
        raise OptionError("By hand one row is changed at a time: take it with trace.row(0).")
    places = (trace.first.slot[0] >= 0).nonzero()[:, 0].tolist()
    entries = []
    for slot, token in overrides.items():
        check_int("a place to write at", slot, 0, len(places) - 1)
        check_int("a token to write", token, 0, model.vocab_size - 1)
        if token == model.mask_id:
            raise OptionError("The mask cannot be written by hand: write a token.")
        entries.append([0, places[slot], token])
    return torch.tensor(entries, dtype=torch.long).view(-1, 3)


def _hold_against(record: Trace, seen: Trace) -> None:
    if found := difference(record, seen):
        raise TraceError(
            f"This model does not repeat the trace, whose row {found.row + 1} it decodes otherwise "
            f"at step {found.step + 1}: use the model, device and dtype that made it, or let "
            "another strategy take over."
        )


def _with_hands(trace: Trace, at: int, hands: Tensor) -> Trace:
    """The steps before the fork, and what is written by hand at it."""
    step, row, place, _ = trace.overrides.T
    again = (row[:, None] == hands[:, 0]) & (place[:, None] == hands[:, 1])
    kept = trace.overrides[(step < at) | ((step == at) & ~again.any(-1))]
    new = torch.nn.functional.pad(hands, (1, 0), value=at)
    return replace(trace.until(at), overrides=torch.cat([kept, new]))
