"""Fork: continue a recorded decode from one of its steps, with changes.

`at` counts recorded steps. The fork continues from the canvas that step `at` saw, with the T - at
steps that were left. Each row counts its own steps, including those it skipped.

* **With the same strategy**, the decode is run again up to step `at`, compared with the trace, and
  continued with the full state of the strategy. If you change nothing, the rest equals the
  rest of the trace.
* **With another strategy**, only the canvas is used. Decided positions are given, as in infilling.
  The masked positions are counted from 0, and so are the T - at steps. Any strategy can therefore
  take over if it suits the whole answer in T steps, but it cannot remask earlier decisions. At
  step 0 this equals an ordinary decode with that strategy.
* **With overrides**, tokens are written before the step, on decided or masked positions. They count
  as decided, and the step count continues. A strategy that remasks can remask them too. It has no
  score for them, so it may remask them first.

The trace of a fork includes the steps before it, and `about["fork"]` says how it was made. You can
show it, replay it, and fork it like any other trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.constraint import check_room
from wavefront.core.errors import OptionError, TraceError, check_int
from wavefront.core.state import Step
from wavefront.core.strategy import Strategy
from wavefront.engine.options import AutomatonOf, resolve_strategy
from wavefront.engine.replay import (
    ReplayHook,
    RestoredState,
    apply_overrides,
    check_model,
    difference,
    plan_of,
    rerun_segments,
    segments,
    take_over,
)
from wavefront.engine.session import DecodeSession, describe, model_properties
from wavefront.engine.step import count_computed
from wavefront.models.protocol import Model
from wavefront.traces.trace import Trace, write


class ForkedSession(DecodeSession):
    """A decode from the fork on. Its trace and its counts include the steps before the fork.

    A trace does not hold how many positions a pass computed. `token_forwards` therefore counts the
    whole canvas for every pass before the fork, also if a cache was used.
    """

    def __init__(
        self, model: Model, origin: RestoredState, *, before: Trace, about: Mapping[str, Any]
    ) -> None:
        """Continue from `origin`.

        Args:
            model: The model to decode with.
            origin: The state at the fork.
            before: The trace of the steps before the fork.
            about: The description of the new trace.
        """
        canvas = origin.rows.canvas._replace(slot=origin.slot)
        record = "full" if before.full else "basic"
        hook = ReplayHook(origin)
        super().__init__(model, canvas, origin.plan, record=record, state=origin.rows, hook=hook)
        self._before, self._about, self.first_step = before, about, len(before)
        self._positions_per_pass = count_computed([origin.config], canvas)
        self._positions_per_pass *= max(1, origin.plan.speculate)
        self.forwards = before.forwards
        self.token_forwards = self.forwards * self._positions_per_pass
        self._active_steps = before.commit.any(-1).sum(0).to(canvas.tokens.device)
        for request, passes in zip(self._requests, _passes_before(before, origin), strict=True):
            request.forwards = passes
            request.token_forwards = passes * self._positions_per_pass // len(self._requests)

    def __next__(self) -> Step:
        """Take the next step; its counts include the steps before the fork."""
        step = super().__next__()
        forwards = self._before.forwards
        step = step._replace(
            number=step.number + self.first_step,
            forwards=step.forwards + forwards,
            token_forwards=step.token_forwards + forwards * self._positions_per_pass,
        )
        self.forwards, self.token_forwards = step.forwards, step.token_forwards
        return step

    def trace(self) -> Trace:
        """Return the trace so far, including the steps before the fork."""
        after = super().trace()
        assert after is not None  # a fork is always recorded
        return self._before.followed_by(replace(after, about=self._about))


def _passes_before(before: Trace, origin: RestoredState) -> list[int]:
    """Return the forward passes of each row before the fork: up to its last step if done."""
    done, filled = origin.rows.done.cpu(), (origin.rows.canvas.slot >= 0).any(-1).cpu()
    if not len(before):
        return [0] * len(done)
    # If another strategy has taken over after its end, a row's last step is its last change.
    changed = (before.written | before.remask).any(-1)  # (S, B)
    taken = torch.where(filled, before.step < origin.steps_taken.cpu(), changed)
    last = len(before) - 1 - taken.long().flip(0).argmax(0)
    own = before.launched[torch.where(taken.any(0), last, 0)]
    return torch.where(done, own, before.launched[-1]).tolist()


def fork(
    model: Model,
    trace: Trace,
    at: int,
    *,
    strategy: str | Strategy | None = None,
    overrides: Mapping[int, int] | None = None,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
    automaton_of: AutomatonOf | None = None,
) -> ForkedSession:
    """Continue a recorded decode from the canvas that step `at` saw.

    Args:
        model: The model that made the trace.
        trace: The recorded decode.
        at: The step to fork at, counted from 0.
        strategy: The strategy that takes over. The default is the trace's own.
        overrides: Tokens to write first, by position. Positions are counted from 0 over those to
            fill. The trace must have one row.
        stop_ids: The default stop tokens, if they differ from the model's.
        id_of: Returns the token id of a text, for options that name a token by its text.
        automaton_of: Compiles a constraint, for options such as `schema`.

    Returns:
        The session, before its first step.

    Raises:
        OptionError: `at`, `strategy` or `overrides` is wrong.
        TraceError: The trace has no steps, or this model does not reproduce it.
    """
    if not len(check_model(model, trace)):
        raise TraceError("The trace has no steps, so it cannot be forked: record a new one.")
    check_int("at", at, 0, high=len(trace) - 1)
    wanted = None if strategy is None else resolve_strategy(strategy).with_ids(id_of)
    trusted = [] if wanted is None else [wanted]
    given = model_properties(model, stop_ids, id_of, automaton_of=automaton_of)
    chain = segments(trace, given, trusted)
    chain = [segment for segment in chain if segment.at <= at]  # later segments do not matter
    last, steps = chain[-1], trace.step[at].to(model.device)
    entries = _override_entries(model, trace, overrides or {})
    if wanted is None or repr(wanted) == repr(last.plan.strategy):
        origin, repeated = rerun_segments(model, trace, chain, until=steps)
        _check_repeats(trace.until(at), repeated)
        origin = apply_overrides(origin, entries.to(model.device))
    else:
        canvas = write(next(islice(trace.before(), at, None)), entries)
        canvas = Canvas(*(part.to(model.device) for part in canvas))
        # The plan of a replay: checked, and inside the blocks of a block-causal model.
        options = {**last.about["options"], "strategy": repr(wanted)}
        plan = plan_of({**last.about, "options": options}, given, trusted)
        kind = "full" if trace.full else "basic"
        origin = take_over(canvas, plan, slot=canvas.slot, past=steps, kind=kind)
    rows = origin.rows
    if rows.canvas.masked.any() and origin.config.constraint is not None:
        check_room(origin.config.constraint, rows.canvas, rows.answer)
    parent = dict(last.about)
    for name in ("texts", "special_ids"):
        parent.pop(name, None)  # the fork has its own
    forked = {"at": at, "steps": steps.tolist(), "put": entries.tolist(), "of": parent}
    about = {**trace.about, **describe(model, origin.plan), "fork": forked}
    return ForkedSession(model, origin, before=_trace_before(trace, at, entries), about=about)


def _override_entries(model: Model, trace: Trace, overrides: Mapping[int, int]) -> Tensor:
    """Return the overrides as (E, 3) long: row, position, token."""
    if overrides and trace.first.slot.shape[0] > 1:
        raise OptionError(
            "overrides needs a trace of one row: select it with trace.row(0).",
            option="overrides",
            value=overrides,
        )
    positions = (trace.first.slot[0] >= 0).nonzero()[:, 0].tolist()
    entries = []
    for slot, token in overrides.items():
        try:
            check_int("The position of an override", slot, 0, high=len(positions) - 1)
            check_int("The token of an override", token, 0, high=model.vocab_size - 1)
        except OptionError as error:
            error.option = "overrides"
            raise
        if token == model.mask_id:
            raise OptionError(
                "overrides cannot write the mask token: give another token.",
                option="overrides",
                value=token,
            )
        entries.append([0, positions[slot], token])
    return torch.tensor(entries, dtype=torch.long).view(-1, 3)


def _check_repeats(record: Trace, repeated: Trace) -> None:
    """Raise `TraceError` if the model did not reproduce the trace."""
    if found := difference(record, repeated):
        raise TraceError(
            f"This model does not reproduce the trace: row {found.row + 1} differs at step "
            f"{found.step + 1}. Use the model, device and dtype that made it, or another strategy."
        )


def _trace_before(trace: Trace, at: int, entries: Tensor) -> Trace:
    """Return the trace of the steps before the fork, with the overrides at the fork."""
    step, row, position, _ = trace.overrides.T
    replaced = (row[:, None] == entries[:, 0]) & (position[:, None] == entries[:, 1])
    kept = trace.overrides[(step < at) | ((step == at) & ~replaced.any(-1))]
    new = torch.nn.functional.pad(entries, (1, 0), value=at)
    return replace(trace.until(at), overrides=torch.cat([kept, new]))
