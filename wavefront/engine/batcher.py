"""Batcher: rows of one canvas that requests enter and leave between steps; the server stands on it.

Requests may differ in length, strategy and options; they share every forward. A request decodes as
if it were alone: rows never influence each other, and its seed and clock are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core.cache_policy import Cache, Stored
from wavefront.core.canvas import Canvas, infill
from wavefront.core.errors import OptionError, PromptError, check_int
from wavefront.core.state import Config, DecodeState
from wavefront.core.tree import scatter_rows
from wavefront.engine.cuda_graphs import Call, eagerly
from wavefront.engine.groups import Shown, empty, joined, refreshed, together, windowed
from wavefront.engine.requests import ActiveRequest, Commit, Request, StepUpdate, Survey
from wavefront.models.loader import Model

NARROWEST = 16  # places read of a row; then powers of two, so that shapes are few


class Batcher:
    """A batch of `rows` boards of `length` places. On CUDA, `step` tells of the step before."""

    def __init__(
        self,
        model: Model,
        *,
        rows: int,
        length: int,
        steps: int | None = None,
        cache: Cache | None = None,
        call: Call = eagerly,
    ) -> None:
        """`steps` is the most a request may ask for, `length` when None."""
        check_int("rows", rows, 1)
        check_int("length", length, 2, model.max_length)
        self.model: Model = model
        self.rows: int = rows
        self.length: int = length
        self.cache: Cache | None = cache
        self.steps: int = length if steps is None else steps
        check_int("steps", self.steps, 1)
        self.seats: dict[int, ActiveRequest] = {}
        self._call, self._groups = call, dict[Config, DecodeState]()
        self._late = model.device.type == "cuda"
        self._pending: _Pending | None = None
        if cache is not None:
            self._kv = model.new_kv(rows, length)
            blank = torch.full((rows, length), model.pad_id, device=model.device)
            self._stored = Stored(blank, blank[:, 0] * 0, blank[:, 0].float())

    @property
    def free(self) -> int:
        """Rows that nobody holds."""
        return self.rows - len(self.seats)

    def check(self, request: Request) -> None:
        """Refuse what could never have a row here."""
        ids, holes, plan, _ = request
        if len(ids) > self.length:
            raise PromptError(
                f"The prompt and its answer have {len(ids)} places and there is room for "
                f"{self.length}: shorten the prompt or max_new_tokens."
            )
        if not any(holes):
            raise PromptError("There is nothing to fill: ask for at least one place.")
        if plan.steps > self.steps:
            raise OptionError(f"steps must be at most {self.steps} here, not {plan.steps}.")
        if plan.config.cfg_scale > 0:
            raise OptionError(
                "Guidance needs two rows for one: leave out cfg_scale here.", option="cfg_scale"
            )
        if plan.config.fixed_budget:
            raise OptionError("Forwards are shared, so none is spent idly: leave out fixed_budget.")
        if plan.draft > 1:
            raise OptionError("A draft needs rows of its own: leave out draft here.")
        if plan.cache is not None and plan.cache != self.cache:
            raise OptionError(f"The cache here is {self.cache!r}: leave out cache.")

    def admit(self, request: Request) -> ActiveRequest:
        """Give a request a row."""
        self.check(request)
        ids, holes, plan, _ = request
        if not self.free:
            raise OptionError(f"All {self.rows} rows are taken: wait for one.")
        row = next(n for n in range(self.rows) if n not in self.seats)
        canvas = self._board(ids, holes)
        config = plan.config
        if config not in self._groups:
            shape = (self.rows, self.length, config, self.steps)
            like = canvas.tokens
            self._groups[config] = empty(*shape, like=like, pad_id=self.model.pad_id)
        group = self._groups[config]
        self._groups[config] = joined(group, row, canvas, config, plan.steps, plan.seed)
        places = sum(holes)
        width = config.strategy.width(places, plan.steps)
        if config.read_all_masked or places < len(ids) - _first(holes):
            width = places  # holes make many fronts
        known = [not hole for hole in holes]
        self.seats[row] = ActiveRequest(row, request, list(ids), known, min(width, places))
        return self.seats[row]

    def release(self, seat: ActiveRequest) -> None:
        """Take a request out of its row, finished or not."""
        if seat.left:
            return
        seat.left = True
        del self.seats[seat.row]
        config = seat.request.plan.config
        if all(other.request.plan.config != config for other in self.seats.values()):
            del self._groups[config]
            return
        index = torch.tensor([seat.row], device=self.model.device)
        shape = (1, self.length, config, self.steps)
        gone = empty(*shape, like=index, pad_id=self.model.pad_id)
        self._groups[config] = scatter_rows(self._groups[config], index, gone)

    @torch.no_grad()
    def step(self) -> list[StepUpdate]:
        """One forward for all (two, when some need a full one); requests that end leave."""
        pending, self._pending = self._pending, None
        if self.seats:
            launched = _Pending(self._launch())
            if not self._late:
                return self._tell(launched)
            self._pending = launched
        return [] if pending is None else self._tell(pending)

    @property
    def busy(self) -> bool:
        """Whether another `step` has anything to do or to tell."""
        return bool(self.seats) or self._pending is not None

    def _launch(self) -> list[_Made]:
        seats = list(self.seats.values())
        configs, groups = tuple(self._groups), list(self._groups.values())
        width = min(self.length, _bucket(max(seat.width for seat in seats)))
        if self.cache is None:
            groups, shown = self._whole(configs, groups, width)
            made = [_Made(shown, seats, [seat.row for seat in seats], True)]
            self._count(seats, self.length)
        else:
            groups, made = self._cached(self.cache, configs, groups, width)
        self._groups = dict(zip(configs, groups, strict=True))
        return made

    def _cached(
        self, cache: Cache, configs: tuple[Config, ...], groups: list[DecodeState], width: int
    ) -> tuple[list[DecodeState], list[_Made]]:
        """Rows that are due compute every place; the others a window, each its own."""
        seats, own = list(self.seats.values()), {}
        for seat in seats:
            reads, places = _bucket(seat.width), _bucket(sum(seat.request.holes))
            own[seat.row] = (min(self.length, reads), min(self.length, cache.window(reads, places)))
        due = [
            s
            for s in seats
            if not 0 < s.steps_since_refresh < cache.refresh or own[s.row][1] == self.length
        ]
        rest = [seat for seat in seats if seat not in due]
        sizes = {seat.row: own[seat.row][1] for seat in rest}
        widths = self._column({row: reads for row, (reads, _) in own.items()})
        device, made = self.model.device, []
        if rest:
            size = max(sizes.values())
            tree = (groups, self._stored, widths, self._column(sizes))
            (groups, self._stored, *_), shown = self._window(configs, tree, width, size, cache)
            made.append(_Made(shown, rest, [seat.row for seat in rest], False))
            for seat in rest:
                self._count([seat], sizes[seat.row])
        if due:
            index = torch.tensor([seat.row for seat in due], device=device)
            tree = (groups, self._stored, index, widths)
            (groups, self._stored, *_), shown = self._full(configs, tree, width)
            made.append(_Made(shown, due, list(range(len(due))), True))
            self._count(due, self.length)
        for seat in seats:
            seat.steps_since_refresh = 1 if seat in due else seat.steps_since_refresh + 1
        return groups, made

    def _column(self, values: Mapping[int, int]) -> Tensor:
        """(R,) long: a number a row, 0 for the others."""
        return torch.tensor([values.get(n, 0) for n in range(self.rows)], device=self.model.device)

    def _whole(self, configs: tuple[Config, ...], groups: list[DecodeState], width: int) -> Any:
        def step(tree: Any) -> tuple[Any, Any]:
            return together(self.model, configs, tree, width)

        return self._call(("whole", configs, width), step, groups)

    def _full(self, configs: tuple[Config, ...], tree: Any, width: int) -> Any:
        def step(tree: Any) -> tuple[Any, Any]:
            groups, stored, index, widths = tree
            made = refreshed(self.model, configs, groups, width, self._kv, stored, index, widths)
            return (*made[:2], index, widths), made[2]

        return self._call(("full", configs, width), step, tree)

    def _window(
        self, configs: tuple[Config, ...], tree: Any, width: int, size: int, policy: Cache
    ) -> Any:
        def step(tree: Any) -> tuple[Any, Any]:
            groups, stored, widths, sizes = tree
            asked = (stored, widths, sizes, policy, size)
            made = windowed(self.model, configs, groups, width, self._kv, *asked)
            return (*made[:2], widths, sizes), made[2]

        return self._call(("window", configs, width, size), step, tree)

    @staticmethod
    def _count(seats: list[ActiveRequest], places: int) -> None:
        for seat in seats:
            seat.forwards += 1
            seat.token_forwards += places

    def _tell(self, pending: _Pending) -> list[StepUpdate]:
        moments = []
        for made in pending.read():
            for seat, at in zip(made.seats, made.at, strict=True):
                if not seat.left:  # or it went away while the step was under way
                    moments.append(self._moment(seat, made.shown, at, made.full))
        for moment in moments:
            if moment.seat.done:
                self.release(moment.seat)
        return moments

    def _moment(self, seat: ActiveRequest, shown: Shown, at: int, full: bool) -> StepUpdate:
        size = len(seat.tokens)
        if shown.bad[at]:
            seat.error = "The model's logits are NaN or infinite; nothing was decoded from them."
            seat.done = True
            return StepUpdate(seat, [], [], [])
        if shown.void[at]:
            seat.steps_since_refresh = 0  # due at once
            if full:
                seat.width = sum(seat.request.holes)
            return StepUpdate(seat, [], [], [])
        if shown.stale[at]:
            seat.steps_since_refresh = 0
        places = shown.commit[at, :size].nonzero()[:, 0].tolist()
        tokens = shown.tokens[at, :size].tolist()
        commits = [Commit(p, tokens[p], float(shown.logp[at, p])) for p in places]
        seat.tokens, seat.final = tokens, shown.final[at, :size].tolist()
        seat.steps += bool(commits)
        seat.done = bool(shown.done[at])
        back, front = (b[at, :size].nonzero()[:, 0].tolist() for b in (shown.back, shown.front))
        survey = None
        if seat.request.plan.config.read_all_masked:
            survey = Survey(*(board[at, :size].tolist() for board in (shown.scope, shown.logp)))
        return StepUpdate(seat, commits, back, front, survey)

    def _board(self, ids: Sequence[int], holes: Sequence[bool]) -> Canvas:
        """(1, L): from the left, so that a request stands at the same places whoever is beside."""
        model = self.model
        row = infill([ids], [holes], mask_id=model.mask_id, pad_id=model.pad_id)
        more = (0, self.length - len(ids))
        fills = (model.pad_id, False, False, -1)
        parts = (F.pad(part, more, value=fill) for part, fill in zip(row, fills, strict=True))
        return Canvas(*(part.to(model.device) for part in parts))


class _Made(NamedTuple):
    """A forward, whose it was, and where in what it shows each of them stands."""

    shown: Shown
    seats: list[ActiveRequest]
    at: list[int]
    full: bool  # every place was computed


class _Pending:
    """A step under way: what it shows is copied behind its own work, and read when needed."""

    def __init__(self, made: list[_Made]) -> None:
        self._made = [one._replace(shown=Shown(*map(_sent, one.shown))) for one in made]
        self._event: torch.cuda.Event | None = None
        if made[0].shown.done.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[_Made]:
        if self._event is not None:
            self._event.synchronize()
        return self._made


def _sent(board: Tensor) -> Tensor:
    if not board.is_cuda:
        return board
    host = torch.empty(board.shape, dtype=board.dtype, pin_memory=True)
    return host.copy_(board, non_blocking=True)


def _first(holes: Sequence[bool]) -> int:
    return list(holes).index(True)


def _bucket(width: int) -> int:
    return max(NARROWEST, 1 << (width - 1).bit_length())
