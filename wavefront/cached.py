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

from wavefront.cache import Cache, Stored, sureness
from wavefront.engine import Flags, Glance, computed, finish, forward, lateness, read_first
from wavefront.graph import Call, eagerly
from wavefront.model import KV, Model
from wavefront.rows import Config, Rows, Step, reach
from wavefront.window import Span, choose_window, inside, needed


class Cached:
    """An `Advance` for one batch. Rows come and go; every full forward takes all of them anew."""

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
        self.age = 0  # steps since the last full forward
        self._span = Span(length) if hides else None
        self._stale: deque[Glance] = deque()  # whether some row wants one, on its way to the host

    def __call__(
        self, model: Model, config: Config, rows: Rows, width: int, padded: bool
    ) -> tuple[Rows, Sequence[Step], Flags]:
        length = rows.canvas.tokens.shape[1]
        size = self.policy.window(width, self.places)
        sight = self._span.size(config, rows) if self._span else length
        due = self.stored is None or self.age >= self.policy.refresh or size >= sight
        full = self._wanted(rows) or due
        self.age = 1 if full else self.age + 1
        stored = self.stored or Stored(rows.canvas.tokens, rows.step, rows.score[:, 0])

        def step(tree: tuple[Rows, Stored]) -> tuple[Any, Any]:
            fixed = (width, padded, self.kv)
            if full:
                made = full_step(model, config, tree[0], *fixed, sight)
            else:
                made = window_step(model, config, *tree, *fixed, self.policy, size)
            stale = (
                made.flags.held
                | (self.policy.stale(made.sure, made.stored) & ~made.rows.done).any()
            )
            need = needed(config, made.rows) if self._span else None
            return (made.rows, made.stored), (made.steps, made.flags, stale, need)

        key = (config, width, padded, full, sight if full else size)
        (rows, self.stored), (steps, flags, stale, need) = self._call(key, step, (rows, stored))
        if self._span:
            self._span.tell(need)
        if not full:
            self._stale.append(Glance([stale]))
        return rows, steps, flags

    def _wanted(self, rows: Rows) -> bool:
        """Whether a step, as late as flags are read, asked for a full forward."""
        late = lateness(rows.canvas)
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

    rows: Rows
    stored: Stored
    sure: Tensor  # (B,) float32: the mean probability of what was read
    steps: Sequence[Step]
    flags: Flags


def full_step(
    model: Model, config: Config, rows: Rows, width: int, padded: bool, kv: KV, size: int
) -> Made:
    """Every place is computed and stored; or `size` places, which hold all that is in sight."""
    tokens, wanted = rows.canvas.tokens, reach(config, rows)
    overflow = wanted.sum(-1) > width
    if size < tokens.shape[1]:
        within = inside(config, rows, wanted)
        window = choose_window(wanted, within, torch.zeros_like(wanted), size)
        at, held = window[:, :width], within.sum(-1) > size
        # What was not computed is of no token, so it is new when it comes in sight.
        known = torch.full_like(tokens, -1).scatter(-1, window, tokens.gather(-1, window))
    else:
        window, at, held, known = None, read_first(wanted, width), None, tokens
    states = forward(model, config, rows, at, padded, window=window, kv=kv)
    cost = computed(config, rows.canvas) * size // tokens.shape[1]
    after, steps, flags = finish(model, config, rows, at, wanted, states, overflow, cost, held)
    sure = sureness(after.stats.logp, wanted)
    return Made(after, Stored(known, rows.step, sure), sure, steps, flags)


def window_step(
    model: Model,
    config: Config,
    rows: Rows,
    stored: Stored,
    width: int,
    padded: bool,
    kv: KV,
    policy: Cache,
    size: int,
) -> Made:
    """`size` places are computed, of which the first `width` can be read."""
    tokens, wanted = rows.canvas.tokens, reach(config, rows)
    changed = (tokens != stored.tokens) & inside(config, rows, wanted)
    window = choose_window(wanted, changed, policy.ask(rows, wanted, stored), size)
    states = forward(model, config, rows, window[:, :width], padded, window=window, kv=kv)
    stored = stored._replace(tokens=stored.tokens.scatter(-1, window, tokens.gather(-1, window)))
    # A row that needs more than the window holds stands still; the next full step takes it.
    overflow, held = wanted.sum(-1) > width, (wanted | changed).sum(-1) > size
    cost = computed(config, rows.canvas) * size // tokens.shape[1]
    at = window[:, :width]
    after, steps, flags = finish(model, config, rows, at, wanted, states, overflow, cost, held)
    return Made(after, stored, sureness(after.stats.logp, wanted), steps, flags)
