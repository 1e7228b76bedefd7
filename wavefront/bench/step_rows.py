"""Steps: one step of ours beside its floor and beside a step of the reference loops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from wavefront.bench import reference_loops, roofline
from wavefront.bench.machine import Limits
from wavefront.bench.model_shapes import twin
from wavefront.bench.profiler import profiled
from wavefront.bench.reference_model import Reference
from wavefront.bench.results import Row, row
from wavefront.bench.settings import BLOCK, Settings
from wavefront.bench.timing import Piece, Timing, in_turns
from wavefront.bench.workloads import NEVER, Case, Cycle, Forward, Loop, Steps, cached, exact
from wavefront.core import spec
from wavefront.engine.cached_step import CachedStep
from wavefront.kernels.compile import compile_model
from wavefront.models.transformer import Transformer
from wavefront.strategies.caches.wave import Wave

# Milliseconds a step of the published programs on one H200, LLaDA-8B's shape, bf16, batch 1,
# a prompt of 128 and 1,024 places.
PUBLISHED = {"llada": 40.4, "llada-block": 43.1, "llada-forward": 39.0, "dual": 37.1}
WINDOWS = {16: 0, 32: 4, 64: 16}  # places recomputed, and how many beside those read
REFRESH = 32


def policy(size: int, refresh: int) -> Wave:
    made = spec.resolve(f"wave(refresh={refresh}, size={size}, near={WINDOWS[size]})", "caches")
    assert isinstance(made, Wave)
    return made


def compiled(model: Transformer) -> Transformer:
    """A compiled twin; its shapes are static, and one block's code serves nearly all."""
    made = twin(model)
    compile_model(made, dynamic=False)
    return made


class Stage:
    """What the groups of rows share: the settings, the limits, and how a group is timed."""

    def __init__(self, settings: Settings, limits: Limits) -> None:
        self.settings, self.limits = settings, limits
        self.model, self.dtype = settings.model, settings.model.dtype
        self.count = 8 if settings.cuda else 1  # steps in a piece
        self.llada = Reference(settings.model) if settings.model.family == "llada" else None
        self._compiled: Transformer | None = None

    def case(self, *, rows: int = 1, length: int | None = None, **more: Any) -> Case:
        given, places = self.settings.given, self.settings.places
        if length is not None:
            given = min(given, length // 2)
            places = length - given
        return Case(more.pop("model", self.model), given, places, rows, **more)

    def compiled(self) -> Transformer:
        self._compiled = self._compiled or compiled(self.model)
        return self._compiled

    def time(self, pieces: dict[str, Piece]) -> dict[str, Timing]:
        settings = self.settings
        if settings.profile:
            for name, piece in pieces.items():
                profiled(self.model.device, name, piece, settings.profile)
        return in_turns(
            self.model.device,
            pieces,
            repeats=settings.repeats,
            now=settings.now,
            tick=settings.tick,
        )

    def full_floor(self, case: Case) -> float:
        need = roofline.full(
            self.model.config, case.length, read=case.read(), rows=case.rows, dtype=self.dtype
        )
        return 1000 * need.floor(self.limits)

    def window_floor(self, case: Case, size: int) -> float:
        need = roofline.window(
            self.model.config,
            case.length,
            size=size,
            read=min(size, case.read()),
            rows=case.rows,
            dtype=self.dtype,
        )
        return 1000 * need.floor(self.limits)

    def windowed(self, case: Case, size: int, *, count: int | None = None) -> Steps:
        """Steps that only ever compute a window."""
        run = cached(case, policy(size, NEVER))
        return Steps(case, run, min(size, case.read()), count or 2 * self.count)

    def alone(self, steps: Steps, size: int) -> Forward:
        """The forward of such steps, on their own store, so that only the steps' rest differs.

        It writes there what no step would; but only time is looked at.
        """
        assert isinstance(steps.run, CachedStep)
        return Forward(steps.case, steps.width, steps.count, size=size, kv=steps.run.kv)


def exact_rows(stage: Stage) -> list[Row]:
    """A step over the whole canvas."""
    case, count, llada = stage.case(), stage.count, stage.llada
    pieces: dict[str, Piece] = {
        "exact": Steps(case, exact(case), case.read(), count),
        "exact-forward": Forward(case, case.read(), count),
    }
    if stage.settings.cuda:
        pieces["exact-eager"] = Steps(case, exact(case, captured=False), case.read(), count)
    if stage.settings.compile:
        other = stage.case(model=stage.compiled())
        pieces["exact-compiled"] = Steps(other, exact(other), case.read(), count)
        pieces["exact-compiled-forward"] = Forward(other, case.read(), count)
    if llada is not None:
        loop, given, steps = partial(reference_loops.llada, llada), case.given, case.places
        pieces["llada"] = Loop(case, lambda x: loop(x, given, steps=steps), count)
        pieces["llada-block"] = Loop(
            case, lambda x: loop(x, given, steps=steps, block=BLOCK), count
        )
        pieces["llada-forward"] = Passes(llada, case, count)
    found = stage.time(pieces)
    what = {
        "exact": "exact step",
        "exact-forward": "its forward alone",
        "exact-eager": "exact step, not captured",
        "exact-compiled": "exact step, compiled",
        "exact-compiled-forward": "its forward alone, compiled",
        "llada": "LLaDA-style loop, standard",
        "llada-block": f"LLaDA-style loop, blocks of {BLOCK}",
        "llada-forward": "LLaDA-style module, forward",
    }
    floor = stage.full_floor(case)
    return [
        _row(stage, name, what[name], timing, case, found, floor, against="llada")
        for name, timing in found.items()
    ]


def cached_rows(stage: Stage) -> list[Row]:
    """A step that computes a window, and the average over a refresh interval."""
    case, llada = stage.case(), stage.llada
    sizes = [size for size in WINDOWS if size < case.length and size <= case.places]
    windows = {size: stage.windowed(case, size) for size in sizes}
    pieces: dict[str, Piece] = {f"cached-{size}": steps for size, steps in windows.items()}
    what = {f"cached-{size}": f"cached step, window {size}" for size in sizes}
    floor = {f"cached-{size}": stage.window_floor(case, size) for size in sizes}
    if 32 in sizes:
        pieces["cached-forward"] = stage.alone(windows[32], 32)
        what["cached-forward"] = "its forward alone, window 32"
        cycle = cached(case, policy(32, REFRESH))
        pieces["cached-cycle"] = Cycle(case, cycle, windows[32].width, REFRESH)
        what["cached-cycle"] = f"cached, window 32, with a full step in {REFRESH}"
        floor["cached-forward"] = floor["cached-32"]
        full = stage.full_floor(case)
        floor["cached-cycle"] = (full + (REFRESH - 1) * floor["cached-32"]) / REFRESH
        if stage.settings.compile:
            other = stage.case(model=stage.compiled())
            pieces["cached-32-compiled"] = steps = stage.windowed(other, 32)
            what["cached-32-compiled"] = "cached step, window 32, compiled"
            alone = "cached-32-compiled-forward"
            pieces[alone] = stage.alone(steps, 32)
            what[alone] = "its forward alone, window 32, compiled"
            floor["cached-32-compiled"] = floor[alone] = floor["cached-32"]
    if llada is not None:
        loop, given, steps = partial(reference_loops.dual, llada), case.given, case.places
        pieces["dual"] = Loop(case, lambda x: loop(x, given, steps=steps, block=BLOCK), BLOCK)
        what["dual"] = f"Fast-dLLM-style loop, dual cache, blocks of {BLOCK}"
    found = stage.time(pieces)
    rows = []
    for name, timing in found.items():
        size = 64 if "64" in name else 16 if "16" in name else 32
        cache = None if name == "dual" else repr(policy(size, REFRESH))
        made = _row(stage, name, what[name], timing, case, found, floor.get(name), against="dual")
        rows.append(replace(made, cache=cache))
    return rows


def batch_rows(stage: Stage) -> list[Row]:
    """Eight rows together beside one, window 32."""
    pieces: dict[str, Piece] = {}
    floor, sizes, what = {}, {}, {}
    for rows in (1, 8):
        case = stage.case(rows=rows)
        pieces[f"batch-{rows}"] = stage.windowed(case, 32)
        if stage.settings.compile:
            other = stage.case(rows=rows, model=stage.compiled())
            pieces[f"batch-{rows}-compiled"] = stage.windowed(other, 32)
        for name in (f"batch-{rows}", f"batch-{rows}-compiled"):
            floor[name], sizes[name] = stage.window_floor(case, 32), rows
            what[name] = f"cached step, window 32, batch {rows}" + name[len(f"batch-{rows}") :]
    found = stage.time(pieces)
    return [
        row(
            name,
            what[name].replace("-compiled", ", compiled"),
            timing,
            rows=sizes[name],
            length=stage.settings.length,
            tokens_per_s=sizes[name] / timing.median,
            floor_ms=floor[name],
            strategy=stage.case().strategy,
            cache=repr(policy(32, REFRESH)),
        )
        for name, timing in found.items()
    ]


class Passes:
    """A piece of forwards of the reference module, all logits."""

    def __init__(self, model: Reference, case: Case, count: int) -> None:
        self.model, self.count, self.tokens = model, count, case.canvas().tokens

    @torch.no_grad()
    def __call__(self) -> int:
        for _ in range(self.count):
            self.model(self.tokens)
        return self.count


def _row(
    stage: Stage,
    name: str,
    what: str,
    timing: Timing,
    case: Case,
    found: dict[str, Timing],
    floor: float | None,
    *,
    against: str,
) -> Row:
    ours = name not in PUBLISHED
    base = found.get(against)
    step = not name.endswith("forward")
    return row(
        name,
        what,
        timing,
        length=case.length,
        rows=case.rows,
        tokens_per_s=case.rows / timing.median if step else None,
        floor_ms=floor if ours else None,
        reference=against if ours and step and base else None,
        ratio=base.median / timing.median if ours and step and base else None,
        published_ms=PUBLISHED.get(name) if stage.settings.as_published else None,
        strategy=case.strategy if ours else None,
    )
