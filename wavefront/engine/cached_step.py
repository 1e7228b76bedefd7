"""Cached: a step that recomputes a window of places and reads the others from stored keys.

The keys and values are buffers by nature: the model writes them in place, here and nowhere else.
Everything beside them is as pure as `engine.advance`, whose parts this is made of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.cache_policy import Cache, Stored, sureness
from wavefront.core.masks import marked
from wavefront.core.state import Config, DecodeState, Step, candidates
from wavefront.core.tree import replace_fields
from wavefront.engine.cuda_graphs import Call, eagerly
from wavefront.engine.step import (
    AsyncHostCopy,
    StepPlan,
    commit_step,
    computed,
    flag_lag,
    forward,
    pack_flags,
    plan_step,
)
from wavefront.engine.window import WindowSizer, choose_window, inside, narrowed, needed
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.loader import KV, Model


class CachedStep:
    """A `StepFn` for one batch. Rows come and go; every full forward takes all of them anew."""

    frugal = True  # the width is what a step computes: after a void step it is doubled, no more

    def __init__(
        self,
        policy: Cache,
        model: Model,
        rows: int,
        length: int,
        places: int,
        call: Call = eagerly,
        hides: bool = False,
    ) -> None:
        """`rows` canvases of `length` places each, of which at most `places` are to be filled.

        `hides`: the strategy hides places, so a full forward computes only those in sight.
        """
        self.policy, self.places, self._call = policy, places, call
        self.kv: KV = model.new_kv(rows, length)
        self.stored: Stored | None = None
        self.steps_since_refresh = 0  # steps since the last full forward
        self._span = WindowSizer(length) if hides else None
        self._stale: deque[AsyncHostCopy] = (
            deque()
        )  # whether some row wants one, on its way to the host

    def __call__(
        self, model: Model, config: Config, rows: DecodeState, width: int, padded: bool
    ) -> tuple[DecodeState, Sequence[Step], Tensor]:
        length = rows.canvas.tokens.shape[1]
        size = self.policy.window(width, self.places)
        sight = self._span.size(config, rows) if self._span else length
        due = (
            self.stored is None or self.steps_since_refresh >= self.policy.refresh or size >= sight
        )
        full = self._wanted(rows) or due
        self.steps_since_refresh = 1 if full else self.steps_since_refresh + 1
        stored = self.stored or Stored(rows.canvas.tokens, rows.step, rows.score[:, 0])

        def step(tree: tuple[DecodeState, Stored]) -> tuple[Any, Any]:
            fixed = (width, padded, self.kv)
            if full:
                made = full_step(model, config, tree[0], *fixed, self.policy, sight)
            else:
                made = window_step(model, config, *tree, *fixed, self.policy, size)
            need = pack_flags(needed(config, made.rows)) if self._span else None
            return (made.rows, made.stored), (made.steps, made.flags, made.stale, need)

        key = (config, width, padded, full, sight if full else size)
        (rows, self.stored), (steps, flags, stale, need) = self._call(key, step, (rows, stored))
        if self._span:
            self._span.tell(need)
        if not full:
            self._stale.append(AsyncHostCopy(stale))
        return rows, steps, flags

    def _wanted(self, rows: DecodeState) -> bool:
        """Whether a step, as late as flags are read, asked for a full forward."""
        late = flag_lag(rows.canvas)
        asked = [bool(self._stale.popleft().read()[0]) for _ in range(len(self._stale) - late)]
        return any(asked)

    def restart(self) -> None:
        """Make the next step a full one: the rows are others."""
        self.stored = None
        self._stale.clear()
        if self._span:
            self._span.forget()


class Made(NamedTuple):
    """What a step came to."""

    rows: DecodeState
    stored: Stored
    stale: Tensor  # (1,) long: some row wants a full forward before its time
    steps: Sequence[Step]
    flags: Tensor  # (5,) long: see `engine.Flags`


def full_step(
    model: Model,
    config: Config,
    rows: DecodeState,
    width: int,
    padded: bool,
    kv: KV,
    policy: Cache,
    size: int,
) -> Made:
    """Every place is computed and stored; or `size` places, which hold all that is in sight."""
    length = rows.canvas.tokens.shape[1]
    if size < length:
        aim = narrowed(model, config, rows, width, size)
    else:
        aim = plan_step(model, config, rows, width)
    states = forward(model, config, rows, aim.at, padded, window=aim.window, kv=kv)
    cost = computed(config, rows.canvas) * size // length
    return judged(model, config, rows, aim, states, cost, policy, None)


def window_step(
    model: Model,
    config: Config,
    rows: DecodeState,
    stored: Stored,
    width: int,
    padded: bool,
    kv: KV,
    policy: Cache,
    size: int,
) -> Made:
    """`size` places are computed, of which the first `width` can be read."""
    aim = windowed(model, config, rows, stored, width, policy, size)
    states = forward(model, config, rows, aim.at, padded, window=aim.window, kv=kv)
    cost = computed(config, rows.canvas) * size // rows.canvas.tokens.shape[1]
    return judged(model, config, rows, aim, states, cost, policy, stored)


@compiled_with_model
def windowed(
    model: Model,
    config: Config,
    rows: DecodeState,
    stored: Stored,
    width: int,
    policy: Cache,
    size: int,
) -> StepPlan:
    """What a step against the stored keys and values reads and computes."""
    wanted = candidates(config, rows)
    changed = (rows.canvas.tokens != stored.tokens) & inside(config, rows, wanted)
    window = choose_window(wanted, changed, policy.positions_to_refresh(rows, wanted, stored), size)
    # A row that needs more than the window holds stands still; the next full step takes it.
    overflow, held = wanted.sum(-1) > width, (wanted | changed).sum(-1) > size
    return StepPlan(wanted, window[:, :width], overflow, window, held)


@compiled_with_model
def judged(
    model: Model,
    config: Config,
    rows: DecodeState,
    aim: StepPlan,
    states: Tensor,
    cost: int,
    policy: Cache,
    stored: Stored | None,
) -> Made:
    """`finish`, and what the cache keeps of the step; `stored` None: all of it was made anew."""
    after, steps, flags = commit_step(model, config, rows, aim, states, cost)
    tokens, sure = rows.canvas.tokens, sureness(after.stats.logp, aim.wanted)
    if aim.window is not None:
        # What was never computed is of no token, so it is new when it comes in sight.
        old = torch.full_like(tokens, -1) if stored is None else stored.tokens
        tokens = torch.where(marked(aim.window, tokens.shape[1]), tokens, old)
    kept = (
        Stored(tokens, rows.step, sure) if stored is None else replace_fields(stored, tokens=tokens)
    )
    stale = policy.needs_refresh(sure, kept) & ~after.done
    if aim.held is not None:
        stale = stale | aim.held
    return Made(after, kept, pack_flags(stale.any()), steps, flags)
