"""Rows of block-causal models: a step in a block, and the first block of a common prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wavefront.bench import roofline
from wavefront.bench.block_reference import FAMILIES, BlockReference, published_loop
from wavefront.bench.results import DEFAULT, Row, Workload, make_row
from wavefront.bench.step_rows import Entry, Stage
from wavefront.bench.timing import synchronize
from wavefront.bench.workloads import Case, Loop, Steps, call_for, new_batcher
from wavefront.engine.batcher import Batcher, Request, power_of_two
from wavefront.engine.prefixes import PrefixStore
from wavefront.models.experts import Router
from wavefront.strategies.caches.blocks import Blocks

PUBLISHED = "published"  # the program of the family's published loop
COUNTED_STEPS = 64  # in which the routers' choices are counted
COMMON_TOKENS = 4000  # of the prompt that requests share, if the model's canvas is long enough


def block_rows(stage: Stage) -> list[Row]:
    """Measure a step against the stored keys and values of earlier blocks."""
    rows = []
    for batch in (1, 8):
        case, entries = stage.case(batch=batch), []
        make = partial(Workload, kind="blocks", batch=batch)
        experts = count_experts(case)
        what, floor = f"block step, batch {batch}", _floor(stage, case, experts)
        if experts is not None:
            what += f", {experts:.0f} experts of a layer"
        entries.append(Entry(make(), what, _steps(stage, case), floor, experts))
        if stage.settings.cuda:
            usual = Steps(case, new_batcher(case, Blocks(), captured=None), stage.count)
            more = make(variant=DEFAULT)
            entries.append(Entry(more, f"{what}, default settings", usual, floor, experts))
        if stage.settings.compile:
            other = stage.case(batch=batch, model=stage.compiled())
            workload = make(compiled=True)
            steps = _steps(stage, other)
            entries.append(Entry(workload, f"{what}, compiled", steps, floor, experts))
        if batch == 1 and stage.model.family in FAMILIES:
            entries.append(_reference(stage, case))
        rows += stage.measure(entries, case, reference=PUBLISHED)
    return rows


def _steps(stage: Stage, case: Case) -> Steps:
    return Steps(case, new_batcher(case, Blocks()), stage.count)


@torch.no_grad()
def count_experts(case: Case, steps: int = COUNTED_STEPS) -> float | None:
    """Return how many different experts a layer uses in a step; None without experts.

    The mean over the layers and the first steps of the decode that is timed, from hooks on the
    routers. Passes over more than the block, which store earlier blocks, do not count.
    """
    model, counts = case.model, []
    routers = [part for part in model.modules() if isinstance(part, Router)]
    if not routers:
        return None
    assert model.block_size is not None
    positions = case.batch * model.block_size

    def count(_: Any, given: tuple[Tensor], found: tuple[Tensor, Tensor]) -> None:
        if given[0].shape[0] <= positions:
            counts.append(found[1].unique().numel())

    piece = Steps(case, new_batcher(case, Blocks(), captured=False), steps)
    hooks = [router.register_forward_hook(count) for router in routers]
    try:
        piece()
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts) / len(counts) if counts else None


def _floor(stage: Stage, case: Case, experts: float | None) -> float:
    """Return the floor of a step in milliseconds, with the mean number of earlier positions."""
    block = stage.model.block_size
    assert block is not None
    cost = roofline.window_step(
        stage.model.config,
        case.prompt_tokens + case.max_new_tokens // 2,
        size=block,
        read=block,
        rows=case.batch,
        dtype=stage.dtype,
        experts=experts,
    )
    return 1000 * cost.floor(stage.limits)


def _reference(stage: Stage, case: Case) -> Entry:
    model, block = stage.model, stage.model.block_size
    assert block is not None
    reference = BlockReference(model)
    loop = partial(published_loop, reference, family=model.family, block=block)
    piece = Loop(case, lambda tokens: loop(tokens, case.prompt_tokens), stage.count)
    what = f"{model.family}-style loop, blocks of {block}"
    return Entry(Workload(kind="blocks", program=PUBLISHED), what, piece)


@dataclass
class FirstBlock:
    """A piece: a request from its admission to the end of its first block."""

    case: Case
    shared: bool  # another request with the same prompt was decoded before
    batcher: Batcher = field(init=False)
    _store: PrefixStore = field(init=False)

    def __post_init__(self) -> None:
        model, case = self.case.model, self.case
        self._store = PrefixStore(model, 1 << 40)
        self.batcher = Batcher(
            model,
            rows=1,
            length=case.length,
            call=call_for(model, captured=None),
            bucket=power_of_two,
            prefixes=self._store,
        )

    def ready(self) -> None:
        if not self.shared:
            self._store.clear()
        elif not self._store.nbytes:
            self._decode()

    def __call__(self) -> int:
        self._decode()
        return 1

    def _decode(self) -> None:
        tokens, holes = self.case.canvas().tokens[0].tolist(), [False] * self.case.prompt_tokens
        holes += [True] * self.case.max_new_tokens
        self.batcher.admit(Request(tokens, holes, self.case.plan))
        while self.batcher.busy:
            self.batcher.step()
        synchronize(self.case.model.device)


def prefix_rows(stage: Stage) -> list[Row]:
    """Measure the time to the first block of a request, with and without its prompt stored."""
    block = stage.model.block_size
    assert block is not None
    room = min(COMMON_TOKENS, stage.model.max_length - block)
    case = Case(stage.model, room // block * block, block, strategy="standard")
    text = f"first block after {case.prompt_tokens} tokens"
    entries = [
        Entry(
            Workload(kind="prefix", work="decode", program="first"),
            f"{text}, nothing stored",
            FirstBlock(case, shared=False),
        ),
        Entry(
            Workload(kind="prefix", work="decode"),
            f"{text}, prompt stored",
            FirstBlock(case, shared=True),
        ),
    ]
    timings = stage.time({entry.what: entry.piece for entry in entries})
    first, second = (timings[entry.what] for entry in entries)
    more = {"length": case.length, "strategy": case.strategy}
    return [
        make_row(entries[0].workload, entries[0].what, first, **more),
        make_row(
            entries[1].workload,
            entries[1].what,
            second,
            reference="first",
            ratio=first.median / second.median,
            **more,
        ),
    ]
