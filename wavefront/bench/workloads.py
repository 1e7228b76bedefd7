"""Workloads: steps of wavefront, only their forward passes, and steps of the reference loops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wavefront.core.cache_policy import Cache
from wavefront.core.canvas import Canvas, blank
from wavefront.core.state import DecodeState, start
from wavefront.engine.batcher import Batcher, Kind
from wavefront.engine.cuda_graphs import Call, TreeStep, graphs_for, run_eagerly
from wavefront.engine.options import Plan, plan
from wavefront.engine.session import model_properties
from wavefront.engine.step import BatchState, StepPlan, StepShape, forward
from wavefront.models.protocol import KV
from wavefront.models.transformer import Transformer

NEVER = 1 << 20  # a refresh interval that never ends, to time only the window


@dataclass(frozen=True)
class Case:
    """A batch to decode: prompts of random tokens, and a step for every new token."""

    model: Transformer
    prompt_tokens: int
    max_new_tokens: int
    batch: int = 1
    strategy: str = "wavefront(size=8, radius=2)"
    # Random weights predict one token everywhere. With this, each position gets a random token.
    random_tokens: bool = False

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.max_new_tokens

    @cached_property
    def plan(self) -> Plan:
        count = self.max_new_tokens
        options = {
            "strategy": self.strategy,
            "max_new_tokens": count,
            "steps": count,
            "eos": "keep",
        }
        return plan(options, model_properties(self.model))

    def _draw(self, count: int, seed: int) -> list[list[int]]:
        """Return rows of random tokens, none of them special."""
        model = self.model
        draw = torch.Generator().manual_seed(seed)
        special = {model.mask_id, model.pad_id, *model.stop_ids}
        usual = [id for id in range(min(model.vocab_size, 4096)) if id not in special]
        picks = torch.randint(0, len(usual), (self.batch, count), generator=draw)
        return [[usual[pick] for pick in row] for row in picks.tolist()]

    @cached_property
    def answer(self) -> Tensor:
        """The tokens (B, L) that `random_tokens` writes; it keeps those of the prompt."""
        return torch.tensor(self._draw(self.length, seed=1), device=self.model.device)

    def canvas(self) -> Canvas:
        model, prompts = self.model, self._draw(self.prompt_tokens, seed=0)
        ids: Any = {"mask_id": model.mask_id, "pad_id": model.pad_id}
        return blank(prompts, self.max_new_tokens, device=model.device, **ids)

    def first_state(self) -> DecodeState:
        """Return the state before the first step."""
        steps, seeds = [self.plan.budget] * self.batch, [0] * self.batch
        return start(self.canvas(), self.plan.config, steps, seeds=seeds)

    def read(self) -> int:
        """Return how many positions of a row a step reads."""
        count = self.max_new_tokens
        return min(count, self.plan.config.strategy.width(count, count))


def call_for(model: Transformer, *, captured: bool | None = True) -> Call:
    """Return how steps are called: captured in CUDA graphs on CUDA, directly elsewhere.

    With None, they are called as a decode without options does it.
    """
    return graphs_for(captured, model.device)() if model.device.type == "cuda" else run_eagerly


def without_compiler() -> AbstractContextManager[None]:
    """Run compiled functions as they are written. Old versions of torch compile them even so."""
    stance = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")


def only_windows_compiled(call: Call) -> Call:
    """Return a call that does not compile full passes, which take a minute to compile.

    Each pass has its own graph, so the graph of a window is captured from compiled code.
    """

    def run(key: Hashable, step: TreeStep, tree: Any) -> tuple[Any, Any]:
        shape = next(part for part in key if isinstance(part, StepShape))  # pyright: ignore
        if shape.reuse:
            return call(key, step, tree)
        with without_compiler():
            return call(key, step, tree)

    return run


def with_random_tokens(case: Case, call: Call) -> Call:
    """Return a call whose steps first replace every token of the answer by the case's own.

    A captured step contains this, so it needs no launch of its own.
    """
    answer = case.answer

    def replaced(state: DecodeState) -> DecodeState:
        canvas = state.canvas
        filled = canvas.known & (canvas.slot >= 0)
        tokens = torch.where(filled, answer, canvas.tokens)
        return state._replace(canvas=canvas._replace(tokens=tokens))

    def run(key: Hashable, step: TreeStep, tree: BatchState) -> tuple[Any, Any]:
        def changed(tree: BatchState) -> tuple[Any, Any]:
            return step(tree._replace(groups=tuple(map(replaced, tree.groups))))

        return call(key, changed, tree)

    return run


def new_batcher(
    case: Case,
    cache: Cache | None = None,
    *,
    captured: bool | None = True,
    min_width: int = 0,
    only_windows: bool = False,
    call: Call | None = None,
) -> Batcher:
    """Return a batcher for the case, without its requests.

    Without a cache, a step computes every position; with one, a window of them. `captured` is as
    in `call_for`; `call` replaces it. A step reads at least `min_width` positions of a row. With
    `only_windows`, full passes are not timed, so they are not compiled.
    """
    call = call_for(case.model, captured=captured) if call is None else call
    if case.random_tokens:
        call = with_random_tokens(case, call)
    if only_windows and case.model.compiled:
        call = only_windows_compiled(call)
    return Batcher(
        case.model,
        rows=case.batch,
        length=case.length,
        cache=cache,
        call=call,
        updates=False,
        min_width=min_width,
    )


@dataclass
class Steps:
    """A piece of `count` steps of wavefront. It restarts, untimed, before the decode would end."""

    case: Case
    batcher: Batcher
    count: int
    _left: int = 0

    def ready(self) -> None:
        if self._left >= self.count and self.batcher.busy:
            return
        self.batcher.reset()
        self.batcher.load(self.case.plan.config, self.case.first_state(), Kind(self.batcher.cache))
        self._left = self.case.max_new_tokens
        if self.batcher.cache is not None:
            self._advance(1)  # the full forward pass that fills the cache

    def __call__(self) -> int:
        self.ready()
        return self._advance(self.count)

    def _advance(self, count: int) -> int:
        """Take up to `count` steps, and return how many; an adaptive strategy may end early."""
        made = 0
        while made < count and self.batcher.busy:
            self.batcher.step()
            made += 1
        self._left -= made
        return made


@dataclass
class Cycle(Steps):
    """A piece of whole refresh intervals: a full forward pass, then windows."""

    def ready(self) -> None:
        super().ready()
        for request in self.batcher.active.values():
            request.steps_since_refresh = 0


@dataclass
class Forward:
    """A piece of `count` forward passes of a step, with the head on the positions it reads.

    The rest of a step is the cost of the strategy.
    """

    case: Case
    width: int
    count: int
    size: int | None = None  # of the window; None: all positions
    kv: KV | None = None  # where keys and values are stored; None: in new memory
    _tree: Any = None
    _step: Callable[[], None] | None = None

    def ready(self) -> None:
        if self._step is not None:
            return
        case, model = self.case, self.case.model
        self._tree = case.first_state()
        index = torch.arange(self.size or self.width, device=model.device)
        positions = (index + case.prompt_tokens).expand(case.batch, -1)
        window = None if self.size is None else positions
        kv = self.kv
        if self.size is not None and kv is None:
            kv = model.new_kv(case.batch, case.length)
        at = positions[:, : self.width]
        call = call_for(model)

        def pure(tree: DecodeState) -> tuple[DecodeState, tuple[()]]:
            step = StepPlan(tree.canvas, None, (), at, tree.done, window)
            model.head(forward(model, step, guided=False, kv=kv))
            return tree, ()

        def step() -> None:
            self._tree, _ = call(("forward", self.width, self.size), pure, self._tree)

        self._step = step

    @torch.no_grad()
    def __call__(self) -> int:
        self.ready()
        assert self._step is not None
        for _ in range(self.count):
            self._step()
        return self.count


@dataclass
class Loop:
    """A piece of `count` steps of a reference loop. It restarts, untimed, before it would end."""

    case: Case
    make: Callable[[Tensor], Iterator[Tensor]]
    count: int
    _steps: Iterator[Tensor] | None = None
    _left: int = 0
    _first: Tensor | None = field(default=None, repr=False)

    def ready(self) -> None:
        if self._left >= self.count and self._steps is not None:
            return
        if self._first is None:
            self._first = self.case.canvas().tokens
        self._steps, self._left = self.make(self._first.clone()), self.case.max_new_tokens

    def __call__(self) -> int:
        self.ready()
        assert self._steps is not None
        for _ in range(self.count):
            tokens = next(self._steps)
            if self.case.random_tokens:
                part, case = tokens[:, self.case.prompt_tokens :], self.case
                answer = case.answer[:, case.prompt_tokens :]
                part.copy_(part.where(part == case.model.mask_id, answer))
        self._left -= self.count
        return self.count
