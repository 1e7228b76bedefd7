"""Rerun: a recorded decode made again from its description, to its end or up to one of its steps.

A trace says in `about["options"]` how it was decoded, and in `about["fork"]` what it is a fork of.
That makes a chain of segments, each with a plan of its own; between them tokens may have been
written by hand, and another strategy may have taken over. `perform` goes through the chain.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core import spec
from wavefront.core.canvas import Canvas, is_complete
from wavefront.core.errors import SpecError, TraceError, WavefrontWarning
from wavefront.core.state import Config, DecodeState, Step, start
from wavefront.core.strategy import State, Strategy
from wavefront.core.tree import choose
from wavefront.engine.batcher import Batcher, Kind, run
from wavefront.engine.options import Plan, Source, plan
from wavefront.engine.session import recorded, source
from wavefront.models.protocol import Model
from wavefront.traces.trace import Recorder, Trace, write

DEEPEST = 64  # forks of forks


class Difference(NamedTuple):
    """Where two decodes part."""

    row: int
    step: int  # the row's own, from 0


class Segment(NamedTuple):
    """A stretch of a recorded decode that one plan made."""

    about: Mapping[str, Any]
    plan: Plan
    at: int  # its first step, as recorded
    steps: list[int]  # the same by each row's own count
    by_hand: list[list[int]]  # row, place, token: by hand before it


class RestoredState(NamedTuple):
    """A decode between two steps, and all it takes to go on."""

    plan: Plan
    config: Config
    rows: DecodeState
    slot: Tensor  # (B, L) long: the places to fill, as the whole decode counts them
    past: Tensor  # (B,) long: steps made before the clock of `rows` began

    @property
    def own(self) -> Tensor:
        """(B,) long: steps made."""
        return self.rows.step + self.past


def again(
    model: Model,
    trace: Trace,
    *,
    strategy: Strategy | None = None,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
) -> Trace:
    """The same decode once more. `strategy` vouches for a strategy from outside: see segments."""
    chain = segments(trace, source(model, stop_ids, id_of), strategy)
    return perform(model, trace, chain)[1]


def difference(one: Trace, two: Trace) -> Difference | None:
    """The first step at which other places or tokens were committed or taken back."""
    parted = []
    for row in range(one.step.shape[1]):
        mine, other = _story(one, row), _story(two, row)
        steps = [step for step in mine.keys() | other.keys() if mine.get(step) != other.get(step)]
        parted += [Difference(row, min(steps))] if steps else []
    return min(parted, key=lambda found: found.step, default=None)


def _story(trace: Trace, row: int) -> dict[int, list[list[int]]]:
    """Of a row: its own step -> the places committed with their tokens, and those taken back."""
    story: dict[int, list[list[int]]] = {}
    number = trace.step[:, row].tolist()
    for at, place in trace.commit[:, row].nonzero().tolist():
        story.setdefault(number[at], []).append([place, int(trace.tokens[at, row, place])])
    for at, place in trace.remask[:, row].nonzero().tolist():
        story.setdefault(number[at], []).append([place])
    return story


def segments(trace: Trace, given: Source, trusted: Strategy | None = None) -> list[Segment]:
    """The chain that made a trace, oldest first.

    Traces come from anywhere, and naming a strategy from outside imports it: that is done only for
    one that the caller names too, `trusted`.
    """
    about, chain = trace.about, []
    while len(chain) <= DEEPEST:
        made = _plan(about, given, trusted)
        forked = about.get("fork")
        if forked is None:
            return [Segment(about, made, 0, [], []), *reversed(chain)]
        chain.append(_segment(about, trace, given, made))
        about = forked["of"]
    raise TraceError(f"The trace is a fork of a fork more than {DEEPEST} times: make it anew.")


def _segment(about: Mapping[str, Any], trace: Trace, given: Source, made: Plan) -> Segment:
    forked = about["fork"]
    board = torch.tensor([*trace.first.tokens.shape, given.vocab_size])
    try:
        by_hand = torch.tensor(forked["put"], dtype=torch.long).reshape(-1, 3)
        steps = torch.tensor(forked["steps"], dtype=torch.long)
        at = range(len(trace) + 1)[forked["at"]]
        if len(steps) != len(trace.first.tokens) or not isinstance(forked["of"], Mapping):
            raise ValueError
        if bool((by_hand < 0).any() | (by_hand >= board).any()):
            raise ValueError
    except (LookupError, TypeError, ValueError, RuntimeError, OverflowError):
        raise TraceError("The trace does not say what it is a fork of: make it anew.") from None
    return Segment(about, made, at, steps.tolist(), by_hand.tolist())


def _plan(about: Mapping[str, Any], given: Source, trusted: Strategy | None) -> Plan:
    options = about.get("options")
    text = options.get("strategy") if isinstance(options, Mapping) else None
    if not isinstance(options, Mapping) or not isinstance(text, str):
        raise TraceError("The trace does not say how it was decoded: record it anew.")
    if trusted is not None and repr(trusted) == text:
        made = trusted
    else:
        try:
            made = spec.resolve(text, "strategies", outside=False)
        except SpecError as error:
            raise TraceError(
                f"The trace was made by {text[:80]}, and that is not run because a file says so: "
                f"name it with strategy= (--strategy) if you trust it. ({error})"
            ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WavefrontWarning)  # it was said when this was recorded
        return plan({**options, "strategy": made}, given)


def perform(
    model: Model, trace: Trace, chain: Sequence[Segment], until: Tensor | None = None
) -> tuple[RestoredState, Trace]:
    """Decode again, to the end or until each row has made so many of its own steps, (B,) long.

    Up to a given step it is done step by step, so that every row can wait for the others there.
    """
    if until is not None and any(segment.plan.cache is not None for segment in chain):
        raise TraceError("A decode with a cache cannot be forked: what it stored is not recorded.")
    kind = "full" if trace.full else "basic"
    first = Canvas(*(part.to(model.device) for part in check_model(model, trace).first))
    count, made = len(first.tokens), chain[0].plan
    config = recorded(made.config, kind)
    rows = start(first, config, [made.steps] * count, [made.seed] * count)
    moment, seen = RestoredState(made, config, rows, first.slot, torch.zeros_like(rows.step)), []
    for segment in chain[1:]:
        own = torch.tensor(segment.steps, device=model.device)
        moment, part = _run(model, moment, own)
        seen.append(part)
        entries = torch.tensor(segment.by_hand, dtype=torch.long, device=model.device).view(-1, 3)
        moment = write_by_hand(moment, entries)
        if repr(segment.plan.config.strategy) != repr(moment.plan.config.strategy):
            moment = take_over(moment.rows.canvas, first.slot, own, segment.plan, kind)
    moment, part = _run(model, moment, until)
    return moment, reduce(Trace.followed_by, [*seen, part], trace.until(0))


def check_model(model: Model, trace: Trace) -> Trace:
    """The trace, refused when the model cannot have made it."""
    tokens = torch.cat([trace.first.tokens.flatten(), trace.overrides[:, 3]])
    length = trace.first.tokens.shape[1]
    if not trace.first.tokens.numel():
        raise TraceError("The trace has no place on its board: record it anew.")
    if trace.mask_id != model.mask_id or int(tokens.max()) >= model.vocab_size:
        raise TraceError("The trace was made with another model: name that one.")
    if length > model.max_length:
        raise TraceError(
            f"The trace has {length} places and the model takes {model.max_length}: name the "
            "model that it was made with."
        )
    return trace


def _run(model: Model, moment: RestoredState, until: Tensor | None) -> tuple[RestoredState, Trace]:
    """Decode on and record it; a row that has made its steps waits for the others."""
    canvas = moment.rows.canvas._replace(slot=moment.slot)
    recorder = Recorder(canvas, moment.config, model.mask_id)
    hook = ReplayHook(moment, until)
    rows, length = canvas.tokens.shape
    batcher = Batcher(model, rows=rows, length=length, updates=False, hook=hook)
    if until is None or not bool(hook.arrived[0].all()):
        kind = Kind.of(moment.plan) if until is None else Kind(guided=moment.config.cfg_scale > 0)
        batcher.load(moment.config, moment.rows, kind)
        for number, _ in enumerate(recorder.watch(run(batcher)), 1):
            if until is not None and bool(hook.arrived[number].all()):
                break
    rows = moment.rows if until is None else hook.latest
    return moment._replace(rows=rows), recorder.trace()


class ReplayHook:
    """Reports steps in the terms of the whole decode, and lets rows wait at a given step.

    After another strategy took over, the state counts only the positions it was given. The hook
    translates positions, progress and the end of the answer back to the whole decode.
    """

    def __init__(self, moment: RestoredState, until: Tensor | None = None) -> None:
        """`until`, (B,) long: each row waits once it has made so many of its own steps."""
        self.moment, self.until, self.latest = moment, until, moment.rows
        self.taken_over = not torch.equal(moment.rows.canvas.slot, moment.slot)
        self.arrived: list[Tensor] = []  # (B,) bool, after every step: the rows that wait
        if until is not None:
            self.arrived.append(moment.rows.done | (moment.own >= until))

    def before(self, state: DecodeState) -> DecodeState:
        """Mark the rows that wait as done."""
        return state._replace(done=self.arrived[-1]) if self.arrived else state

    def after(
        self, before: DecodeState, state: DecodeState, steps: Sequence[Step]
    ) -> tuple[DecodeState, Sequence[Step]]:
        """Translate the steps, and put back the rows that wait."""
        if self.taken_over:
            slot, sampling = self.moment.slot, self.moment.config.sampling
            if sampling.eos == "stop":
                # The prompt of the new strategy may hold the end of the answer.
                canvas = state.canvas._replace(slot=slot)
                ended = is_complete(canvas, state.final, sampling.stop_ids)
                state = state._replace(done=state.done | ended)
            steps = [self._translate(step) for step in steps]
        if self.until is not None:
            state = choose(~self.arrived[-1], state, before)
            self.arrived.append(state.done | (state.step + self.moment.past >= self.until))
        self.latest = state
        return state, steps

    def _translate(self, step: Step) -> Step:
        slot, past, progress = self.moment.slot, self.moment.past, step.view.progress
        progress = progress._replace(
            length=(slot >= 0).sum(-1), steps=progress.steps + past, step=progress.step + past
        )
        view = step.view._replace(slot=slot, progress=progress)
        return step._replace(view=view, canvas=step.canvas._replace(slot=slot))


def take_over(canvas: Canvas, slot: Tensor, own: Tensor, made: Plan, kind: str) -> RestoredState:
    """Another plan on the canvas as it stands: what is decided is given, the rest counted anew."""
    sampling, config = made.config.sampling, recorded(made.config, kind)
    open_ = canvas.masked
    if sampling.eos == "stop":
        ended = is_complete(canvas._replace(slot=slot), canvas.known, sampling.stop_ids)
        open_ = open_ & ~ended[:, None]
    counted = torch.where(open_, open_.long().cumsum(-1) - 1, -1)
    left = [max(1, made.steps - step) for step in own.tolist()]
    for places, steps in zip(open_.sum(-1).tolist(), left, strict=True):
        if places:
            config.strategy.validate(places, steps)
    rows = start(canvas._replace(slot=counted), config, left, [made.seed] * len(left))
    return RestoredState(made, config, rows, slot, own)


def write_by_hand(moment: RestoredState, entries: Tensor) -> RestoredState:
    """The moment with (E, 3) entries of row, place, token on its canvas."""
    if not len(entries):
        return moment
    rows = moment.rows
    canvas = write(rows.canvas, entries)
    new = rows.canvas.masked & ~canvas.masked
    committed_at = torch.where(new, rows.step[:, None], rows.committed_at)
    state = _without(rows.state, rows.canvas.masked, new)
    return moment._replace(
        rows=rows._replace(canvas=canvas, committed_at=committed_at, state=state)
    )


def _without(state: State, masked: Tensor, decided: Tensor) -> State:
    """The state less what was decided: a board of masked places, such as a front, loses it."""
    if isinstance(state, Tensor):
        board = state.dtype == torch.bool and state.shape == masked.shape
        return state & ~decided if board and not bool((state & ~masked).any()) else state
    if not isinstance(state, tuple):
        return state
    parts = [_without(part, masked, decided) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
