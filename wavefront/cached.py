"""Cached: a step that recomputes a window of places and reads the others from stored keys.

The keys and values are buffers by nature: the model writes them in place, here and nowhere else.
Everything beside them is as pure as `engine.advance`, whose parts this is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wavefront.cache import Cache, Stored
from wavefront.engine import Flags, computed, finish, forward
from wavefront.graph import Call, eagerly
from wavefront.masks import distance
from wavefront.model import KV, Model
from wavefront.rows import Config, Rows, Step, reach


class Cached:
    """An `Advance` for one batch. Rows come and go; every full forward takes all of them anew."""

    patience = 16  # void steps before the guess of a strategy's width is given up for good

    def __init__(
        self,
        policy: Cache,
        model: Model,
        rows: int,
        length: int,
        places: int,
        call: Call = eagerly,
    ) -> None:
        """`rows` canvases of `length` places each, of which at most `places` are to be filled."""
        self.policy, self.places, self._call = policy, places, call
        self.kv: KV = model.new_kv(rows, length)
        self.stored: Stored | None = None
        self.age = 0  # steps since the last full forward

    def __call__(
        self, model: Model, config: Config, rows: Rows, width: int, padded: bool
    ) -> tuple[Rows, Sequence[Step], Flags]:
        length = rows.canvas.tokens.shape[1]
        size = self.policy.window(width, self.places)
        full = self.stored is None or self.age >= self.policy.refresh or size >= length
        self.age = 1 if full else self.age + 1
        stored = Stored(rows.canvas.tokens, rows.step) if full else self.stored

        def step(tree: tuple[Rows, Stored]) -> tuple[Any, Any]:
            fixed = (width, padded, self.kv)
            if full:
                after, stored, steps, flags = full_step(model, config, tree[0], *fixed)
            else:
                after, stored, steps, flags = window_step(
                    model, config, *tree, *fixed, self.policy, size
                )
            return (after, stored), (steps, flags)

        key = (config, width, padded, full, size)
        (rows, self.stored), (steps, flags) = self._call(key, step, (rows, stored))
        return rows, steps, flags

    def restart(self) -> None:
        """Make the next step a full one: a row was replaced."""
        self.stored = None


Made = tuple[Rows, Stored, Sequence[Step], Flags]


def full_step(model: Model, config: Config, rows: Rows, width: int, padded: bool, kv: KV) -> Made:
    """Every place is computed and stored."""
    wanted = reach(config, rows)
    at = (~wanted).to(torch.uint8).argsort(dim=-1, stable=True)[:, :width]
    states = forward(model, config, rows, at, padded, kv=kv)
    stored = Stored(rows.canvas.tokens, rows.step)
    overflow = wanted.sum(-1) > width
    cost = computed(config, rows.canvas)
    return _with(stored, finish(model, config, rows, at, wanted, states, overflow, cost))


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
    changed = (tokens != stored.tokens) & rows.canvas.real
    window = choose_window(wanted, changed, policy.ask(rows, wanted, stored), size)
    states = forward(model, config, rows, window[:, :width], padded, window=window, kv=kv)
    after = stored.tokens.scatter(-1, window, tokens.gather(-1, window))
    # A row that needs more than the window holds stands still; the next full step takes it.
    overflow = (wanted.sum(-1) > width) | ((wanted | changed).sum(-1) > size)
    cost = computed(config, rows.canvas) * size // tokens.shape[1]
    made = finish(model, config, rows, window[:, :width], wanted, states, overflow, cost)
    return _with(stored._replace(tokens=after), made)


def choose_window(wanted: Tensor, changed: Tensor, asked: Tensor, size: int) -> Tensor:
    """(B, size) long: the wanted, the changed, the asked for, then the nearest to the wanted."""
    length = wanted.shape[-1]
    order = distance(wanted).clamp(max=length) + 3 * length
    order = torch.where(asked, order - length, order)
    order = torch.where(changed, order * 0 + length, order)
    order = torch.where(wanted, 0, order)
    return order.argsort(dim=-1, stable=True)[:, :size]


def _with(stored: Stored, made: tuple[Rows, Sequence[Step], Flags]) -> Made:
    rows, steps, flags = made
    return rows, stored, steps, flags
