"""Subjects: what is timed. Steps of ours, the forward in them, and steps of the reference loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wavefront.core.cache_policy import Cache
from wavefront.core.canvas import Canvas, blank
from wavefront.core.state import DecodeState, start
from wavefront.engine.cached_step import CachedStep
from wavefront.engine.cuda_graphs import Call, Graphs, eagerly, graphed
from wavefront.engine.options import Plan, plan
from wavefront.engine.session import source
from wavefront.engine.step import StepFn, advance, forward
from wavefront.models.protocol import KV
from wavefront.models.transformer import Transformer

NEVER = 1 << 30  # steps between full forwards, where only the window is to be timed


@dataclass(frozen=True)
class Case:
    """A batch to decode: `rows` prompts of `given` random tokens and `places` to fill, T = N."""

    model: Transformer
    given: int
    places: int
    rows: int = 1
    strategy: str = "wavefront(size=8, radius=2)"

    @property
    def length(self) -> int:
        return self.given + self.places

    @cached_property
    def plan(self) -> Plan:
        options = {"strategy": self.strategy, "max_new_tokens": self.places, "steps": self.places}
        return plan(options, source(self.model))

    def canvas(self) -> Canvas:
        model = self.model
        draw = torch.Generator().manual_seed(0)
        taken = {model.mask_id, model.pad_id, *model.stop_ids}
        usual = [id for id in range(min(model.vocab_size, 4096)) if id not in taken]
        picks = torch.randint(0, len(usual), (self.rows, self.given), generator=draw)
        prompts = [[usual[pick] for pick in row] for row in picks.tolist()]
        return blank(
            prompts, self.places, mask_id=model.mask_id, pad_id=model.pad_id, device=model.device
        )

    def read(self) -> int:
        """How many places of a row a step reads."""
        return min(self.places, self.plan.config.strategy.width(self.places, self.places))


def call_for(model: Transformer, *, captured: bool = True) -> Call:
    """Captured on CUDA, as it stands elsewhere."""
    return Graphs() if captured and model.device.type == "cuda" else eagerly


def exact(case: Case, *, captured: bool = True) -> StepFn:
    """Every place at every step."""
    call = call_for(case.model, captured=captured)
    return advance if call is eagerly else graphed(call)


def cached(case: Case, policy: Cache, *, captured: bool = True) -> CachedStep:
    """A window of places against stored keys and values."""
    call = call_for(case.model, captured=captured)
    return CachedStep(policy, case.model, case.rows, case.length, case.places, call)


@dataclass
class Steps:
    """A piece of `count` steps of ours; it begins anew, untimed, before it would end."""

    case: Case
    run: StepFn
    width: int
    count: int
    _rows: DecodeState | None = None
    _left: int = 0

    def ready(self) -> None:
        if self._left >= self.count and self._rows is not None:
            return
        case, settled = self.case, self.case.plan
        times = case.rows
        self._rows = start(case.canvas(), settled.config, [case.places] * times, [0] * times)
        self._left = case.places
        if isinstance(self.run, CachedStep):
            self.run.restart()
            self._go(1)  # the full forward that fills the store

    def __call__(self) -> int:
        self.ready()
        self._go(self.count)
        return self.count

    @torch.no_grad()
    def _go(self, count: int) -> None:
        config = self.case.plan.config
        rows = self._rows
        assert rows is not None
        for _ in range(count):
            rows, *_ = self.run(self.case.model, config, rows, self.width, False)
        self._rows, self._left = rows, self._left - count


@dataclass
class Cycle(Steps):
    """A piece of whole refresh intervals: a full forward, then windows."""

    def ready(self) -> None:
        super().ready()
        if isinstance(self.run, CachedStep):
            self.run.restart()


@dataclass
class Forward:
    """A piece of `count` forwards as a step makes them, with the head on what is read.

    The rest of a step, beyond this, is what the strategy costs.
    """

    case: Case
    width: int
    count: int
    size: int | None = None  # of the window; None: all places
    kv: KV | None = None  # where its keys and values are stored; None: in memory of its own
    captured: bool = True
    _tree: Any = None
    _step: Callable[[], None] | None = None

    def ready(self) -> None:
        if self._step is not None:
            return
        case, model = self.case, self.case.model
        config = case.plan.config
        rows = start(case.canvas(), config, [case.places] * case.rows, [0] * case.rows)
        self._tree = rows
        here = torch.arange(self.size or self.width, device=model.device)
        places = (here + case.given).expand(case.rows, -1)
        window = None if self.size is None else places
        kv = self.kv
        if self.size is not None and kv is None:
            kv = model.new_kv(case.rows, case.length)
        at = places[:, : self.width]
        call = call_for(model, captured=self.captured)

        def pure(tree: DecodeState) -> tuple[DecodeState, tuple[()]]:
            model.head(forward(model, config, tree, at, False, window=window, kv=kv))
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
    """A piece of `count` steps of a reference loop; begins anew, untimed, before it would end."""

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
        self._steps, self._left = self.make(self._first.clone()), self.case.places

    def __call__(self) -> int:
        self.ready()
        assert self._steps is not None
        for _ in range(self.count):
            next(self._steps)
        self._left -= self.count
        return self.count
