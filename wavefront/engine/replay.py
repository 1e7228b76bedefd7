"""Replay: decode again what a trace recorded, to its end or up to one of its steps.

In a trace, `about["options"]` says how it was decoded, and `about["fork"]` describes the trace that
it was forked from. A trace is therefore a chain of segments, each with its own plan. Between two
segments, tokens may have been overridden and another strategy may have taken over. `rerun_segments`
runs the chain.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.cache_policy import Cache
from wavefront.core.canvas import Canvas, is_any, is_complete
from wavefront.core.errors import SpecError, TraceError, WavefrontWarning
from wavefront.core.reading import ENDING
from wavefront.core.spec import Spec
from wavefront.core.state import Config, DecodeState, Step, start
from wavefront.core.strategy import State, Strategy, most_steps
from wavefront.core.tree import choose
from wavefront.engine.batcher import Batcher, Kind, run
from wavefront.engine.options import AutomatonOf, ModelProperties, Plan, plan, resolve_builtin_specs
from wavefront.engine.session import config_for_trace, model_properties
from wavefront.models.protocol import Model
from wavefront.traces.trace import Recorder, Trace, write

MAX_FORK_DEPTH = 64
UNTRUSTED = (
    "The trace names the {option} {spec}, which cannot be loaded from a trace: if you trust it, "
    "name it with {option}= (--{option})."
)


class DecodeDifference(NamedTuple):
    """The first difference between two decodes."""

    row: int
    step: int  # counted from 0 over the row's own steps


class Segment(NamedTuple):
    """A part of a recorded decode that followed one plan."""

    about: Mapping[str, Any]
    plan: Plan
    at: int  # the first recorded step
    steps: list[int]  # the same step by each row's own count
    overrides: list[list[int]]  # row, position, token: written before the segment


class RestoredState(NamedTuple):
    """A decode between two steps, with everything that continuing it needs."""

    plan: Plan
    config: Config
    rows: DecodeState
    slot: Tensor  # (B, L) long: the positions to fill, as the whole decode counts them
    past: Tensor  # (B,) long: steps taken before `rows` began to count

    @property
    def steps_taken(self) -> Tensor:
        """(B,) long: the steps that each row has taken in the whole decode."""
        return self.rows.step + self.past


class Rerun(NamedTuple):
    """The result of decoding again: the state at the end, and the trace of the new decode."""

    state: RestoredState
    trace: Trace


def rerun(
    model: Model,
    trace: Trace,
    *,
    strategy: Strategy | None = None,
    cache: Cache | None = None,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
    automaton_of: AutomatonOf | None = None,
) -> Trace:
    """Decode again what a trace recorded.

    Args:
        model: The model that made the trace.
        trace: The trace to repeat.
        strategy: The trace's strategy, if it is not built in. See `segments`.
        cache: The trace's cache policy, if it is not built in.
        stop_ids: The default stop tokens, if they differ from the model's.
        id_of: Returns the token id of a text, for options that name a token by its text.
        automaton_of: Compiles a constraint, for options such as `schema`.

    Returns:
        The trace of the new decode.

    Raises:
        TraceError: The trace has no usable description, or another model made it.
    """
    trusted = [spec for spec in (strategy, cache) if spec is not None]
    chain = segments(
        trace, model_properties(model, stop_ids, id_of, automaton_of=automaton_of), trusted
    )
    return rerun_segments(model, trace, chain).trace


def difference(one: Trace, two: Trace) -> DecodeDifference | None:
    """Return the first step at which two traces commit or remask different tokens, or None."""
    found = []
    for row in range(one.step.shape[1]):
        first, second = _events_by_step(one, row), _events_by_step(two, row)
        steps = [
            step for step in first.keys() | second.keys() if first.get(step) != second.get(step)
        ]
        found += [DecodeDifference(row, min(steps))] if steps else []
    return min(found, key=lambda difference: difference.step, default=None)


def _events_by_step(trace: Trace, row: int) -> dict[int, list[list[int]]]:
    """Return the tokens written, [position, token], and the remasks, [position], of each step."""
    events: dict[int, list[list[int]]] = {}
    number = trace.step[:, row].tolist()
    for at, position in trace.written[:, row].nonzero().tolist():
        event = [position, int(trace.tokens[at, row, position])]
        events.setdefault(number[at], []).append(event)
    for at, position in trace.remask[:, row].nonzero().tolist():
        events.setdefault(number[at], []).append([position])
    return events


def segments(trace: Trace, given: ModelProperties, trusted: Sequence[Spec] = ()) -> list[Segment]:
    """Return the segments of a trace, oldest first.

    A trace file can come from anyone, so nothing that it names is imported. A strategy or a cache
    policy that is not built in is used only if the caller names it too.

    Args:
        trace: The trace.
        given: The properties of the model; see `ModelProperties`.
        trusted: Strategies and cache policies that the caller trusts.

    Raises:
        TraceError: The description is missing or invalid, or names a class that is not trusted.
    """
    about, chain = trace.about, []
    while len(chain) <= MAX_FORK_DEPTH:
        plan = plan_of(about, given, trusted)
        forked = about.get("fork")
        if forked is None:
            return [Segment(about, plan, 0, [], []), *reversed(chain)]
        chain.append(_segment(about, trace, plan, vocab_size=given.vocab_size))
        about = forked["of"]
    raise TraceError(
        f"The trace was forked more than {MAX_FORK_DEPTH} times in a row: record a new one."
    )


def _segment(about: Mapping[str, Any], trace: Trace, plan: Plan, *, vocab_size: int) -> Segment:
    """Return the segment that a fork's description refers to."""
    forked = about["fork"]
    board = torch.tensor([*trace.first.tokens.shape, vocab_size])
    try:
        overrides = torch.tensor(forked["put"], dtype=torch.long).reshape(-1, 3)
        steps = torch.tensor(forked["steps"], dtype=torch.long)
        at = range(len(trace) + 1)[forked["at"]]
        if len(steps) != len(trace.first.tokens) or not isinstance(forked["of"], Mapping):
            raise ValueError
        if bool((overrides < 0).any() | (overrides >= board).any()):
            raise ValueError
    except (LookupError, TypeError, ValueError, RuntimeError, OverflowError):
        raise TraceError(
            "The trace does not say where it was forked from: record a new one."
        ) from None
    return Segment(about, plan, at, steps.tolist(), overrides.tolist())


def plan_of(about: Mapping[str, Any], given: ModelProperties, trusted: Sequence[Spec]) -> Plan:
    """Build the plan from a trace's description."""
    options = about.get("options")
    text = options.get("strategy") if isinstance(options, Mapping) else None
    if not isinstance(options, Mapping) or not isinstance(text, str):
        raise TraceError("The trace does not say how it was decoded: record a new one.")
    try:
        resolved = resolve_builtin_specs(options, trusted, where=UNTRUSTED)
    except SpecError as error:
        raise TraceError(str(error), option=error.option, value=error.value) from None
    with warnings.catch_warnings():
        # The user saw the warnings when the trace was recorded.
        warnings.simplefilter("ignore", WavefrontWarning)
        # The holes of a text decide how many positions there are, and a constraint needs to know.
        length = resolved.get("max_new_tokens") if about.get("infilling") else None
        return plan(resolved, given, length=length)


def rerun_segments(
    model: Model, trace: Trace, chain: Sequence[Segment], *, until: Tensor | None = None
) -> Rerun:
    """Decode the segments of a trace again.

    Args:
        model: The model that made the trace.
        trace: The trace to repeat.
        chain: The segments of the trace, oldest first.
        until: (B,) long, the number of its own steps after which each row stops. None runs to the
            end. With a value, the decode goes step by step, so that rows can wait for each other.

    Raises:
        TraceError: Another model made the trace, or `until` is given and a cache was used.
    """
    caches = [segment.plan.cache for segment in chain]
    if until is not None and any(cache is not None and not cache.exact for cache in caches):
        raise TraceError(
            "A decode with a cache cannot be forked: the trace does not hold what the cache stored."
        )
    kind = "full" if trace.full else "basic"
    first = Canvas(*(part.to(model.device) for part in check_model(model, trace).first))
    count, plan = len(first.tokens), chain[0].plan
    config = config_for_trace(plan.config, kind)
    more = {"answer": plan.answer_of(first.slot), "logit_bias": plan.logit_bias}
    rows = start(first, config, [plan.budget] * count, seeds=[plan.seed] * count, **more)
    state, parts = RestoredState(plan, config, rows, first.slot, torch.zeros_like(rows.step)), []
    for segment in chain[1:]:
        steps = torch.tensor(segment.steps, device=model.device)
        state, part = _run(model, state, steps)
        parts.append(part)
        entries = torch.tensor(segment.overrides, dtype=torch.long, device=model.device)
        state = apply_overrides(state, entries.view(-1, 3))
        if repr(segment.plan.config.strategy) != repr(state.plan.config.strategy):
            canvas = state.rows.canvas
            state = take_over(canvas, segment.plan, slot=first.slot, past=steps, kind=kind)
    state, part = _run(model, state, until)
    return Rerun(state, reduce(Trace.followed_by, [*parts, part], trace.until(0)))


def check_model(model: Model, trace: Trace) -> Trace:
    """Return the trace if this model could have made it.

    Raises:
        TraceError: The trace is empty, or has other tokens or more positions than the model.
    """
    tokens = torch.cat([trace.first.tokens.flatten(), trace.overrides[:, 3]])
    length = trace.first.tokens.shape[1]
    if not trace.first.tokens.numel():
        raise TraceError("The trace has no positions: record a new one.")
    if trace.mask_id != model.mask_id or int(tokens.max()) >= model.vocab_size:
        raise TraceError("The trace was made with another model: use that model.")
    if length > model.max_length:
        raise TraceError(
            f"The trace has {length} positions, but the model takes {model.max_length}: use the "
            "model that made the trace."
        )
    return trace


def _run(model: Model, state: RestoredState, until: Tensor | None) -> Rerun:
    """Continue the decode and record it. A row that has taken its steps waits for the others."""
    canvas = state.rows.canvas._replace(slot=state.slot)
    recorder = Recorder(canvas, state.config, model.mask_id)
    hook = ReplayHook(state, until)
    rows, length = canvas.tokens.shape
    batcher = Batcher(model, rows=rows, length=length, updates=False, hook=hook)
    if until is None or not bool(hook.waiting[0].all()):
        kind = Kind.of(state.plan) if until is None else Kind(guided=state.config.cfg_scale > 0)
        batcher.load(state.config, state.rows, kind)
        for number, _ in enumerate(recorder.watch(run(batcher)), 1):
            if until is not None and bool(hook.waiting[number].all()):
                break
    end = state.rows if until is None else hook.latest
    return Rerun(state._replace(rows=end), recorder.trace())


class ReplayHook:
    """Reports steps as steps of the whole decode, and lets rows wait at a given step.

    After another strategy has taken over, the state counts only the positions left to it. The hook
    translates positions, progress and the end of the answer back to the whole decode.
    """

    def __init__(self, origin: RestoredState, until: Tensor | None = None) -> None:
        """Observe a decode that continues from `origin`.

        Args:
            origin: The state before the first step.
            until: (B,) long, the number of its own steps after which each row waits.
        """
        self.origin, self.until, self.latest = origin, until, origin.rows
        self.taken_over = not torch.equal(origin.rows.canvas.slot, origin.slot)
        self.waiting: list[Tensor] = []  # (B,) bool, after every step: the rows that wait
        if until is not None:
            self.waiting.append(self._waits(origin.rows, until))

    def _waits(self, state: DecodeState, until: Tensor) -> Tensor:
        """Return (B,) bool: the rows that have taken their steps, or take no more."""
        # With a fixed budget, a finished row takes all its steps.
        ended = state.done & (not self.origin.config.fixed_budget)
        return ended | (state.step + self.origin.past >= until)

    def before(self, state: DecodeState) -> DecodeState:
        """Mark the rows that wait as done."""
        return state._replace(done=state.done | self.waiting[-1]) if self.waiting else state

    def after(
        self, before: DecodeState, state: DecodeState, steps: Sequence[Step]
    ) -> tuple[DecodeState, Sequence[Step]]:
        """Translate the steps, and restore the rows that wait."""
        if self.taken_over:
            # The stop token may be among the positions that the new strategy did not fill.
            config, slot = self.origin.config, self.origin.slot
            ended = _has_ended(config, state.canvas, slot=slot, final=state.final)
            state = state._replace(done=state.done | ended)
            steps = [self._translate(step) for step in steps]
        if self.until is not None:
            state = choose(~self.waiting[-1], state, before)
            self.waiting.append(self._waits(state, self.until))
        self.latest = state
        return state, steps

    def _translate(self, step: Step) -> Step:
        slot, past, progress = self.origin.slot, self.origin.past, step.view.progress
        progress = progress._replace(
            length=(slot >= 0).sum(-1), steps=progress.steps + past, step=progress.step + past
        )
        view = step.view._replace(slot=slot, progress=progress)
        return step._replace(view=view, canvas=step.canvas._replace(slot=slot))


def take_over(
    canvas: Canvas, plan: Plan, *, slot: Tensor, past: Tensor, kind: str
) -> RestoredState:
    """Let another plan continue from a canvas.

    Decided positions are given to the plan like a prompt. The masked positions and the remaining
    steps are counted from 0 again.

    Args:
        canvas: The canvas to continue from.
        plan: The plan that takes over.
        slot: (B, L) long, the positions to fill, as the whole decode counts them.
        past: (B,) long, the steps that each row has already taken.
        kind: The kind of trace to record.

    Raises:
        OptionError: The strategy cannot fill the masked positions in the remaining steps.
    """
    config = config_for_trace(plan.config, kind)
    ended = _has_ended(config, canvas._replace(slot=slot), slot=slot, final=canvas.known)
    open_ = canvas.masked & ~ended[:, None]
    counted = torch.where(open_, open_.long().cumsum(-1) - 1, -1)
    budgets = []
    for positions, step in zip(open_.sum(-1).tolist(), past.tolist(), strict=True):
        steps = max(1, plan.steps - step)
        if positions:
            config.strategy.validate(positions, steps)
        budgets.append(most_steps(config.strategy, positions, steps))
    seeds, counting = [plan.seed] * len(budgets), canvas._replace(slot=counted)
    answer = plan.answer_of(slot)
    more = {"answer": slot >= 0 if answer is None else answer, "logit_bias": plan.logit_bias}
    rows = start(counting, config, budgets, seeds=seeds, **more)
    return RestoredState(plan, config, rows, slot, past)


def _has_ended(config: Config, canvas: Canvas, *, slot: Tensor, final: Tensor) -> Tensor:
    """Return (B,) bool: whether an end token before the open positions has ended the answer.

    `slot` (B, L) long counts the whole answer, and the canvas may count what is left of it.
    """
    sampling, strategy = config.sampling, config.strategy
    if sampling.eos in ENDING:
        return is_complete(canvas._replace(slot=slot), final, sampling.stop_ids)
    if sampling.eos != "stop-block":
        return torch.zeros_like(canvas.masked[:, 0])
    open_ = canvas._replace(masked=(slot >= 0) & ~final)
    current = strategy.readable(canvas._replace(masked=canvas.real), strategy.init(open_))
    stop = (slot >= 0) & final & is_any(canvas.tokens, sampling.stop_ids)
    return (stop & (current.cumsum(-1) == 0)).any(-1)  # in a block before the current one


def apply_overrides(state: RestoredState, entries: Tensor) -> RestoredState:
    """Return the state with tokens written on its canvas.

    Args:
        state: The state between two steps.
        entries: (E, 3) long, each a row, a position and a token.
    """
    if not len(entries):
        return state
    rows = state.rows
    canvas = write(rows.canvas, entries)
    new = rows.canvas.masked & ~canvas.masked
    committed_at = torch.where(new, rows.step[:, None], rows.committed_at)
    own = _remove_decided(rows.state, rows.canvas.masked, new)
    return state._replace(rows=rows._replace(canvas=canvas, committed_at=committed_at, state=own))


def _remove_decided(state: State, masked: Tensor, decided: Tensor) -> State:
    """Remove decided positions from every set of masked positions in the state, such as a front."""
    if isinstance(state, Tensor):
        board = state.dtype == torch.bool and state.shape == masked.shape
        return state & ~decided if board and not bool((state & ~masked).any()) else state
    if not isinstance(state, tuple):
        return state
    parts = [_remove_decided(part, masked, decided) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
