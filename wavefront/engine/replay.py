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
from wavefront.core.canvas import Canvas, finished
from wavefront.core.errors import SpecError, TraceError, WavefrontWarning
from wavefront.core.state import Config, DecodeState, Step, start
from wavefront.core.strategy import State, Strategy
from wavefront.core.tree import choose
from wavefront.engine.options import Plan, Source, plan
from wavefront.engine.session import recorded, source
from wavefront.engine.step import StepFn, advance, pack_flags, resume
from wavefront.engine.step_pool import stepper
from wavefront.models.loader import Model
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
    tokens = torch.cat([trace.first.tokens.flatten(), trace.by_hand[:, 3]])
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
    """Decode on, and the trace of that; a row that has made its steps waits for the others."""
    canvas = moment.rows.canvas._replace(slot=moment.slot)
    recorder = Recorder(canvas, moment.config, model.mask_id)
    if until is None:
        run = as_whole(moment, stepper(moment.plan, model, canvas))
        for _ in recorder.watch(resume(model, moment.config, moment.rows, run=run)):
            pass
        return moment, recorder.trace()
    latest, arrived = [moment.rows], [moment.rows.done | (moment.own >= until)]
    inner = as_whole(moment, advance)

    def waiting(
        model: Model, config: Config, rows: DecodeState, width: int, padded: bool
    ) -> tuple[DecodeState, Sequence[Step], Tensor]:
        wait = arrived[-1]
        after, steps, flags = inner(model, config, rows._replace(done=wait), width, padded)
        latest[0] = after = choose(~wait, after, rows)
        arrived.append(after.done | (after.step + moment.past >= until))
        return after, steps, flags

    if not bool(arrived[0].all()):
        steps = recorder.watch(resume(model, moment.config, moment.rows, run=waiting))
        for number, _ in enumerate(steps, 1):
            if bool(arrived[number].all()):
                break
    return moment._replace(rows=latest[0]), recorder.trace()


def as_whole(moment: RestoredState, run: StepFn) -> StepFn:
    """`run`, its steps told in the terms of the whole decode: its places, its clock, its end."""
    slot, past = moment.slot, moment.past
    if torch.equal(moment.rows.canvas.slot, slot):
        return run  # nobody took over
    sampling, length = moment.config.sampling, (slot >= 0).sum(-1)

    def whole(
        model: Model, config: Config, rows: DecodeState, width: int, padded: bool
    ) -> tuple[DecodeState, Sequence[Step], Tensor]:
        rows, steps, flags = run(model, config, rows, width, padded)
        if sampling.eos == "stop":
            # What was given may hold the end of the answer; the rows know of their own places only.
            ended = finished(rows.canvas._replace(slot=slot), rows.final, sampling.stop_ids)
            rows = rows._replace(done=rows.done | ended)
            flags = pack_flags(rows.done.all(), *flags[1:])
        return rows, [tell(step) for step in steps], flags

    def tell(step: Step) -> Step:
        progress = step.view.progress
        progress = progress._replace(
            length=length, steps=progress.steps + past, step=progress.step + past
        )
        view = step.view._replace(slot=slot, progress=progress)
        return step._replace(view=view, canvas=step.canvas._replace(slot=slot))

    return whole


def take_over(canvas: Canvas, slot: Tensor, own: Tensor, made: Plan, kind: str) -> RestoredState:
    """Another plan on the canvas as it stands: what is decided is given, the rest counted anew."""
    sampling, config = made.config.sampling, recorded(made.config, kind)
    open_ = canvas.masked
    if sampling.eos == "stop":
        ended = finished(canvas._replace(slot=slot), canvas.known, sampling.stop_ids)
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
