"""Shared: one forward for rows of several strategies, each group deciding by its own rules.

A group is the rows of one `Config`, and holds every row of the batch: those that belong to another
group, or to nobody, are empty in it, and an empty row is harmless by law. So shapes never depend on
who is where, a request is an assignment to a row, and a step is as pure as `engine.advance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.cache_policy import Cache, Stored, sureness
from wavefront.core.canvas import Canvas
from wavefront.core.masks import marked
from wavefront.core.state import Config, DecodeState, candidates, start
from wavefront.core.tree import map_tree, scatter_rows
from wavefront.engine.step import StepPlan, commit_step, read_first
from wavefront.engine.window import choose_window
from wavefront.models.loader import KV, Model


class Shown(NamedTuple):
    """What the host learns of a step, all groups together: boards (R, L), then columns (R,)."""

    tokens: Tensor  # long
    final: Tensor  # bool, as the next four
    commit: Tensor
    back: Tensor  # taken back
    front: Tensor  # held ready for the next step
    scope: Tensor  # where the strategy looked
    logp: Tensor  # float32: of the proposal, as read
    done: Tensor  # bool, as the rest
    bad: Tensor  # met NaN
    void: Tensor  # stood still: more places were to be read than fitted
    stale: Tensor  # wants a full forward before its time
    sure: Tensor  # float32: the mean probability of what was read


def empty(
    rows: int, length: int, config: Config, steps: int, *, like: Tensor, pad_id: int
) -> DecodeState:
    """A group that nobody has joined; `steps` is the most that anyone may ask for."""
    blank = like.new_full((rows, length), pad_id, dtype=torch.long)
    nothing = torch.zeros_like(blank, dtype=torch.bool)
    made = start(Canvas(blank, nothing, nothing, blank * 0 - 1), config, [1] * rows, [0] * rows)
    # Done, and with a length that a strategy can divide by.
    return made._replace(
        next_active_step=_stretched(made.next_active_step, steps + 2), length=made.length + 1
    )


def joined(
    group: DecodeState, row: int, canvas: Canvas, config: Config, steps: int, seed: int
) -> DecodeState:
    """The group with one more request; its canvas (1, L) is in the row from now on."""
    made = start(canvas, config, [steps], [seed])
    made = made._replace(
        next_active_step=_stretched(made.next_active_step, group.next_active_step.shape[1])
    )
    return scatter_rows(group, torch.tensor([row], device=canvas.tokens.device), made)


def _stretched(next_active_step: Tensor, width: int) -> Tensor:
    """A timetable with as many columns; beyond the budget it says what its last one says."""
    more = next_active_step[:, -1:].expand(-1, width - next_active_step.shape[1])
    return torch.cat((next_active_step, more), dim=1)


def together(
    model: Model, configs: Sequence[Config], groups: Sequence[DecodeState], width: int
) -> Any:
    """One step of every row, every place computed: (the groups after it, Shown)."""
    every, wanted = _reaches(configs, groups)
    at = read_first(wanted, width)
    return _whole(model, configs, groups, every, at, wanted.sum(-1) > width, None)


def refreshed(
    model: Model,
    configs: Sequence[Config],
    groups: Sequence[DecodeState],
    width: int,
    kv: KV,
    stored: Stored,
    index: Tensor,
    widths: Tensor,
) -> Any:
    """One step of the rows `index`, every place computed and stored: (groups, stored, Shown).

    `widths` (R,): how many places each row reads at most, `width` being the largest. Rows keep to
    their own, so that what a cached request gets does not depend on who is beside it.
    """
    some = [map_tree(rows, lambda t: t.index_select(0, index)) for rows in groups]
    fresh = model.new_kv(len(index), stored.tokens.shape[1])
    tokens = _joint(some).tokens
    since = torch.stack([torch.where(_member(rows), rows.step, 0) for rows in some]).sum(0)
    every, wanted = _reaches(configs, some)
    own = widths.index_select(0, index)
    at, void = kept_to(own, read_first(wanted, width)), wanted.sum(-1) > own
    made, shown = _whole(model, configs, some, every, at, void, fresh)
    for buffers, parts in zip(kv, fresh, strict=True):
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.index_copy_(0, index, part)
    after = [scatter_rows(rows, index, part) for rows, part in zip(groups, made, strict=True)]
    return after, scatter_rows(stored, index, Stored(tokens, since, shown.sure)), shown


def windowed(
    model: Model,
    configs: Sequence[Config],
    groups: Sequence[DecodeState],
    width: int,
    kv: KV,
    stored: Stored,
    widths: Tensor,
    sizes: Tensor,
    policy: Cache,
    size: int,
) -> Any:
    """One step of every row, a window of places computed, as above; `sizes` (R,) is each row's own.

    A row whose size is 0 waits.
    """
    canvas = _joint(groups)
    every, wanted = _reaches(configs, groups)
    changed = (canvas.tokens != stored.tokens) & canvas.real
    asks = [
        policy.positions_to_refresh(rows, one, stored)
        for rows, one in zip(groups, every, strict=True)
    ]
    window = kept_to(sizes, choose_window(wanted, changed, torch.stack(asks).any(0), size))
    attend = _attend(configs, groups, canvas)
    at = kept_to(widths, window[:, :width])
    states = model.hidden(canvas.tokens, attend, at, window=window, kv=kv)
    # What the window wrote is true of the tokens as they are, also in rows that wait.
    fresh = marked(window, canvas.tokens.shape[1])
    tokens = torch.where(fresh, canvas.tokens, stored.tokens)
    narrow = (wanted.sum(-1) > widths) | ((wanted | changed).sum(-1) > sizes)
    void = narrow | (sizes == 0)
    after, shown = _decide(model, configs, groups, at, every, states, void)
    stale = policy.needs_refresh(shown.sure, stored)
    return after, stored._replace(tokens=tokens), shown._replace(stale=stale & ~shown.done)


def kept_to(own: Tensor, places: Tensor) -> Tensor:
    """Places (R, S) of which each row has its `own` (R,) first ones; then its first once more."""
    count = torch.arange(places.shape[1], device=places.device)
    return torch.where(count < own[:, None], places, places[:, :1])


def _whole(
    model: Model,
    configs: Sequence[Config],
    groups: Sequence[DecodeState],
    every: Sequence[Tensor],
    at: Tensor,
    void: Tensor,
    kv: KV | None,
) -> Any:
    canvas = _joint(groups)
    states = model.hidden(canvas.tokens, _attend(configs, groups, canvas), at, kv=kv)
    return _decide(model, configs, groups, at, every, states, void)


def _reaches(
    configs: Sequence[Config], groups: Sequence[DecodeState]
) -> tuple[list[Tensor], Tensor]:
    """What each group wants to read, and all of them together, (R, L) bool."""
    every = [candidates(config, rows) for config, rows in zip(configs, groups, strict=True)]
    return every, torch.stack(every).any(0)


def _joint(groups: Sequence[DecodeState]) -> Canvas:
    """The board of all groups: a row is real in at most one of them."""
    tokens = groups[0].canvas.tokens
    for rows in groups[1:]:
        tokens = torch.where(_member(rows)[:, None], rows.canvas.tokens, tokens)
    boards = [torch.stack([rows.canvas[n] for rows in groups]) for n in (1, 2)]
    slot = torch.stack([rows.canvas.slot for rows in groups]).amax(0)
    return Canvas(tokens, boards[0].any(0), boards[1].any(0), slot)


def _member(rows: DecodeState) -> Tensor:
    """(R,) bool: the rows that belong to this group."""
    return rows.canvas.real.any(-1)


def _attend(configs: Sequence[Config], groups: Sequence[DecodeState], canvas: Canvas) -> Tensor:
    attend = canvas.real
    for config, rows in zip(configs, groups, strict=True):
        attended = config.strategy.attended(rows.canvas, rows.state)
        if attended is not None:
            attend = torch.where(_member(rows)[:, None], attended & attend, attend)
    return attend


def _decide(
    model: Model,
    configs: Sequence[Config],
    groups: Sequence[DecodeState],
    at: Tensor,
    every: Sequence[Tensor],
    states: Tensor,
    void: Tensor,
) -> tuple[list[DecodeState], Shown]:
    after, parts = [], []
    for config, rows, wanted in zip(configs, groups, every, strict=True):
        mine = _member(rows)
        made, (step,), _ = commit_step(
            model, config, rows, StepPlan(wanted, at, void), states[None], 0
        )
        nothing = torch.zeros_like(step.canvas.masked)
        front = config.strategy.front(made.state)
        held = nothing if front is None else front & made.canvas.masked & ~made.done[:, None]
        back = nothing if step.decision.remask is None else step.decision.remask
        here = mine[:, None]
        parts.append(
            Shown(
                tokens=torch.where(here, made.canvas.tokens, 0),
                final=made.final & here,
                commit=step.decision.commit & here,
                back=back & here,
                front=held & here,
                scope=step.decision.scope & here,
                logp=torch.where(here, made.stats.logp, 0),
                done=made.done & mine,
                bad=(made.bad_step >= 0) & mine,
                void=void & mine,
                stale=torch.zeros_like(mine),
                sure=torch.where(mine, sureness(made.stats.logp, wanted), 0),
            )
        )
        after.append(made)
    # A row is of one group, so what the others say of it is zero.
    columns = zip(*parts, strict=True)
    return after, Shown._make(torch.stack(one).sum(0).to(one[0].dtype) for one in columns)
