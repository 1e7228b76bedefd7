"""Step rows: one step of wavefront, its floor, and a step of the reference loops."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wavefront.bench import reference_loops, roofline
from wavefront.bench.machine import DeviceLimits, measure_fp8
from wavefront.bench.model_shapes import (
    SHAPES,
    quantized_twin,
    random_model,
    twin,
    write_sparse_checkpoint,
)
from wavefront.bench.profiler import write_profile
from wavefront.bench.reference_model import Reference
from wavefront.bench.results import DEFAULT, OURS, Row, Workload, make_row
from wavefront.bench.settings import BLOCK, Settings
from wavefront.bench.timing import Piece, Timing, summarise, synchronize, time_in_turns
from wavefront.bench.workloads import (
    NEVER,
    Case,
    Cycle,
    Forward,
    Loop,
    Steps,
    new_batcher,
)
from wavefront.core import spec
from wavefront.engine.options import SPEEDS, resolve_cache
from wavefront.kernels.compile import compile_model
from wavefront.models.loader import load_model
from wavefront.models.quantize import KINDS
from wavefront.models.transformer import Transformer
from wavefront.strategies.caches.wave import Wave

# Program and work -> published milliseconds on one H200: LLaDA-8B's shape, bf16, batch 1, a prompt
# of 128 tokens and 1,024 new tokens.
PUBLISHED = {
    ("llada", "step"): 40.4,
    ("llada-block", "step"): 43.1,
    ("llada", "forward"): 39.0,
    ("dual", "step"): 37.1,
}
WINDOWS = {16: 0, 32: 4, 64: 16}  # window size -> `near`, as in the tables of quality
REFRESH = 32


def window_policy(size: int, refresh: int = REFRESH) -> Wave:
    """Return the cache policy of a window size."""
    policy = spec.resolve(f"wave(refresh={refresh}, size={size}, near={WINDOWS[size]})", "caches")
    assert isinstance(policy, Wave)
    return policy


class Entry(NamedTuple):
    """A row to measure."""

    workload: Workload
    what: str
    piece: Piece
    floor_ms: float | None = None
    experts: float | None = None
    cache: Wave | None = None  # of a row with a window; None: `window_policy` of its size


class Stage:
    """What the groups of rows share: the settings, the limits, and how rows are timed."""

    def __init__(self, settings: Settings, limits: DeviceLimits) -> None:
        self.settings, self.limits = settings, limits
        self.model, self.dtype = settings.model, settings.model.dtype
        self.count = 8 if settings.cuda else 1  # steps in a piece
        self.llada = Reference(settings.model) if settings.model.family == "llada" else None
        self._compiled: Transformer | None = None

    def case(self, *, batch: int = 1, length: int | None = None, **more: Any) -> Case:
        prompt, new = self.settings.prompt_tokens, self.settings.max_new_tokens
        if length is not None:
            prompt = min(prompt, length // 2)
            new = length - prompt
        return Case(more.pop("model", self.model), prompt, new, batch, **more)

    def compiled(self) -> Transformer:
        """Return a compiled model with the same weights; its shapes are static."""
        if self._compiled is None:
            self._compiled = twin(self.model)
            compile_model(self._compiled, dynamic=False)
        return self._compiled

    def time(
        self, pieces: Mapping[str, Piece], shown: Mapping[str, str] | None = None
    ) -> dict[str, Timing]:
        """Time several pieces alternately, and profile them if the settings ask for it.

        `shown` has the descriptions of the pieces for the progress bar; the default is their names.
        """
        settings, texts = self.settings, shown or {}
        if settings.profile:
            for name, piece in pieces.items():
                write_profile(self.model.device, name, piece, folder=settings.profile)
        return time_in_turns(
            self.model.device,
            pieces,
            repeats=settings.repeats,
            now=settings.now,
            tick=lambda name: settings.tick(texts.get(name, name)),
        )

    def measure(
        self, entries: Sequence[Entry], case: Case, *, reference: str | None = None
    ) -> list[Row]:
        """Time the entries that the settings want alternately, and return their rows.

        Steps of wavefront are compared with the step of the `reference` program.
        """
        entries = [entry for entry in entries if self.settings.wants(entry.what)]
        timings = self.time(
            {entry.workload.name: entry.piece for entry in entries},
            {entry.workload.name: entry.what for entry in entries},
        )
        times = {entry.workload: timings[entry.workload.name] for entry in entries}
        base = next((times[w] for w in times if (w.program, w.work) == (reference, "step")), None)
        rows = []
        for workload, what, _, floor, experts, cache in entries:
            timing, ours = times[workload], workload.program == OURS
            steps = workload.work != "forward"
            compared = base if ours and steps else None
            published = PUBLISHED.get((workload.program, workload.work))
            row = make_row(
                workload,
                what,
                timing,
                length=case.length,
                tokens_per_s=workload.batch / timing.median if steps else None,
                floor_ms=floor if ours else None,
                experts=experts if ours else None,
                reference=reference if compared else None,
                ratio=compared.median / timing.median if compared else None,
                published_ms=published if self.settings.as_published else None,
                strategy=case.strategy if ours else None,
                cache=repr(cache or window_policy(workload.window)) if workload.window else None,
            )
            rows.append(row)
        return rows

    def full_floor(self, case: Case) -> float:
        """Return the floor of a step over the whole canvas in milliseconds."""
        cost = roofline.full_step(
            self.model.config, case.length, read=case.read(), rows=case.batch, dtype=self.dtype
        )
        return 1000 * cost.floor(self.limits)

    def window_floor(self, case: Case, size: int, *, quantized: str | None = None) -> float:
        """Return the floor of a step over a window in milliseconds."""
        cost = roofline.window_step(
            self.model.config,
            case.length,
            size=size,
            read=min(size, case.read()),
            rows=case.batch,
            dtype=self.dtype,
            quantized=quantized,
        )
        return 1000 * cost.floor(self.limits)

    def window_steps(self, case: Case, size: int, *, count: int | None = None) -> Steps:
        """Return steps that only compute a window and never refresh."""
        batcher = new_batcher(case, window_policy(size, NEVER), only_windows=True)
        return Steps(case, batcher, count or 2 * self.count)

    def window_forward(self, steps: Steps, size: int) -> Forward:
        """Return the forward pass of such steps, with the same keys and values.

        It stores other values than a step would, but only its time matters.
        """
        steps.ready()
        width = min(size, steps.case.read())
        return Forward(steps.case, width, steps.count, size=size, kv=steps.batcher._kv)


def exact_rows(stage: Stage) -> list[Row]:
    """Measure a step over the whole canvas."""
    case, count, llada = stage.case(), stage.count, stage.llada
    width, floor = case.read(), stage.full_floor(case)
    step, forward = Workload(kind="exact"), Workload(kind="exact", work="forward")
    entries = [
        Entry(step, "exact step", Steps(case, new_batcher(case), count), floor),
        Entry(forward, "its forward alone", Forward(case, width, count), floor),
    ]
    if stage.settings.cuda:
        eager = Steps(case, new_batcher(case, captured=False), count)
        workload = Workload(kind="exact", captured=False)
        entries.append(Entry(workload, "exact step, not captured", eager, floor))
        usual = Steps(case, new_batcher(case, captured=None), count)
        workload = Workload(kind="exact", variant=DEFAULT)
        entries.append(Entry(workload, "exact step, default settings", usual, floor))
    if stage.settings.compile:
        other = stage.case(model=stage.compiled())
        step = Workload(kind="exact", compiled=True)
        forward = Workload(kind="exact", work="forward", compiled=True)
        piece = Steps(other, new_batcher(other), count)
        alone = Forward(other, width, count)
        entries += [
            Entry(step, "exact step, compiled", piece, floor),
            Entry(forward, "its forward alone, compiled", alone, floor),
        ]
    if llada is not None:
        loop = partial(reference_loops.llada, llada)
        prompt, steps = case.prompt_tokens, case.max_new_tokens
        blocks = Workload(kind="exact", program="llada-block")
        entries += [
            Entry(
                Workload(kind="exact", program="llada"),
                "LLaDA-style loop, standard",
                Loop(case, lambda x: loop(x, prompt, steps=steps), count),
            ),
            Entry(
                blocks,
                f"LLaDA-style loop, blocks of {BLOCK}",
                Loop(case, lambda x: loop(x, prompt, steps=steps, block=BLOCK), count),
            ),
            Entry(
                Workload(kind="exact", program="llada", work="forward"),
                "LLaDA-style module, forward",
                ReferenceForward(llada, case, count),
            ),
        ]
    return stage.measure(entries, case, reference="llada")


def cached_rows(stage: Stage) -> list[Row]:
    """Measure a step that computes a window, and the average over a refresh interval."""
    case, llada = stage.case(), stage.llada
    sizes = [size for size in WINDOWS if size < case.length and size <= case.max_new_tokens]
    windows = {size: stage.window_steps(case, size) for size in sizes}
    entries = [
        Entry(
            Workload(kind="cached", window=size),
            f"cached step, window {size}",
            steps,
            stage.window_floor(case, size),
        )
        for size, steps in windows.items()
    ]
    if 32 in sizes:
        floor = stage.window_floor(case, 32)
        cycle = Cycle(case, new_batcher(case, window_policy(32)), REFRESH)
        entries += [
            Entry(
                Workload(kind="cached", window=32, work="forward"),
                "its forward alone, window 32",
                stage.window_forward(windows[32], 32),
                floor,
            ),
            Entry(
                Workload(kind="cached", window=32, work="cycle"),
                f"cached, window 32, with a full step in {REFRESH}",
                cycle,
                (stage.full_floor(case) + (REFRESH - 1) * floor) / REFRESH,
            ),
        ]
        if stage.settings.cuda:
            policy = resolve_cache(SPEEDS["fast"].cache)
            entries.append(
                Entry(
                    Workload(kind="cached", window=32, work="cycle", variant=DEFAULT),
                    f"speed=fast, default settings, with a full step in {REFRESH}",
                    Cycle(case, new_batcher(case, policy, captured=None), REFRESH),
                    (stage.full_floor(case) + (REFRESH - 1) * floor) / REFRESH,
                )
            )
        if stage.settings.compile:
            steps = stage.window_steps(stage.case(model=stage.compiled()), 32)
            entries += [
                Entry(
                    Workload(kind="cached", window=32, compiled=True),
                    "cached step, window 32, compiled",
                    steps,
                    floor,
                ),
                Entry(
                    Workload(kind="cached", window=32, work="forward", compiled=True),
                    "its forward alone, window 32, compiled",
                    stage.window_forward(steps, 32),
                    floor,
                ),
            ]
    if llada is not None:
        loop = partial(reference_loops.dual, llada)
        prompt, count = case.prompt_tokens, case.max_new_tokens
        piece = Loop(case, lambda x: loop(x, prompt, steps=count, block=BLOCK), BLOCK)
        what = f"Fast-dLLM-style loop, dual cache, blocks of {BLOCK}"
        entries.append(Entry(Workload(kind="cached", program="dual"), what, piece))
    return stage.measure(entries, case, reference="dual")


def batch_rows(stage: Stage) -> list[Row]:
    """Measure batches of several sizes, with a window of 32."""
    entries = []
    for batch in (1, 8, 16, 32) if stage.settings.cuda else (1, 8):
        case = stage.case(batch=batch)
        floor, what = stage.window_floor(case, 32), f"cached step, window 32, batch {batch}"
        workload = Workload(kind="batch", window=32, batch=batch)
        entries.append(Entry(workload, what, stage.window_steps(case, 32), floor))
        if stage.settings.compile:
            other = stage.case(batch=batch, model=stage.compiled())
            workload = Workload(kind="batch", window=32, batch=batch, compiled=True)
            piece = stage.window_steps(other, 32)
            entries.append(Entry(workload, f"{what}, compiled", piece, floor))
    return stage.measure(entries, stage.case())


def quantized_rows(stage: Stage) -> list[Row]:
    """Measure steps with quantised weights, beside the same steps with the model's own."""
    case, floor = stage.case(), stage.full_floor(stage.case())
    fp8_flops = None
    if stage.settings.cuda:
        fp8_flops = measure_fp8(stage.model.device, repeats=stage.settings.repeats)
    entries = []
    for kind in (None, *KINDS):
        if not any(stage.settings.wants(what) for what in _quantized_names(kind)):
            continue
        own = stage.model if kind is None else quantized_twin(stage.model, kind)
        models = {False: own}
        if stage.settings.compile:
            models[True] = stage.compiled() if kind is None else twin(own)
        if kind is not None and stage.settings.compile:
            compile_model(models[True], dynamic=False)
        for compiled, model in models.items():
            make = partial(Workload, kind="quantized", variant=kind or "none", compiled=compiled)
            cached, exact = _quantized_names(kind)[2 * compiled :][:2]
            other = stage.case(model=model)
            entries.append(
                Entry(
                    make(window=32),
                    cached,
                    stage.window_steps(other, 32),
                    stage.window_floor(case, 32, quantized=kind),
                )
            )
            if kind == "int4" and compiled:
                continue  # its full step dequantises the weights, and saves no time
            lower = floor
            if kind == "fp8" and fp8_flops is not None:
                lower = 1000 * roofline.fp8_step(
                    model.config,
                    case.length,
                    read=case.read(),
                    limits=stage.limits,
                    fp8_flops=fp8_flops,
                )
            piece = Steps(other, new_batcher(other), stage.count)
            entries.append(Entry(make(), exact, piece, lower))
    rows = stage.measure(entries, case)
    return rows + (_load_rows(stage) if stage.settings.cuda else [])


def _quantized_names(kind: str | None) -> list[str]:
    """Return the descriptions of a cached and an exact step, then those of compiled ones."""
    return [
        f"{step}, {kind or 'unquantised'} weights{text}"
        for text in ("", ", compiled")
        for step in ("cached step, window 32", "exact step")
    ]


def _load_rows(stage: Stage) -> list[Row]:
    """Load a checkpoint of the named shape in each quantisation, and measure the peak memory."""
    rows, device = [], stage.model.device
    if stage.settings.name not in SHAPES:
        return rows
    with tempfile.TemporaryDirectory() as folder:
        write_sparse_checkpoint(stage.settings.name, Path(folder))
        for kind in ("int8", "int4"):
            text = f"load {kind} weights, and one exact step"
            if not stage.settings.wants(text):
                continue
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            started = time.perf_counter()
            model = load_model(folder, device=device, dtype=stage.dtype, quantize=kind)
            synchronize(device)
            seconds = time.perf_counter() - started
            case = stage.case(model=model)
            Steps(case, new_batcher(case, captured=False), 1)()
            synchronize(device)
            peak = torch.cuda.max_memory_allocated(device) - before
            workload = Workload(kind="quantized", work="load", variant=kind)
            rows.append(make_row(workload, text, summarise([seconds]), peak_bytes=peak))
            del model, case
    return rows


STRATEGIES = {
    "standard": "standard",
    "left-to-right": "left_to_right",
    "block": "block(size=8)",
    "wave": "wavefront(size=8, radius=2)",
}
# Without a horizon, which would hide positions and leave them out.
ADAPTIVE = "tide(cascade_rounds=8, horizon=0, selector=threshold(tau=0.9))"
# A model of about 0.5 B parameters, in the layout of LLaDA.
HALF_B: dict[str, Any] = {
    "d_model": 896,
    "n_layers": 24,
    "n_heads": 14,
    "n_kv_heads": 2,
    "mlp_hidden_size": 4864,
}


def strategy_rows(stage: Stage) -> list[Row]:
    """Measure exact steps of several strategies, and an adaptive one in a large batch."""
    case = stage.case()
    cases = {name: replace(case, strategy=one) for name, one in STRATEGIES.items()}
    entries = [
        Entry(
            Workload(kind="strategies", variant=name),
            f"exact step, {own.strategy}",
            Steps(own, new_batcher(own), stage.count),
            stage.full_floor(own),
        )
        for name, own in cases.items()
    ]
    rows = stage.measure(entries, case)
    rows = [replace(row, strategy=cases[row.variant].strategy) for row in rows]
    return rows + _adaptive_rows(stage)


def _adaptive_rows(stage: Stage) -> list[Row]:
    """Measure an adaptive strategy and `standard` at the same positions, in a large batch.

    Raises:
        RuntimeError: Their steps compute different numbers of positions.
    """
    model, batch, new = stage.model, 8, min(32, stage.settings.max_new_tokens)
    if stage.settings.cuda:
        model = random_model("llada-8b-shape", device=model.device, **HALF_B)
        batch, new = 200, 128
    entries, cases, batchers = [], {}, []
    for name, strategy in (("standard", "standard"), ("tide", ADAPTIVE)):
        case = cases[name] = Case(model, 32, new, batch, strategy)
        batchers.append(new_batcher(case, min_width=new))
        piece = Steps(case, batchers[-1], 2)
        workload = Workload(kind="strategies", variant=name, batch=batch)
        size = sum(one.numel() for one in model.parameters()) / 1e9
        what = f"exact step, {strategy}, batch {batch}, {size:.1f} B parameters"
        entries.append(Entry(workload, what, piece))
    if not (rows := stage.measure(entries, cases["standard"])):
        return []
    computed = [one.token_forwards / one.forwards for one in batchers if one.forwards]
    if len({*computed}) > 1:
        raise RuntimeError(f"The steps to compare compute {computed} positions.")
    note = f"{computed[0]:.0f} positions in each step"
    return [replace(row, strategy=cases[row.variant].strategy, note=note) for row in rows]


class ReferenceForward:
    """A piece of forward passes of the reference model, with all logits."""

    def __init__(self, model: Reference, case: Case, count: int) -> None:
        self.model, self.count, self.tokens = model, count, case.canvas().tokens

    @torch.no_grad()
    def __call__(self) -> int:
        for _ in range(self.count):
            self.model(self.tokens)
        return self.count
