"""The batcher: requests enter and leave the rows of a batch, and `step` advances all of them.

This is the one engine. `generate`, `stream`, evaluation and the server drive it. Every request gets
the same tokens as if it were alone: rows never influence each other, and each row has its own
limits, refreshes and retries. Read `step`: it launches forward passes, reads the flags of an
earlier one, and updates the requests. On CUDA, flags are read while the next forward pass runs, so
the loop never waits. This costs at most one surplus forward pass per request.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core.cache_policy import Cache, StoredInputs
from wavefront.core.canvas import Canvas, infill
from wavefront.core.errors import (
    NumericalError,
    OptionError,
    PromptError,
    StrategyError,
    WavefrontError,
    check_int,
    quote,
)
from wavefront.core.state import (
    Config,
    DecodeState,
    Step,
    TopAlternatives,
    candidates,
    start,
)
from wavefront.core.strategy import Strategy, most_steps
from wavefront.core.tree import leaves, map_tree, plural, scatter_rows
from wavefront.engine.cuda_graphs import LOG, Call, Graphs, HostCopy, run_eagerly
from wavefront.engine.layout import masks_after, padding_before
from wavefront.engine.options import Plan
from wavefront.engine.prefixes import PrefixStore
from wavefront.engine.speculation import speculative_step
from wavefront.engine.step import (
    BatchState,
    RowFlags,
    RowLimits,
    StepResult,
    StepShape,
    WriteCheck,
    is_constrained,
    kv_rows,
    sum_groups,
    take_step,
)
from wavefront.engine.window import bucket_size, must_compute
from wavefront.models.protocol import KV, Model

MIN_CAPTURED_STEPS = 16  # a shorter decode ends before a capture has paid off
MAX_VOID_STEPS = 16  # in a row; a void step is repeated with more positions, and then it fits
KEPT_BATCHERS = 4  # shapes whose captured steps are kept; each holds its own keys and values
KEPT_SHARE = 0.1  # of a GPU's memory, for the keys and values of all kept shapes together


class Request(NamedTuple):
    """A canvas to fill, and how."""

    ids: Sequence[int]  # the token at a hole does not matter
    holes: Sequence[bool]  # for every position, whether to fill it
    plan: Plan
    infilling: bool = False  # the text around the holes is part of the answer
    # The answer, if not the holes: a constraint applies to it, and blocks may be counted from it.
    answer: Sequence[bool] | None = None

    def __repr__(self) -> str:
        strategy = self.plan.config.strategy
        return f"Request({plural(len(self.ids), 'token')}, {sum(self.holes)} to fill, {strategy!r})"


@dataclass(eq=False)
class ActiveRequest:
    """A request in its row, and what the host knows about it."""

    row: int
    config: Config
    places: int  # positions to fill
    width: int  # positions the next step reads
    remaining: int  # the most forward passes it may still need
    extent: int  # positions of its canvas, prompt included
    need: int  # positions the next step must compute; with an exact cache, those not stored
    budget: int  # steps, as the strategy sees them
    request: Request | None = None
    offset: int = 0  # the column of its first position
    shared: int = 0  # columns whose keys and values another request has computed
    prefix: tuple[int, ...] = ()  # its first columns, until they are stored for other requests
    tokens: list[int] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)
    commits: dict[int, Commit] = field(default_factory=dict)  # by position; with `logprobs` only
    usual_width: int = 0
    in_flight: int = 0  # launched forward passes whose flags have not been read yet
    steps_since_refresh: int = 0  # 0: the next step computes and stores every position
    steps: int = 0  # steps that committed something
    forwards: int = 0  # forward passes that it took part in before it was done, void ones included
    token_forwards: int = 0  # positions of its row that they computed
    void_steps: int = 0  # steps in a row that did not fit
    done: bool = False
    error: str | None = None
    error_type: type[WavefrontError] = NumericalError
    released: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        status = "failed" if self.error is not None else "done" if self.done else "active"
        passes = plural(self.forwards, "forward pass")
        return f"ActiveRequest(row {self.row}, {self.places} to fill, {passes}, {status})"

    def fail(self, message: str, kind: type[WavefrontError]) -> None:
        """End the request with an error."""
        self.error, self.error_type, self.done = message, kind, True

    @property
    def undecided(self) -> list[bool]:
        """For every position, whether it can still change."""
        return [not self.done and not settled for settled in self.final]


class Commit(NamedTuple):
    """A token that a step committed."""

    position: int  # the index on the whole canvas of the request
    token: int
    logp: float
    alternatives: tuple[tuple[int, float], ...] = ()  # likeliest tokens with their log p


class StepScores(NamedTuple):
    """What a step saw, over the whole canvas of the request."""

    candidates: list[bool]  # the strategy's candidates
    logp: list[float]  # of the proposal, at every position that was masked

    def __repr__(self) -> str:
        return f"StepScores({plural(sum(self.candidates), 'candidate')})"


class StepUpdate(NamedTuple):
    """What one step did to a request."""

    request: ActiveRequest
    commits: list[Commit]
    remasked: list[int]  # positions masked again
    front: list[int]  # the front kept for the next step
    scores: StepScores | None = None  # if the request's config reads all masked positions

    def __repr__(self) -> str:
        counts = f"{plural(len(self.commits), 'commit')}, {len(self.remasked)} remasked"
        return f"StepUpdate(row {self.request.row}: {counts}, front of {len(self.front)})"


class StepOutcome(NamedTuple):
    """What `Batcher.step` returns: device tensors for one decode, updates for a server."""

    steps: Sequence[Step] = ()  # of the first group, in order; several with speculation
    updates: Sequence[StepUpdate] = ()  # if the batcher makes updates


class StepHook(Protocol):
    """Edits the state before and after each step, for replay and teacher forcing."""

    def before(self, state: DecodeState) -> DecodeState:
        """Return the state that the step starts from."""
        ...

    def after(
        self, before: DecodeState, state: DecodeState, steps: Sequence[Step]
    ) -> tuple[DecodeState, Sequence[Step]]:
        """Return the state after the step, and the steps to report."""
        ...


class Kind(NamedTuple):
    """What requests must have in common to share forward passes."""

    cache: Cache | None = None
    speculate: int = 0
    guided: bool = False

    @classmethod
    def of(cls, plan: Plan, cache: Cache | None = None) -> Kind:
        """Return the kind of a plan; `cache` applies if the plan names none."""
        speculate = plan.speculate if plan.speculate > 1 else 0
        own = plan.cache is not None or speculate or plan.by_block
        chosen = plan.cache if own else cache
        return cls(chosen, speculate, plan.config.cfg_scale > 0)


class Batcher:
    """A batch of `rows` canvases of `length` positions."""

    def __init__(
        self,
        model: Model,
        *,
        rows: int,
        length: int,
        steps: int | None = None,
        cache: Cache | None = None,
        call: Call = run_eagerly,
        updates: bool = True,
        bucket: Callable[[int], int] = lambda width: width,
        hook: StepHook | None = None,
        min_width: int = 0,
        compact: bool = False,
        prefixes: PrefixStore | None = None,
    ) -> None:
        """`steps` limits the steps of a request; None means `length`.

        `cache` applies to requests that name none. `call` runs steps, eagerly or as CUDA graphs.
        `updates` copies the results of every step to the host, for `StepUpdate`. `bucket` rounds
        the number of positions to read, so that a server needs few shapes; `min_width` is its
        minimum. `compact` drops the rows of finished requests, so that they are no longer computed.
        It applies to decodes started by `load`. It changes the shape of the batch, so it needs
        eager steps. It has no effect on CUDA, where flags are read one step late. `prefixes` holds
        keys and values of prompts that requests share.
        """
        check_int("rows", rows, 1)
        check_int("length", length, 1, high=model.max_length)
        self.model: Model = model
        self.rows: int = rows
        self.length: int = length
        self.cache: Cache | None = cache
        self.steps: int = length if steps is None else steps
        check_int("steps", self.steps, 1)
        self.active: dict[int, ActiveRequest] = {}
        self.forwards: int = 0  # launched so far, including surplus ones
        self.token_forwards: int = 0  # positions computed so far; guidance computes each twice
        self.kind: Kind = Kind(cache)
        self.min_width: int = min_width
        self._call, self._updates, self._bucket, self._hook = call, updates, bucket, hook
        self._prefixes = prefixes
        self._groups: dict[Config, DecodeState] = {}
        self._stored: StoredInputs | None = None
        self._kv: KV | None = None
        self._buffers: dict[bool, KV] = {}  # `_kv` with and without guidance
        self._padded, self._horizon = True, False
        self._compact = compact
        self._dropped: _DroppedRows | None = None
        self._pending: deque[_InFlight] = deque()
        self._unchecked: _Part | None = None  # the latest step, if its writes are still to check
        self._borrower: ref[Any] | None = None

    def __repr__(self) -> str:
        shape = f"{plural(self.rows, 'row')} of {plural(self.length, 'position')}"
        return f"Batcher({shape}, {len(self.active)} active)"

    # -- requests ---------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """The number of rows without a request."""
        return self.rows - len(self.active)

    @property
    def busy(self) -> bool:
        """Whether `step` still has anything to do."""
        return bool(self.active)

    def check(self, request: Request) -> None:
        """Raise an error if the request can never fit into this batch."""
        _, holes, plan = request[:3]
        extent = columns_of(self.model, request)
        if extent > self.length:
            raise PromptError(
                f"The prompt and its answer have {extent} tokens, but there is room for "
                f"{self.length}: shorten the prompt or reduce max_new_tokens."
            )
        if not any(holes):
            raise PromptError("There is nothing to fill: request at least one token.")
        if plan.steps > self.steps:
            raise OptionError(
                f"steps must be at most {self.steps} here, not {plan.steps}.",
                option="steps",
                value=plan.steps,
            )

    def admit(self, request: Request) -> ActiveRequest:
        """Give a request a row."""
        self.check(request)
        if not self.free:
            raise OptionError(f"All {self.rows} rows are in use: wait until one is free.")
        plan, config = request.plan, request.plan.config
        self._set_kind(Kind.of(plan, self.cache))
        self._settle()
        before = padding_before(self.model, _prompt_length(request))
        answer = None
        if request.answer is not None or plan.by_block:
            marks = request.holes if request.answer is None else request.answer
            after = self.length - before - len(marks)
            answer = torch.tensor([[*[False] * before, *marks, *[False] * after]])
        more = {"answer": answer, "logit_bias": plan.logit_bias}
        state = start(self._canvas(request), config, [plan.budget], seeds=[plan.seed], **more)
        hides = _hides_positions(config, state)
        active = _describe_rows(config, state, hides)[0]
        active.row = next(n for n in range(self.rows) if n not in self.active)
        active.request, active.tokens = request, list(request.ids)
        active.offset = before
        active.final = [not hole for hole in request.holes]
        group = self._groups[config] if config in self._groups else self._empty_group(config)
        state = map_tree(state, lambda leaf: leaf.to(self.model.device))
        state = _stretch(state, group.next_active_step.shape[1])
        group = scatter_rows(group, self._index([active.row]), state)
        # Change the batch last: if the strategy raises an error, the other requests continue.
        self._set_horizon(hides)
        self._padded = True
        self._groups[config] = group
        self.active[active.row] = active
        self._load_prefix(active, group.canvas)
        return active

    def _load_prefix(self, active: ActiveRequest, canvas: Canvas) -> None:
        """Use the keys and values that another request has computed for the same first tokens.

        Under guidance every row has a copy whose prompt is masked, so nothing is shared.
        """
        kind, kv, request = self.kind, self._kv, active.request
        exact = kind.cache is not None and kind.cache.exact and not kind.guided
        if self._prefixes is None or not exact or kv is None or request is None:
            return
        known = next((n for n, hole in enumerate(request.holes) if hole), 0)
        active.prefix = (*[-1] * active.offset, *map(int, request.ids[:known]))
        active.shared = self._prefixes.load(active.prefix, kv, active.row)
        if not active.shared:
            return
        if self._stored is None:
            none = torch.full_like(canvas.tokens, -1)
            self._stored = StoredInputs(none, none[:, 0] * 0, none[:, 0].float().abs())
        row = self._index([active.row])
        columns = torch.arange(self.length, device=canvas.tokens.device)
        tokens = torch.where(columns < active.shared, canvas.tokens.index_select(0, row), -1)
        own = StoredInputs(tokens, tokens[:, 0] * 0, tokens[:, 0].float() * 0 + 1)
        self._stored = scatter_rows(self._stored, row, own)
        active.need = max(1, active.need - (active.shared - active.offset))
        active.steps_since_refresh = 1  # the first step computes only what is not stored

    def load(self, config: Config, state: DecodeState, kind: Kind) -> list[ActiveRequest]:
        """Fill all rows with one decode, from its start or from any later state.

        Returns what the host knows about each row, in order. A row that is already done stays out
        of the batch.
        """
        assert not self.busy
        self._set_kind(kind)
        self._groups = {config: state}
        self._padded = not bool(state.canvas.real.all())
        hides = _hides_positions(config, state)
        self._set_horizon(hides)
        described = _describe_rows(config, state, hides)
        self.active.update((active.row, active) for active in described if active.remaining)
        return described

    def reset(self) -> None:
        """Drop all requests and counts; captured steps and buffers stay."""
        self.active.clear()
        self._unchecked = None
        self._groups.clear()
        self._pending.clear()
        self._stored = None
        self.forwards = self.token_forwards = 0

    def release(self, active: ActiveRequest) -> None:
        """Take a request out of its row, finished or not."""
        if active.released:
            return
        config, others = (
            active.config,
            [other for other in self.active.values() if other is not active],
        )
        is_shared = any(other.config == config for other in others)
        if not others:
            self._unchecked = None  # like surplus forward passes below
        elif self._updates:
            self._settle()
        group = None
        if self._updates and is_shared:
            gone = self._empty_group(config, rows=1)
            group = scatter_rows(self._groups[config], self._index([active.row]), gone)
        # Change the batch last: if an error is raised above, the request keeps its row.
        active.released = True
        del self.active[active.row]
        if not others:
            self._pending.clear()  # surplus forward passes, whose results are not needed
        if group is not None:
            self._groups[config] = group
        elif self._updates:
            del self._groups[config]

    def _set_kind(self, kind: Kind) -> None:
        if self.busy and kind != self.kind:
            raise OptionError(
                "This batch decodes requests with another cache, speculation or guidance: wait "
                "until it is empty, or use a second Batcher."
            )
        if kind.cache is not None:
            # Captured steps refer to their buffers by address, so buffers are never replaced.
            if kind.guided not in self._buffers:
                count = (2 if kind.guided else 1) * self.rows
                self._buffers[kind.guided] = self.model.new_kv(count, self.length)
            self._kv = self._buffers[kind.guided]
        self.kind = kind

    def _set_horizon(self, hides: bool) -> None:
        """Leave out hidden positions if every strategy hides some, and the model can."""
        if not self.active:
            self._horizon = True
        able = self.model.windows and not self.kind.speculate
        self._horizon = self._horizon and hides and able

    def _canvas(self, request: Request) -> Canvas:
        """Return (1, L), filled from the left, so other requests do not move its positions.

        A block-causal model may need padding before the request, and masks after it.
        """
        model, after = self.model, masks_after(self.model, len(request.ids))
        before = padding_before(model, _prompt_length(request))
        more = (before, self.length - before - len(request.ids) - after)
        ids, holes = [*request.ids, *[model.mask_id] * after], [*request.holes, *[True] * after]
        row = infill([ids], [holes], mask_id=model.mask_id, pad_id=model.pad_id)
        fills = (model.pad_id, False, False, -1)
        return Canvas(*(F.pad(part, more, value=v) for part, v in zip(row, fills, strict=True)))

    def _empty_group(self, config: Config, rows: int | None = None) -> DecodeState:
        """Return a group of empty rows, which are done."""
        count = self.rows if rows is None else rows
        blank = torch.full((count, self.length), self.model.pad_id, device=self.model.device)
        nothing = torch.zeros_like(blank, dtype=torch.bool)
        canvas = Canvas(blank, nothing, nothing, blank * 0 - 1)
        state = start(canvas, config, [1] * count, seeds=[0] * count)
        most = most_steps(config.strategy, self.length, self.steps)
        return _stretch(state, most + 2)

    def _index(self, rows: Sequence[int]) -> Tensor:
        """Return the rows on the device. The copy is asynchronous: a step never waits for it."""
        index = torch.tensor(list(rows))
        if self.model.device.type == "cuda":
            index = index.pin_memory()
        return index.to(self.model.device, non_blocking=True)

    # -- the loop ---------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self) -> StepOutcome:
        """Advance every request by one step, and report the earliest unreported step.

        If a step raises an error, its requests have not advanced. You can release the request
        that `find_failing` returns, and continue.
        """
        lag = flag_lag(self.model)
        while self._launch():
            if len(self._pending) > lag:
                break
        if not self._pending:
            return StepOutcome()
        if self._unchecked in self._pending[0].parts:  # no step has been launched after it
            self._check_writes()
        flight = self._pending.popleft()
        updates: list[StepUpdate] = []
        made = 1
        for part in flight.parts:
            flags, boards = part.sent.read()
            packed, needs = flags.tolist()  # once for all rows: a batch may have hundreds
            for at, (active, had) in enumerate(zip(part.requests, part.widths, strict=True)):
                active.in_flight -= 1
                if active.released:
                    continue
                active.forwards += 1
                active.token_forwards += part.computed[at]
                row = RowFlags.unpack(packed[part.rows[at]], needs[part.rows[at]])
                made = max(made, row.steps)
                self._apply_flags(active, row, had)
                self._store_prefix(active)
                if self._updates:
                    own = map_tree(boards, lambda leaf, at=part.rows[at]: leaf[at])
                    updates += _updates_of(active, own, row, mask_id=self.model.mask_id)
        for active in list(self.active.values()):
            if active.done:
                self.release(active)
        steps = flight.steps[:made]
        if self._dropped is not None:
            steps = [self._dropped.restore(step) for step in steps]
        if self._compact and not lag and 0 < len(self.active) < self.rows:
            self._drop_finished_rows(steps[-1])
        return StepOutcome(steps, updates)

    def _drop_finished_rows(self, last: Step) -> None:
        """Keep only the rows of unfinished requests; `last` is the latest step of all rows."""
        kept = sorted(self.active)
        rows, count = self._index(kept), self.rows
        before = self._dropped
        self._dropped = _DroppedRows(last, rows if before is None else before.kept[rows])
        self._groups = {c: _take_rows(state, rows) for c, state in self._groups.items()}
        self._stored = _take_rows(self._stored, rows)
        if self._kv is not None and self.kind.cache is not None:
            both = kv_rows(rows, count, guided=self.kind.guided)
            self._kv = self._buffers[self.kind.guided] = _take_rows(self._kv, both)
        self.rows = len(kept)
        self.active = {new: self.active[old] for new, old in enumerate(kept)}
        for row, active in self.active.items():
            active.row = row

    def _store_prefix(self, active: ActiveRequest) -> None:
        """Store the prompt for other requests, once a step has computed all of it."""
        computed = not active.void_steps and active.error is None
        if active.prefix and computed and self._prefixes is not None and self._kv is not None:
            self._prefixes.add(active.prefix, self._kv, active.row)
            active.prefix = ()

    def find_failing(self) -> tuple[ActiveRequest, Exception] | None:
        """Return a request whose next step fails when it is run alone, and the error.

        The step is run for one request after another, each in a copy of its row, so none advances.
        A step only writes keys and values in place, and it writes the same ones if it is repeated.
        """
        self._settle()
        # Requests that fail usually fail at their first step.
        for active in sorted(self.active.values(), key=lambda one: one.forwards):
            try:
                self._copy_row(active).step()
            except Exception as error:
                return active, error
        return None

    def _copy_row(self, active: ActiveRequest) -> Batcher:
        """Return a batcher that holds a copy of one request, at the same step."""
        copied = Batcher(
            self.model,
            rows=1,
            length=self.length,
            steps=self.steps,
            cache=self.cache,
            bucket=self._bucket,
            min_width=self.min_width,
        )
        row = self._index([active.row])
        copied._groups = {active.config: _take_rows(self._groups[active.config], row)}
        copied._stored = _take_rows(self._stored, row)
        if self._kv is not None:
            both = kv_rows(row, self.rows, guided=self.kind.guided)
            copied._kv = _take_rows(self._kv, both)
        copied.kind, copied._padded, copied._horizon = self.kind, self._padded, self._horizon
        copied.active = {0: replace(active, row=0, in_flight=0)}
        return copied

    def _launch(self) -> bool:
        """Start the forward passes of the next step; False if no request needs one."""
        requests = list(self.active.values())
        if not any(active.remaining > active.in_flight for active in requests):
            return False
        due, rest = self._split_by_refresh(requests)
        # Apart from the others: their steps compute one or two blocks, these the rest of a prompt.
        resumed = [active for active in rest if active.shared and not active.forwards]
        rest = [active for active in rest if active not in resumed]
        before = dict(self._groups)
        if self._hook is not None:
            self._groups = {c: self._hook.before(state) for c, state in before.items()}
        parts: list[_Part] = []
        try:
            if rest:
                parts.append(self._run(rest, waiting=[*due, *resumed], reuse=True))
            if resumed:
                parts.append(self._run(resumed, waiting=[*due, *rest], reuse=True, select=True))
            for some in self._split_into_few_shapes(due, others=bool(rest or resumed)):
                waiting = [active for active in requests if active not in some]
                parts.append(self._run(some, waiting=waiting, reuse=False, select=True))
        except Exception:
            # A part whose check has failed has not advanced.
            parts = [part for part in parts if part.check is None or part is self._unchecked]
            if parts:  # these requests have advanced; the others have not
                self._pending.append(_InFlight(parts))
                self._pending[-1].send()
            raise
        flight = _InFlight(parts)
        if self._hook is not None:
            for config, state in self._groups.items():
                after, flight.steps = self._hook.after(before[config], state, flight.steps)
                self._groups[config] = after
                flight.set_done(after.done)
        flight.send()
        self._pending.append(flight)
        return True

    def _split_by_refresh(
        self, requests: list[ActiveRequest]
    ) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """Return the requests that compute every position, and those that compute a window."""
        cache = self.kind.cache
        if cache is None:
            return requests, []
        sight = self._sight() or self.length
        due, rest = [], []
        for active in requests:
            fresh = self._stored is not None and 0 < active.steps_since_refresh < cache.refresh
            # A window as large as the row saves nothing, and an exact cache loses nothing by it.
            small = cache.exact or self._window_size(cache, active, active.width) < sight
            windowed = fresh and small
            (rest if windowed else due).append(active)
        return due, rest

    def _split_into_few_shapes(
        self, due: list[ActiveRequest], *, others: bool
    ) -> list[list[ActiveRequest]]:
        """Split the requests that compute every position into parts of 1, 2, 4, ... rows.

        Every number of rows is captured or compiled separately, and this way there are few. Steps
        that run directly need no split, nor does a step of all requests, which selects no rows.
        """
        compiled = getattr(self.model, "compiled", False)
        selects = others or (self._skips_empty_rows and len(due) < self.rows)
        if not selects or (self._call is run_eagerly and not compiled):
            return [due] if due else []
        parts = []
        while due:
            count = 1 << (len(due).bit_length() - 1)
            parts.append(due[:count])
            due = due[count:]
        return parts

    def _window_size(self, cache: Cache, active: ActiveRequest, width: int) -> int:
        """Return how many positions a cached step computes, at most the length of the row."""
        size, lag = cache.window(width, active.places), flag_lag(self.model)
        if cache.exact and not lag:
            size = max(1, active.need)  # known exactly, because the flags are up to date
        elif active.shared and not active.forwards + active.in_flight:
            # The first step: also known, but there must be few shapes.
            size = bucket_size(active.need, self.length)
        return min(active.extent, size)

    @property
    def _skips_empty_rows(self) -> bool:
        """Whether a full step leaves out empty rows.

        With an exact cache it computes a prompt, which is long, so the empty rows of a server's
        batch would cost much.
        """
        cache = self.kind.cache
        return self._updates and cache is not None and cache.exact

    def _sight(self) -> int | None:
        """Return how many positions a full step computes; None: every position."""
        if not self._horizon:
            return None
        need = max(active.need for active in self.active.values())
        size = bucket_size(need, self.length, lag=flag_lag(self.model))
        return size if size < self.length else None

    def _run(
        self,
        requests: list[ActiveRequest],
        *,
        waiting: list[ActiveRequest],
        reuse: bool,
        select: bool = False,
    ) -> _Part:
        """Run one forward pass for `requests`; the requests in `waiting` do not change.

        With `select`, the rows of other requests are not computed.
        """
        cache = self.kind.cache
        widths = {s.row: min(self.length, max(s.width, self.min_width)) for s in requests}
        width = min(self.length, self._bucket(max(widths.values())))
        size, sizes = self._sight(), dict[int, int]()
        if reuse and cache is not None:
            sizes = {s.row: self._window_size(cache, s, widths[s.row]) for s in requests}
            size = max(sizes.values())
        if self.kind.speculate:
            width = min(self.length, max(width, *(active.places for active in requests)))
            widths = dict.fromkeys(widths, width)
        width = width if size is None else min(width, size)
        shape = StepShape(width, size, self._padded, reuse, self._horizon)
        fewer = self._skips_empty_rows and len(requests) < self.rows
        selected = select and (bool(waiting) or fewer)
        limits = None
        uneven = {*widths.values()} != {width} or {*sizes.values()} - {size}
        if uneven or (waiting and reuse and not selected):
            limits = RowLimits(self._column(widths), self._column(sizes))
        rows = self._index(sorted(widths)) if selected else None
        configs = tuple(self._groups)
        later = self._checks_later(configs, selected)
        if not later:
            self._check_writes()
        groups, stored = tuple(self._groups.values()), self._stored
        if cache is not None and stored is None:
            board = groups[0].canvas.tokens
            stored = StoredInputs(board, board[:, 0] * 0, board[:, 0].float())
        batch = BatchState(groups, stored, limits, rows)
        call = run_eagerly if is_constrained(configs) else self._call
        function = self._step_function(configs, shape, later=later)
        after, (steps, flags, boards, check) = call((configs, shape, self.kind), function, batch)
        before = self._groups, self._stored  # the check of the step before may have changed them
        self._stored = after.stored
        self._groups = dict(zip(configs, after.groups, strict=True))
        self.forwards += 1
        self.token_forwards += steps[0][0].token_forwards
        for active in requests:
            active.in_flight += 1
            if cache is not None:
                active.steps_since_refresh = active.steps_since_refresh + 1 if reuse else 1
        ordered = sorted(requests, key=lambda active: active.row)
        where = list(range(len(ordered))) if selected else [active.row for active in ordered]
        had = [widths[active.row] for active in ordered]
        times = (2 if self.kind.guided else 1) * max(1, self.kind.speculate)
        usual = self.length if size is None else size
        copied = width if any(config.strategy.reads_copies for config in configs) else 0
        computed = [times * (sizes.get(active.row, usual) + copied) for active in ordered]
        part = _Part(ordered, had, computed, where, rows, steps[0], flags, boards)
        if check is not None:
            self._unchecked, part.check, part.before = part, check, before
        return part

    def _checks_later(self, configs: tuple[Config, ...], selected: bool) -> bool:
        """Return whether a step may leave the check of its writes until the next one is planned.

        The device then need not wait for the host. The step is reported later than that.
        """
        captured = self._call is not run_eagerly and flag_lag(self.model) > 0
        return captured and is_constrained(configs) and not selected and self._hook is None

    def _settle(self) -> None:
        """Check the writes of the latest step before the batch changes.

        If that fails, the step has not happened: `step` repeats it and reports the error.
        """
        with suppress(Exception):
            self._check_writes()

    def _check_writes(self) -> BatchState | None:
        """Check the writes of the latest step, if that is left to do.

        Return the batch if the writes contradict each other, and the step was taken anew.
        """
        part, self._unchecked = self._unchecked, None
        if part is None or part.check is None or part.before is None:
            return None
        flights = [flight for flight in self._pending if part in flight.parts]
        try:
            made = part.check()
        except Exception:  # the requests of the step have not advanced
            self._groups, self._stored = part.before
            for flight in flights:
                self._pending.remove(flight)
            for active in part.requests:
                active.in_flight -= 1
                active.steps_since_refresh = max(0, active.steps_since_refresh - 1)
            raise
        part.check = part.before = None
        if made is None:
            return None
        self._groups = dict(zip(self._groups, made.batch.groups, strict=True))
        self._stored = made.batch.stored
        part.steps, part.flags = made.steps[0], made.flags
        part.boards = _boards_of(tuple(self._groups), made) if self._updates else ()
        for flight in flights:
            flight.steps = part.steps
            flight.send()
        return made.batch

    def _step_function(
        self, configs: tuple[Config, ...], shape: StepShape, *, later: bool = False
    ) -> Callable[[Any], Any]:
        """Return the step as a function that maps its tree to the next tree and a report."""
        depth, kind = self.kind.speculate, self.kind
        run_forward: Call = run_eagerly
        if is_constrained(configs) and self._call is not run_eagerly:
            # Its parts are captured one by one.
            run_forward = lambda key, step, tree: self._call((key, kind), step, tree)  # noqa: E731

        def run(batch: BatchState) -> tuple[BatchState, Any]:
            if depth:
                made = speculative_step(self.model, configs, batch, shape=shape, depth=depth)
            else:
                kv, policy = self._kv if self.kind.cache else None, self.kind.cache
                given: dict[str, Any] = {"kv": kv, "policy": policy, "call": run_forward}
                check = (lambda: check_batch(batch)) if later else None
                made = take_step(self.model, configs, batch, shape=shape, later=check, **given)
            boards = _boards_of(configs, made) if self._updates else ()
            return made.batch, (made.steps, made.flags, boards, made.check)

        def check_batch(batch: BatchState) -> BatchState | None:
            made = self._check_writes()
            return None if made is None else batch._replace(groups=made.groups, stored=made.stored)

        return run

    def _column(self, values: Mapping[int, int]) -> Tensor:
        """Return (R,) long: a number per request, 0 in other rows."""
        return self._index([values.get(row, 0) for row in range(self.rows)])

    def _apply_flags(self, active: ActiveRequest, flags: RowFlags, had: int) -> None:
        """Update a request from the flags of a step that read at most `had` positions."""
        active.need = flags.need if self._horizon else active.need
        void = flags.overflow or flags.window_overflow
        active.void_steps = active.void_steps + 1 if void else 0
        if active.void_steps > MAX_VOID_STEPS:
            active.fail(_does_not_fit(active), StrategyError)
        elif flags.idle and self._hook is None and _must_commit(active, flags.bad_step - 1):
            # With a hook, the state is not the strategy's own, and the budget ends the decode.
            active.fail(_stands_still(active, flags.bad_step - 1), StrategyError)
        elif flags.bad_step and not flags.idle:
            row = active.row if self._dropped is None else int(self._dropped.kept[active.row])
            active.fail(_nan_message(flags.bad_step, row), NumericalError)
        elif void:  # retry with all positions
            active.steps_since_refresh = 0
            if self.kind.cache is not None and self.kind.cache.exact:
                active.need = active.extent  # nothing stored counts any more
            if flags.overflow:
                if had >= active.usual_width:
                    twice = 2 * active.usual_width if self.kind.cache else active.places
                    active.usual_width = min(active.places, twice)
                active.width = active.places
        else:
            active.remaining -= 1
            active.width = active.usual_width
            if flags.needs_refresh:
                active.steps_since_refresh = 0
            ended = bool(flags.done) and not active.config.fixed_budget
            active.done = ended or active.remaining == 0


def columns_of(model: Model, request: Request) -> int:
    """Return how many columns of a batch the request takes."""
    before = padding_before(model, _prompt_length(request))
    return before + len(request.ids) + masks_after(model, len(request.ids))


def _prompt_length(request: Request) -> int:
    """Return the number of tokens before the answer."""
    answer = request.holes if request.answer is None else request.answer
    return next((n for n, inside in enumerate(answer) if inside), len(answer))


@lru_cache(maxsize=1024)
def has_horizon(strategy: Strategy) -> bool:
    """Whether the strategy hides positions from the model. This tries it once, on a tiny canvas."""
    canvas = infill([[0, 0]], [[False, True]], mask_id=0, pad_id=0)
    return strategy.attended(canvas, strategy.init(canvas)) is not None


def _hides_positions(config: Config, state: DecodeState) -> bool:
    """Whether the strategy hides positions of this state from the model."""
    return config.strategy.attended(state.canvas, state.state) is not None


def power_of_two(width: int) -> int:
    """Round up to a power of two, at least 16, so that a server captures few shapes."""
    return max(16, 1 << (width - 1).bit_length())


def flag_lag(model: Model) -> int:
    """Return how many steps late to read flags; 0 on the CPU, where reading does not wait."""
    return 1 if model.device.type == "cuda" else 0


def _describe_rows(config: Config, state: DecodeState, hides: bool) -> list[ActiveRequest]:
    """Describe every row of a state for the host."""
    lengths, budgets = state.length.tolist(), state.steps.tolist()
    tables = zip(state.next_active_step.tolist(), state.step.tolist(), budgets, strict=True)
    ahead = [sum(table[s] == s for s in range(step, budget)) for table, step, budget in tables]
    mask = candidates(config, state)
    first = mask.sum(-1).tolist()  # a text with holes has many fronts
    extent = state.canvas.real.sum(-1).tolist()
    need = extent
    if hides:
        seen = config.strategy.attended(state.canvas, state.state)
        need = must_compute(state.canvas, seen, mask).sum(-1).tolist()
    done = [False] * len(lengths) if config.fixed_budget else state.done.tolist()
    rows = []
    for row, places in enumerate(lengths):
        width = places = max(1, places)
        if not config.fixed_budget:  # a void step would exceed the budget
            width = min(places, max(config.strategy.width(places, budgets[row]), first[row]))
        active = ActiveRequest(
            row, config, places, width, ahead[row], extent[row], need[row], budgets[row]
        )
        active.usual_width = width
        active.remaining = 0 if done[row] else ahead[row]
        rows.append(active)
    return rows


def _take_rows(tree: Any, rows: Tensor) -> Any:
    """Return a copy of some rows of every tensor of a tree."""
    return map_tree(tree, lambda leaf: leaf.index_select(0, rows))


def _stretch(state: DecodeState, width: int) -> DecodeState:
    """Extend the table of active steps to `width` columns by repeating the last one."""
    table = state.next_active_step
    more = table[:, -1:].expand(-1, width - table.shape[1])
    return state._replace(next_active_step=torch.cat((table, more), dim=1))


def _nan_message(bad_step: int, row: int) -> str:
    return (
        f"The model's logits are NaN or infinite at step {bad_step} of row {row + 1}; nothing was "
        "decoded from them. Try dtype='float32', or check the checkpoint."
    )


def _must_commit(active: ActiveRequest, step: int) -> bool:
    """Return whether the strategy promises to commit something at a step of the row."""
    return active.config.strategy.must_commit(active.places, active.budget, step)


def _stands_still(active: ActiveRequest, step: int) -> str:
    return (
        f"The strategy {quote(active.config.strategy)} committed nothing at step {step}, where "
        "its selector must commit. Check it with wavefront.testing.check."
    )


def _does_not_fit(active: ActiveRequest) -> str:
    return (
        f"The strategy {quote(active.config.strategy)} makes no progress: its candidates, or the "
        f"positions they need, do not fit into a step of {active.places} positions to fill. Check "
        "it with wavefront.testing.check."
    )


class _Boards(NamedTuple):
    """What the host learns about one step of the whole batch: (R, L) each."""

    tokens: Tensor
    final: Tensor
    commit: Tensor
    remasked: Tensor
    front: Tensor
    candidates: Tensor
    logp: Tensor
    alternatives: TopAlternatives | None = None  # (R, L, K), if a config reads any


def _boards_of(configs: Sequence[Config], made: StepResult) -> tuple[_Boards, ...]:
    """Combine the groups' steps into the boards of each step; a row belongs to one group."""
    found = []
    for steps in zip(*made.steps, strict=True):
        boards = []
        for config, step in zip(configs, steps, strict=True):
            nothing = torch.zeros_like(step.canvas.masked)
            front = config.strategy.front(step.decision.state)
            remask = step.decision.remask
            mine = step.canvas.real.any(-1)[:, None]
            parts = (
                step.canvas.tokens,
                step.final,
                step.decision.written,
                nothing if remask is None else remask,
                nothing if front is None else front & step.canvas.masked & ~step.done[:, None],
                step.decision.candidates,
                step.view.stats.logp,
            )
            boards.append([torch.where(mine, part, torch.zeros_like(part)) for part in parts])
        columns = zip(*boards, strict=True)
        summed = (sum_groups(c).to(c[0].dtype) for c in columns)
        found.append(_Boards(*summed, alternatives=_alternatives_of(steps)))
    return tuple(found)


def _alternatives_of(steps: Sequence[Step]) -> TopAlternatives | None:
    """Combine the likeliest tokens of the groups that read some."""
    groups = [(step.canvas.real, step.others) for step in steps if step.others is not None]
    width = max((others.tokens.shape[-1] for _, others in groups), default=0)
    parts: list[list[Tensor]] = []
    for real, (tokens, logp) in groups:
        more, mine = (0, width - tokens.shape[-1]), real.any(-1)[:, None, None]
        filled = F.pad(tokens.int(), more), F.pad(logp, more, value=float("-inf"))
        parts.append([torch.where(mine, part, torch.zeros_like(part)) for part in filled])
    return TopAlternatives(*map(sum_groups, zip(*parts, strict=True))) if parts else None


def with_alternatives(
    commit: Commit, found: Sequence[Sequence[Any]], *, plan: Plan, mask_id: int
) -> Commit:
    """Return a commit with as many of the likeliest tokens as its plan requests.

    `found` holds the tokens that were read, best first, and their log-probabilities. Tokens of
    probability 0 and the mask token, which is never proposed, are left out.
    """
    kept = [
        (token, commit.logp if token == commit.token else logp)  # the same number in both places
        for token, logp in zip(*found, strict=True)
        if token != mask_id and logp > float("-inf")
    ]
    return commit._replace(alternatives=tuple(kept[: plan.logprobs]))


def _updates_of(
    active: ActiveRequest, boards: Sequence[_Boards], flags: RowFlags, *, mask_id: int
) -> Iterator[StepUpdate]:
    """Update the request's tokens and return what each of its steps did; `boards` are its row's."""
    if active.error is not None or flags.overflow or flags.window_overflow:
        yield StepUpdate(active, [], [], [])
        return
    own = slice(active.offset, active.offset + len(active.tokens))
    for board in boards[: flags.steps]:
        row = map_tree(board, lambda leaf: leaf[own])
        tokens = row.tokens.tolist()
        places = row.commit.nonzero()[:, 0].tolist()
        commits = [Commit(p, tokens[p], float(row.logp[p])) for p in places]
        if active.request is not None and active.request.plan.logprobs is not None:
            if row.alternatives is not None:
                found = (part[places].tolist() for part in row.alternatives)
                pairs = zip(*found, strict=True)
                plan = active.request.plan
                commits = [
                    with_alternatives(commit, pair, plan=plan, mask_id=mask_id)
                    for commit, pair in zip(commits, pairs, strict=True)
                ]
            active.commits.update((commit.position, commit) for commit in commits)
        active.tokens, active.final = tokens, row.final.tolist()
        active.steps += bool(commits)
        remasked, front = (part.nonzero()[:, 0].tolist() for part in (row.remasked, row.front))
        scores = None
        if active.config.read_all_masked:
            scores = StepScores(row.candidates.tolist(), row.logp.tolist())
        yield StepUpdate(active, commits, remasked, front, scores)


@dataclass(eq=False)
class _Part:
    """A launched forward pass: its requests, and the index of each in the report."""

    requests: list[ActiveRequest]
    widths: list[int]
    computed: list[int]  # positions of each request's row
    rows: list[int]  # the index of each request in `flags` and `boards`
    selected: Tensor | None  # (K,) long: the rows that took part; None: all
    steps: tuple[Step, ...]  # of the first group
    flags: Tensor
    boards: tuple[_Boards, ...]
    sent: HostCopy = field(init=False)
    check: WriteCheck | None = None  # of the writes of a constrained step, if it is left to do
    # The groups and what is stored before such a step.
    before: tuple[dict[Config, DecodeState], StoredInputs | None] | None = None


class _DroppedRows:
    """The rows that a decode no longer computes, as they were at the last step of all rows."""

    def __init__(self, last: Step, kept: Tensor) -> None:
        self.kept = kept  # (K,) long: the rows of the whole decode that are still computed
        decision, canvas = last.decision, last.canvas
        nothing = torch.zeros_like(decision.commit)
        remask, edit = (None if x is None else nothing for x in (decision.remask, decision.edit))
        self._frozen = last._replace(
            view=last.view._replace(masked=canvas.masked, known=canvas.known, tokens=canvas.tokens),
            decision=decision._replace(commit=nothing, remask=remask, edit=edit),
        )

    def restore(self, step: Step) -> Step:
        """Return the step with the finished rows, in which nothing happens any more."""
        whole = scatter_rows(self._frozen, self.kept, step)
        return whole._replace(token_forwards=step.token_forwards)


class _InFlight:
    """A launched step: one forward pass, or several when only some of the rows refresh."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        first = parts[0].steps
        for other in parts[1:]:  # the window of some rows, then the steps of selected rows
            if parts[0].selected is not None:
                break  # no part has all rows; only a server reaches this, and reads the boards
            assert other.selected is not None
            joined = scatter_rows(first[0], other.selected, other.steps[0])
            cost = first[0].token_forwards + other.steps[0].token_forwards
            first = (joined._replace(token_forwards=cost),)
        self.steps: Sequence[Step] = first

    def set_done(self, done: Tensor) -> None:
        """Replace the flag `done`, (R,) bool, after a hook has changed the state."""
        for part in self.parts:
            own = done if part.selected is None else done.index_select(0, part.selected)
            packed, need = part.flags
            part.flags = torch.stack([packed - packed % 2 + own, need])

    def send(self) -> None:
        """Start copying the flags and boards to the host."""
        for part in self.parts:
            part.sent = HostCopy((part.flags, part.boards))


def run(batcher: Batcher) -> Iterator[Step]:
    """Run a loaded batcher to its end and yield every step of its decode."""
    number = 0
    while batcher.busy:
        requests = list(batcher.active.values())
        outcome = batcher.step()
        for active in requests:
            if active.error is not None:
                raise active.error_type(active.error)
        for step in outcome.steps:
            yield step._replace(
                number=number,
                forwards=batcher.forwards,
                token_forwards=batcher.token_forwards,
            )
            number += 1


def decode(
    model: Model,
    canvas: Canvas,
    config: Config,
    *,
    steps: Sequence[int],
    seeds: Sequence[int],
    cache: Cache | None = None,
    speculate: int = 0,
    hook: StepHook | None = None,
    min_width: int = 0,
) -> Iterator[Step]:
    """Fill the canvas and yield every step.

    `steps` and `seeds` have an entry per row. Each step reads at least `min_width` positions of
    each row, even if there are fewer candidates.
    """
    rows, length = canvas.tokens.shape
    batcher = Batcher(
        model, rows=rows, length=length, updates=False, hook=hook, min_width=min_width
    )
    kind = Kind(cache, speculate, config.cfg_scale > 0)
    batcher.load(config, start(canvas, config, steps, seeds=seeds), kind)
    return run(batcher)


class CapturedBatchers:
    """Batchers with captured steps, kept for the next decode of the same shape.

    A captured step owns its memory, so a batcher serves one decode at a time. A second decode of
    that shape, started before the first has ended, gets a batcher that runs eagerly. Batchers are
    dropped if the model's weights have moved, because a graph reads them where they were.
    """

    def __init__(
        self,
        model: Model,
        *,
        graphs: Callable[[], Call] = Graphs,
        max_bytes: int | None = None,
    ) -> None:
        """Keep no batcher yet.

        Args:
            model: The model.
            graphs: Makes what captures the steps of one batcher.
            max_bytes: The maximum memory for keys and values of all kept batchers. The default is
                KEPT_SHARE of the memory of a CUDA device.
        """
        self.model: Model = model
        self._graphs: Callable[[], Call] = graphs
        self._max_bytes = _kept_bytes(model.device) if max_bytes is None else max_bytes
        # Of the keys and values of one position.
        one = model.new_kv(1, 1) if model.windows else ()
        self._position_bytes = sum(leaf.nbytes for leaf in leaves(one))
        self._kept: OrderedDict[_Shape, Batcher] = OrderedDict()
        self._weights = _weight_addresses(model)
        self._lock = Lock()

    def lend(self, plan: Plan, canvas: Canvas, borrower: object) -> Batcher | None:
        """Return a batcher for one decode; None if capturing is not worthwhile or none is free."""
        kind = Kind.of(plan)
        if kind.speculate or plan.steps < MIN_CAPTURED_STEPS:
            return None
        rows, length = canvas.tokens.shape
        shape = _Shape(rows, length, kind, plan.length if kind.cache else 0)
        with self._lock:
            batcher = self._find(shape)
            if batcher._borrower is not None and batcher._borrower() is not None:
                return None
            batcher._borrower = ref(borrower)
        batcher.reset()
        return batcher

    def _find(self, shape: _Shape) -> Batcher:
        """Return the kept batcher of a shape, or a new one."""
        addresses = _weight_addresses(self.model)
        if addresses != self._weights:
            self._kept.clear()
            self._weights = addresses
        batcher = self._kept.pop(shape, None)
        if batcher is None:
            LOG.info(
                "Capturing the steps of %d rows of %d positions as CUDA graphs: "
                "the first steps are slower.",
                shape.rows,
                shape.length,
            )
            self._make_room(shape)
            batcher = Batcher(
                self.model,
                rows=shape.rows,
                length=shape.length,
                call=self._graphs(),
                updates=False,
            )
        if self._kv_bytes(shape) <= self._max_bytes:
            self._kept[shape] = batcher
        return batcher

    def _make_room(self, shape: _Shape) -> None:
        """Drop the least recently used batchers, until one of this shape fits."""
        size = self._kv_bytes(shape)
        while self._kept and (
            len(self._kept) >= KEPT_BATCHERS
            or size + sum(map(self._kv_bytes, self._kept)) > self._max_bytes
        ):
            self._kept.popitem(last=False)

    def _kv_bytes(self, shape: _Shape) -> int:
        """Return the memory for the keys and values of a batch."""
        if shape.kind.cache is None:
            return 0
        return (2 if shape.kind.guided else 1) * shape.rows * shape.length * self._position_bytes


class _Shape(NamedTuple):
    """What two decodes must have in common to share captured steps."""

    rows: int
    length: int
    kind: Kind
    places: int  # positions to fill, if there is a cache; else 0


def _kept_bytes(device: torch.device) -> int:
    """Return the maximum memory for the keys and values of kept batchers on a device."""
    if device.type != "cuda":
        return sys.maxsize
    return int(KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory)


def _weight_addresses(model: Model) -> tuple[int, ...]:
    """Return where the weights of a module are in memory. Quantised weights are buffers."""
    if not isinstance(model, torch.nn.Module):
        return ()
    return tuple(weight.data_ptr() for weight in (*model.parameters(), *model.buffers()))
