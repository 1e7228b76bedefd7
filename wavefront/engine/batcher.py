"""The batcher: requests enter and leave the rows of one batch; every call of `step` advances all.

This is the one engine. `generate`, `stream`, evaluation and the server drive it. A request decodes
as if it were alone: rows never influence each other, and every limit, refresh and retry is the
row's own. Read `step`: it launches forward passes, reads the flags of an earlier one, and updates
the requests. On CUDA, flags are read while the next forward pass runs, so the loop never waits; the
price is at most one surplus forward pass per request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core.cache_policy import Cache, Stored
from wavefront.core.canvas import Canvas, infill
from wavefront.core.errors import NumericalError, OptionError, PromptError, check_int
from wavefront.core.state import Config, DecodeState, Step, candidates, start
from wavefront.core.tree import map_tree, scatter_rows
from wavefront.engine.cuda_graphs import Call, Graphs, HostCopy, run_eagerly
from wavefront.engine.options import Plan
from wavefront.engine.speculation import speculative_step
from wavefront.engine.step import (
    BatchState,
    RowFlags,
    RowLimits,
    StepResult,
    StepShape,
    sum_groups,
    take_step,
)
from wavefront.engine.window import bucket_size, must_compute
from wavefront.models.protocol import KV, Model

MIN_CAPTURED_STEPS = 16  # a shorter decode ends before a capture has paid off
KEPT_BATCHERS = 4  # shapes whose captured steps are kept; each holds its own keys and values


class Request(NamedTuple):
    """A canvas to fill, and how."""

    ids: Sequence[int]  # the token at a hole does not matter
    holes: Sequence[bool]  # for every position: is it to be filled?
    plan: Plan
    infilling: bool = False  # the text around the holes is part of the answer


@dataclass(eq=False)
class ActiveRequest:
    """A request in its row, and what the host knows about it."""

    row: int
    config: Config
    places: int  # positions to fill
    width: int  # positions the next step reads
    remaining: int  # forward passes it may still need, at most
    extent: int  # positions of its canvas, prompt included
    need: int  # positions the next step must compute
    request: Request | None = None
    tokens: list[int] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)
    usual_width: int = 0
    in_flight: int = 0  # launched forward passes whose flags were not read yet
    steps_since_refresh: int = 0  # 0: the next step computes and stores every position
    steps: int = 0  # steps that committed something
    forwards: int = 0
    token_forwards: int = 0
    done: bool = False
    error: str | None = None
    released: bool = field(default=False, repr=False)

    @property
    def undecided(self) -> list[bool]:
        """For every position: may it still change?"""
        return [not self.done and not settled for settled in self.final]


class Commit(NamedTuple):
    """A token that a step committed."""

    position: int  # counted over the whole canvas of the request
    token: int
    logp: float


class StepScores(NamedTuple):
    """What a step saw, over the whole canvas of the request."""

    candidates: list[bool]  # the strategy's candidates
    logp: list[float]  # of the proposal, at every position that was masked


class StepUpdate(NamedTuple):
    """What one step did to a request."""

    request: ActiveRequest
    commits: list[Commit]
    remasked: list[int]  # positions masked again
    front: list[int]  # positions held ready for the next step
    scores: StepScores | None = None  # if the request's config reads all masked positions


class StepOutcome(NamedTuple):
    """What `Batcher.step` returns: device tensors for one decode, updates for a server."""

    steps: Sequence[Step] = ()  # of the first group, in order; several with speculation
    updates: Sequence[StepUpdate] = ()  # if the batcher makes updates


class StepHook(Protocol):
    """Edits the state around each step of a decode: replay and teacher forcing use it."""

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
        """Return the kind of a plan; `cache` applies where the plan names none."""
        speculate = plan.speculate if plan.speculate > 1 else 0
        chosen = plan.cache if plan.cache is not None or speculate else cache
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
    ) -> None:
        """`steps` is the most a request may ask for, `length` when None.

        `cache` serves requests that name none. `call` runs steps, eagerly or as CUDA graphs.
        `updates`: copy to the host what every step does, for `StepUpdate`. `bucket` rounds the
        number of positions read, so that a server meets few shapes; `min_width` is its minimum.
        """
        check_int("rows", rows, 1)
        check_int("length", length, 2, model.max_length)
        self.model: Model = model
        self.rows: int = rows
        self.length: int = length
        self.cache: Cache | None = cache
        self.steps: int = length if steps is None else steps
        check_int("steps", self.steps, 1)
        self.active: dict[int, ActiveRequest] = {}
        self.forwards: int = 0  # launched so far, surplus ones included
        self.token_forwards: int = 0  # positions computed so far; guidance computes each twice
        self.kind: Kind = Kind(cache)
        self.min_width: int = min_width
        self._call, self._updates, self._bucket, self._hook = call, updates, bucket, hook
        self._groups: dict[Config, DecodeState] = {}
        self._stored: Stored | None = None
        self._kv: KV | None = None
        self._padded, self._horizon = True, False
        self._pending: deque[_InFlight] = deque()
        self._borrower: ref[Any] | None = None

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
        """Raise an error if the request could never have a row here."""
        ids, holes, plan, _ = request
        if len(ids) > self.length:
            raise PromptError(
                f"The prompt and its answer have {len(ids)} tokens and there is room for "
                f"{self.length}: shorten the prompt or max_new_tokens."
            )
        if not any(holes):
            raise PromptError("There is nothing to fill: ask for at least one token.")
        if plan.steps > self.steps:
            raise OptionError(f"steps must be at most {self.steps} here, not {plan.steps}.")

    def admit(self, request: Request) -> ActiveRequest:
        """Give a request a row."""
        self.check(request)
        if not self.free:
            raise OptionError(f"All {self.rows} rows are taken: wait for one.")
        plan, config = request.plan, request.plan.config
        self._set_kind(Kind.of(plan, self.cache))
        state = start(self._canvas(request), config, [plan.steps], [plan.seed])
        active = _describe_rows(config, state, self._horizon_of(config, state))[0]
        active.row = next(n for n in range(self.rows) if n not in self.active)
        active.request, active.tokens = request, list(request.ids)
        active.final = [not hole for hole in request.holes]
        self._padded = True
        if config not in self._groups:
            self._groups[config] = self._empty_group(config)
        group = self._groups[config]
        state = map_tree(state, lambda leaf: leaf.to(self.model.device))
        state = _stretch(state, group.next_active_step.shape[1])
        self._groups[config] = scatter_rows(group, self._index([active.row]), state)
        self.active[active.row] = active
        return active

    def load(self, config: Config, state: DecodeState, kind: Kind) -> None:
        """Fill all rows with one decode, from its start or from any later state."""
        assert not self.busy
        self._set_kind(kind)
        self._groups = {config: state}
        self._padded = not bool(state.canvas.real.all())
        for active in _describe_rows(config, state, self._horizon_of(config, state)):
            if active.remaining:
                self.active[active.row] = active

    def reset(self) -> None:
        """Drop all requests and counts; captured steps and buffers stay."""
        self.active.clear()
        self._groups.clear()
        self._pending.clear()
        self._stored = None
        self.forwards = self.token_forwards = 0

    def release(self, active: ActiveRequest) -> None:
        """Take a request out of its row, finished or not."""
        if active.released:
            return
        active.released = True
        del self.active[active.row]
        if not self.active:
            self._pending.clear()  # surplus forward passes: nobody waits for them
        if all(other.config != active.config for other in self.active.values()):
            if self._updates:
                del self._groups[active.config]
            return
        if self._updates:
            gone = self._empty_group(active.config, rows=1)
            group = self._groups[active.config]
            self._groups[active.config] = scatter_rows(group, self._index([active.row]), gone)

    def _set_kind(self, kind: Kind) -> None:
        if self.busy and kind != self.kind:
            raise OptionError(
                "This batch decodes requests with another cache, speculation or guidance: wait "
                "until it is empty, or use a second Batcher."
            )
        if kind.cache is not None and (self._kv is None or kind.guided != self.kind.guided):
            self._kv = self.model.new_kv((2 if kind.guided else 1) * self.rows, self.length)
        self.kind = kind

    def _horizon_of(self, config: Config, state: DecodeState) -> bool:
        """Whether the strategy hides positions, and the model can leave them out."""
        hides = config.strategy.attended(state.canvas, state.state) is not None
        if not self.active:
            self._horizon = True
        able = self.model.windows and not self.kind.speculate
        self._horizon = self._horizon and hides and able
        return hides

    def _canvas(self, request: Request) -> Canvas:
        """(1, L), from the left: a request has the same positions whoever is beside it."""
        model, more = self.model, (0, self.length - len(request.ids))
        row = infill([request.ids], [request.holes], mask_id=model.mask_id, pad_id=model.pad_id)
        fills = (model.pad_id, False, False, -1)
        return Canvas(*(F.pad(part, more, value=v) for part, v in zip(row, fills, strict=True)))

    def _empty_group(self, config: Config, rows: int | None = None) -> DecodeState:
        """Return a group whose rows are all empty: done, with a length that can be divided by."""
        count = self.rows if rows is None else rows
        blank = torch.full((count, self.length), self.model.pad_id, device=self.model.device)
        nothing = torch.zeros_like(blank, dtype=torch.bool)
        canvas = Canvas(blank, nothing, nothing, blank * 0 - 1)
        state = start(canvas, config, [1] * count, [0] * count)
        return _stretch(state._replace(length=state.length + 1), self.steps + 2)

    def _index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(list(rows), device=self.model.device)

    # -- the loop ---------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self) -> StepOutcome:
        """Advance every request by one step, and report the earliest step that was not reported."""
        lag = flag_lag(self.model)
        while self._launch():
            if len(self._pending) > lag:
                break
        if not self._pending:
            return StepOutcome()
        flight = self._pending.popleft()
        updates: list[StepUpdate] = []
        made = 1
        for part in flight.parts:
            flags, boards = part.sent.read()
            for at, (active, had) in enumerate(zip(part.requests, part.widths, strict=True)):
                active.in_flight -= 1
                if active.released:
                    continue
                row = RowFlags.unpack(*flags[:, part.rows[at]].tolist())
                made = max(made, row.steps)
                self._apply_flags(active, row, had)
                if self._updates:
                    updates += _updates_of(active, boards, part.rows[at], row)
        for active in list(self.active.values()):
            if active.done:
                self.release(active)
        return StepOutcome(flight.steps[:made], updates)

    def _launch(self) -> bool:
        """Start the forward passes of the next step; False if no request needs one."""
        requests = list(self.active.values())
        if not any(active.remaining > active.in_flight for active in requests):
            return False
        due, rest = self._split_by_refresh(requests)
        before = dict(self._groups)
        if self._hook is not None:
            self._groups = {c: self._hook.before(state) for c, state in before.items()}
        parts = []
        if rest:
            parts.append(self._run(rest, waiting=due, reuse=True))
        if due:
            parts.append(self._run(due, waiting=rest, reuse=False))
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
            windowed = fresh and self._window_size(cache, active, active.width) < sight
            (rest if windowed else due).append(active)
            active.steps_since_refresh = active.steps_since_refresh + 1 if windowed else 1
        return due, rest

    @staticmethod
    def _window_size(cache: Cache, active: ActiveRequest, width: int) -> int:
        """Return how many positions a cached step computes: at most all that the row has."""
        return min(active.extent, cache.window(width, active.places))

    def _sight(self) -> int | None:
        """Return how many positions a full step computes; None: every position."""
        if not self._horizon:
            return None
        need = max(active.need for active in self.active.values())
        size = bucket_size(need, self.length, lag=flag_lag(self.model))
        return size if size < self.length else None

    def _run(
        self, requests: list[ActiveRequest], *, waiting: list[ActiveRequest], reuse: bool
    ) -> _Part:
        """Run one forward pass for `requests`; the requests `waiting` stand still."""
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
        selected = waiting and not reuse
        limits = None
        if {*widths.values()} != {width} or {*sizes.values()} - {size} or (waiting and reuse):
            limits = RowLimits(self._column(widths), self._column(sizes))
        rows = self._index(sorted(widths)) if selected else None
        configs = tuple(self._groups)
        groups, stored = tuple(self._groups.values()), self._stored
        if cache is not None and stored is None:
            board = groups[0].canvas.tokens
            stored = Stored(board, board[:, 0] * 0, board[:, 0].float())
        batch = BatchState(groups, stored, limits, rows)
        after, (steps, flags, boards) = self._call(
            (configs, shape, self.kind), self._step_function(configs, shape), batch
        )
        self._stored = after.stored
        self._groups = dict(zip(configs, after.groups, strict=True))
        self.forwards += 1
        self.token_forwards += steps[0][0].token_forwards
        copies = 2 if self.kind.guided else 1
        for active in requests:
            if active.remaining > active.in_flight:
                active.forwards += 1
                computed = sizes.get(active.row, self.length if size is None else size)
                active.token_forwards += copies * computed * max(1, self.kind.speculate)
            active.in_flight += 1
        ordered = sorted(requests, key=lambda active: active.row)
        where = list(range(len(ordered))) if selected else [active.row for active in ordered]
        had = [widths[active.row] for active in ordered]
        return _Part(ordered, had, where, rows, steps[0], flags, boards)

    def _step_function(self, configs: tuple[Config, ...], shape: StepShape) -> Callable[[Any], Any]:
        """Return the step as a function of its tree: the tree after it, and what it reports."""
        depth = self.kind.speculate

        def run(batch: BatchState) -> tuple[BatchState, Any]:
            if depth:
                made = speculative_step(self.model, configs, batch, shape=shape, depth=depth)
            else:
                kv, policy = self._kv if self.kind.cache else None, self.kind.cache
                made = take_step(self.model, configs, batch, shape=shape, kv=kv, policy=policy)
            boards = _boards_of(configs, made) if self._updates else ()
            return made.batch, (made.steps, made.flags, boards)

        return run

    def _column(self, values: Mapping[int, int]) -> Tensor:
        """(R,) long: a number per row, 0 for the others."""
        return self._index([values.get(row, 0) for row in range(self.rows)])

    def _apply_flags(self, active: ActiveRequest, flags: RowFlags, had: int) -> None:
        """Update a request from the flags of a step that read at most `had` positions."""
        active.need = flags.need if self._horizon else active.need
        if flags.bad_step:
            active.error = _nan_message(flags.bad_step, active.row)
            active.done = True
        elif flags.overflow or flags.window_overflow:  # nothing happened: try again in full
            active.steps_since_refresh = 0
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


def has_horizon(model: Model, request: Request) -> bool:
    """Whether the request's strategy hides positions from the model."""
    ids, holes, plan, _ = request
    canvas = infill([ids], [holes], mask_id=model.mask_id, pad_id=model.pad_id)
    strategy = plan.config.strategy
    return strategy.attended(canvas, strategy.init(canvas)) is not None


def power_of_two(width: int) -> int:
    """Round up to a power of two from 16 on, so that a server captures few shapes."""
    return max(16, 1 << (width - 1).bit_length())


def flag_lag(model: Model) -> int:
    """Return how many steps late flags are read: on the CPU there is nothing to wait for."""
    return 1 if model.device.type == "cuda" else 0


def _describe_rows(config: Config, state: DecodeState, hides: bool) -> list[ActiveRequest]:
    """Describe every row of a state for the host."""
    lengths, budgets = state.length.tolist(), state.steps.tolist()
    tables = zip(state.next_active_step.tolist(), state.step.tolist(), budgets, strict=True)
    ahead = [sum(table[s] == s for s in range(step, budget)) for table, step, budget in tables]
    mask = candidates(config, state)
    first = mask.sum(-1).tolist()  # holes make many fronts
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
        active = ActiveRequest(row, config, places, width, ahead[row], extent[row], need[row])
        active.usual_width = width
        active.remaining = 0 if done[row] else ahead[row]
        rows.append(active)
    return rows


def _stretch(state: DecodeState, width: int) -> DecodeState:
    """Give the table of active steps `width` columns; beyond the budget its last one repeats."""
    table = state.next_active_step
    more = table[:, -1:].expand(-1, width - table.shape[1])
    return state._replace(next_active_step=torch.cat((table, more), dim=1))


def _nan_message(bad_step: int, row: int) -> str:
    return (
        f"The model's logits are NaN or infinite at step {bad_step} of row {row + 1}; nothing was "
        "decoded from them. Try dtype='float32', or check the checkpoint."
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
            each = (
                step.canvas.tokens,
                step.final,
                step.decision.commit,
                nothing if remask is None else remask,
                nothing if front is None else front & step.canvas.masked & ~step.done[:, None],
                step.decision.candidates,
                step.view.stats.logp,
            )
            boards.append([torch.where(mine, one, torch.zeros_like(one)) for one in each])
        columns = zip(*boards, strict=True)
        found.append(_Boards(*(sum_groups(c).to(c[0].dtype) for c in columns)))
    return tuple(found)


def _updates_of(
    active: ActiveRequest, boards: Sequence[_Boards], at: int, flags: RowFlags
) -> Iterator[StepUpdate]:
    """Update the request's tokens and tell what each of its steps did."""
    if flags.bad_step or flags.overflow or flags.window_overflow:
        yield StepUpdate(active, [], [], [])
        return
    size = len(active.tokens)
    for board in boards[: flags.steps]:
        row = _Boards(*(part[at, :size] for part in board))
        tokens = row.tokens.tolist()
        places = row.commit.nonzero()[:, 0].tolist()
        commits = [Commit(p, tokens[p], float(row.logp[p])) for p in places]
        active.tokens, active.final = tokens, row.final.tolist()
        active.steps += bool(commits)
        remasked, front = (part.nonzero()[:, 0].tolist() for part in (row.remasked, row.front))
        scores = None
        if active.config.read_all_masked:
            scores = StepScores(row.candidates.tolist(), row.logp.tolist())
        yield StepUpdate(active, commits, remasked, front, scores)


@dataclass
class _Part:
    """A launched forward pass: its requests, and where each stands in what it reports."""

    requests: list[ActiveRequest]
    widths: list[int]
    rows: list[int]  # where each request stands in `flags` and `boards`
    selected: Tensor | None  # (K,) long: the rows that took part; None: all
    steps: tuple[Step, ...]  # of the first group
    flags: Tensor
    boards: tuple[_Boards, ...]
    sent: HostCopy = field(init=False)


class _InFlight:
    """A launched step: one forward pass, or two when some rows refresh and others do not."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        first = parts[0].steps
        if len(parts) > 1:  # the window of some rows, then the full step of the others
            window, full = parts
            assert full.selected is not None
            joined = scatter_rows(window.steps[0], full.selected, full.steps[0])
            cost = window.steps[0].token_forwards + full.steps[0].token_forwards
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
    """Step a loaded batcher to its end, yielding every step of its decode."""
    number = 0
    while batcher.busy:
        requests = list(batcher.active.values())
        outcome = batcher.step()
        for active in requests:
            if active.error is not None:
                raise NumericalError(active.error)
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
    """Fill the canvas, yielding every step. `steps` and `seeds` have an entry per row.

    `min_width` reads at least so many positions of each row, whatever the strategy's candidates.
    """
    rows, length = canvas.tokens.shape
    batcher = Batcher(
        model, rows=rows, length=length, updates=False, hook=hook, min_width=min_width
    )
    kind = Kind(cache, speculate, config.cfg_scale > 0)
    batcher.load(config, start(canvas, config, steps, seeds), kind)
    return run(batcher)


class CapturedBatchers:
    """Batchers with captured steps, kept for the next decode of the same shape.

    A captured step owns its memory, so a batcher serves one decode at a time. A second decode of
    that shape, started before the first has ended, gets a batcher that runs eagerly.
    """

    def __init__(self, model: Model, *, graphs: Callable[[], Call] = Graphs) -> None:
        self.model: Model = model
        self._graphs: Callable[[], Call] = graphs
        self._kept: OrderedDict[Hashable, Batcher] = OrderedDict()

    def lend(self, plan: Plan, canvas: Canvas, borrower: object) -> Batcher | None:
        """Return a batcher for one decode; None where capturing does not pay or none is free."""
        kind = Kind.of(plan)
        if kind.speculate or plan.steps < MIN_CAPTURED_STEPS:
            return None
        key = (tuple(canvas.tokens.shape), kind, kind.cache and plan.length)
        batcher = self._kept.pop(key, None)
        if batcher is None:
            rows, length = canvas.tokens.shape
            batcher = Batcher(
                self.model, rows=rows, length=length, call=self._graphs(), updates=False
            )
        self._kept[key] = batcher
        if len(self._kept) > KEPT_BATCHERS:
            self._kept.popitem(last=False)
        if batcher._borrower is not None and batcher._borrower() is not None:
            return None
        batcher._borrower = ref(borrower)
        batcher.reset()
        return batcher
