"""Rows of block-causal models: a step in a block, and the first block after a common prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wavefront.bench import roofline
from wavefront.bench.block_reference import FAMILIES, BlockReference, published_loop
from wavefront.bench.results import DEFAULT, OURS, RANDOM, Row, Workload, make_row
from wavefront.bench.step_rows import Entry, Stage
from wavefront.bench.workloads import Case, Loop, Steps, call_for, new_batcher
from wavefront.core.masks import to_mask
from wavefront.core.state import Config
from wavefront.core.tree import plural
from wavefront.engine.batcher import Batcher, Request, power_of_two
from wavefront.engine.cuda_graphs import TreeStep
from wavefront.engine.prefixes import PrefixStore
from wavefront.engine.step import BatchState, StepShape, plan_step
from wavefront.models.experts import Router
from wavefront.models.transformer import Transformer
from wavefront.strategies.caches.blocks import Blocks

PUBLISHED = "published"  # the program of the family's published loop
COUNTED_STEPS = 64  # in which the routers' choices are counted
COMMON_TOKENS = 4000  # of the prompt that requests share, if the model's canvas is long enough
# The published samplers of the families, as in docs/strategies.md.
SAMPLER = "standard(selector=threshold(tau=0.95, floor=None))"
SAMPLERS = {
    "sdar": "standard(selector=threshold(tau=0.85, floor=None))",
    "sdar_moe": "standard(selector=threshold(tau=0.85, floor=None))",
}


def block_rows(stage: Stage) -> list[Row]:
    """Measure a step against the stored keys and values of earlier blocks.

    The rows of a mixture of experts are measured again with random tokens, because positions with
    equal inputs choose the same experts.
    """
    rows = []
    for batch in stage.settings.batches:
        rows += _rows_of(stage, batch)
        if batch == 1 and stage.model.config.experts is not None:
            rows += _rows_of(stage, batch, random_tokens=True)
    return rows


def _rows_of(stage: Stage, batch: int, *, random_tokens: bool = False) -> list[Row]:
    def case_of(model: Transformer) -> Case:
        return stage.case(batch=batch, model=model, random_tokens=random_tokens)

    case, entries = case_of(stage.model), list[Entry]()
    variant = RANDOM if random_tokens else ""
    make = partial(Workload, kind="blocks", batch=batch)
    what = f"block step, batch {batch}{', random tokens' if random_tokens else ''}"
    experts = count_experts(case)
    floor = _floor(stage, case, experts)
    if experts is not None:
        what += f", {experts:.0f} experts of a layer"
    entries.append(Entry(make(variant=variant), what, _steps(stage, case), floor, experts))
    if stage.settings.cuda:
        usual = Steps(case, new_batcher(case, Blocks(), captured=None), stage.count)
        more = make(variant="-".join(filter(None, (variant, DEFAULT))))
        entries.append(Entry(more, f"{what}, default settings", usual, floor, experts))
    if stage.settings.compile:
        steps = _steps(stage, case_of(stage.compiled()))
        workload = make(variant=variant, compiled=True)
        entries.append(Entry(workload, f"{what}, compiled", steps, floor, experts))
    if batch == 1 and stage.model.family in FAMILIES:
        entries.append(_reference(stage, case))
    return stage.measure(entries, case, reference=PUBLISHED)


def _steps(stage: Stage, case: Case) -> Steps:
    return Steps(case, new_batcher(case, Blocks(), only_windows=True), stage.count)


@torch.no_grad()
def count_experts(case: Case, steps: int = COUNTED_STEPS) -> float | None:
    """Return how many different experts a layer uses in a step; None without experts.

    The mean over the layers and the first steps of the decode that is timed, from hooks on the
    routers. Passes over more than the block, which store earlier blocks, do not count.
    """
    model = case.model
    routers = [part for part in model.modules() if isinstance(part, Router)]
    if not routers:
        return None
    passes: list[list[int]] = []  # the experts of every layer, or nothing if the pass is no step

    def count(_: Any, given: tuple[Tensor], found: tuple[Tensor, Tensor]) -> None:
        passes[-1].append(found[1].unique().numel())

    def call(key: Any, step: TreeStep, tree: BatchState) -> tuple[Any, Any]:
        passes.append([])
        configs, shape = key[:2]
        result = step(tree)
        if not _is_block_step(model, configs, tree, shape=shape):
            passes[-1].clear()
        return result

    piece = Steps(case, new_batcher(case, Blocks(), call=call), steps)
    hooks = [router.register_forward_hook(count) for router in routers]
    try:
        piece()
    finally:
        for hook in hooks:
            hook.remove()
    # The first pass fills the cache. On CUDA, one more pass than `steps` is already launched.
    counts = [found for one in passes[: steps + 1] for found in one]
    return sum(counts) / len(counts) if counts else None


def _is_block_step(
    model: Transformer, configs: Sequence[Config], batch: BatchState, *, shape: StepShape
) -> bool:
    """Return whether a step computes only the current block of every row."""
    if not shape.reuse:
        return False
    plan = plan_step(model, configs, batch, shape=shape, policy=Blocks())
    assert plan.window is not None
    active = torch.stack(plan.read_masks).any(0).any(-1)
    computed = to_mask(plan.window, plan.canvas.tokens.shape[1]).sum(-1)
    return bool((active & (computed <= (model.block_size or 0))).all())


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
    if case.random_tokens:
        what += ", random tokens"
    variant = RANDOM if case.random_tokens else ""
    return Entry(Workload(kind="blocks", program=PUBLISHED, variant=variant), what, piece)


@dataclass
class FirstResult:
    """A piece: a request from its admission to its first step or to the end of its first block."""

    case: Case
    shared: bool  # another request with the same prompt was decoded before
    steps: int | None = None  # to wait for; None: all steps of the block
    on_host = True  # a user waits for the result, not for the step after it
    made: int = 0  # steps of the last request
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
        self.batcher.reset()
        if not self.shared:
            self._store.clear()
        elif not self._store.nbytes:
            self._decode()
            self.batcher.reset()

    def __call__(self) -> int:
        self._decode()
        return 1

    def _decode(self) -> None:
        tokens, holes = self.case.canvas().tokens[0].tolist(), [False] * self.case.prompt_tokens
        holes += [True] * self.case.max_new_tokens
        self.batcher.admit(Request(tokens, holes, self.case.plan))
        self.made = 0
        while self.batcher.busy and self.made != self.steps:
            self.batcher.step()  # it returns when the result of its first pass is on the host
            self.made += 1


def prefix_rows(stage: Stage) -> list[Row]:
    """Measure a request until its first step and its first block, with and without its prompt."""
    block = stage.model.block_size
    assert block is not None
    room = min(COMMON_TOKENS, stage.model.max_length - block)
    sampler = SAMPLERS.get(stage.model.family, SAMPLER)
    case = Case(stage.model, room // block * block, block, strategy=sampler)
    pieces = {
        (steps, shared): FirstResult(case, shared, steps)
        for steps in (1, None)
        for shared in (False, True)
    }
    timings = stage.time({_prefix_name(*key): piece for key, piece in pieces.items()})
    rows, more = [], {"length": case.length, "strategy": case.strategy}
    for (steps, shared), piece in pieces.items():
        what = "first step" if steps else f"first block ({plural(piece.made, 'step')})"
        what += f" after {case.prompt_tokens} tokens, "
        what += "prompt stored" if shared else "nothing stored"
        workload = Workload(
            kind="prefix",
            work="step" if steps else "decode",
            program=OURS if shared else "first",
            variant="step" if steps else "",
        )
        timing = timings[_prefix_name(steps, shared)]
        compared: dict[str, Any] = {}
        if shared:
            first = timings[_prefix_name(steps, False)]
            compared = {"reference": "first", "ratio": first.median / timing.median}
        rows.append(make_row(workload, what, timing, **more, **compared))
    return rows


def _prefix_name(steps: int | None, shared: bool) -> str:
    return f"first {'step' if steps else 'block'}, {'prompt' if shared else 'nothing'} stored"
