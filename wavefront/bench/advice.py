"""Advice: measure the settings behind each value of `speed`, and recommend the fastest ones.

Each value of `speed` allows certain settings. `exact` allows neither a cache nor lower precision.
The others allow the caches and quantisations whose quality docs/speed.md reports. The time of a
cached decode follows from the times of two steps: one over the whole canvas, and one over a window.
A block-causal model has one cache for every speed, so its step is one of a decode with that cache.
Steps are those of the default strategy.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from wavefront.bench import machine
from wavefront.bench.model_shapes import quantized_twin, twin
from wavefront.bench.settings import Settings
from wavefront.bench.step_rows import WINDOWS
from wavefront.bench.timing import Piece, synchronize, time_in_turns
from wavefront.bench.workloads import NEVER, Case, Steps, new_batcher
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.cache_policy import Cache
from wavefront.core.errors import OptionError
from wavefront.engine.options import DEFAULT_SPEED, SPEEDS, resolve_cache
from wavefront.kernels.compile import compile_model
from wavefront.models.loader import computes_bfloat16, free_cuda_memory, resolve_dtype
from wavefront.models.quantize import linears, weight_bytes
from wavefront.models.transformer import Transformer
from wavefront.strategies.caches.blocks import Blocks
from wavefront.strategies.caches.wave import Wave

WARM_UP = 1
MARGIN = 1.05  # how many times as fast a setting must be to replace the default of its `speed`
# Quantisations that `balanced` and `fast` allow. int4 is left out: tale writes worse texts with it.
QUANTIZATIONS = ("int8", "fp8")


class Variant(NamedTuple):
    """A way to load the model."""

    dtype: str | None = None  # None: the model's own
    compiled: bool = False
    quantize: str | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The fastest setting for one value of `speed`."""

    speed: str
    cache: str | None
    dtype: str | None  # None: the default
    compile: bool
    quantize: str | None
    compile_seconds: float | None  # what compilation takes at the first start; None: not compiled
    ms_per_step: float  # the mean over a refresh interval
    tokens_per_s: float  # at one token per step
    times_exact: float  # how many times as fast as `exact`
    python: str
    command: str


@dataclass(frozen=True, kw_only=True)
class AdviceReport:
    """The advice for a model on this machine."""

    about: dict[str, Any]
    settings: dict[str, Any]
    advice: tuple[Advice, ...]
    left_out: tuple[str, ...] = ()  # quantisations without room for a copy of the weights

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


class Times(NamedTuple):
    """Milliseconds per step of one variant."""

    full: float  # a step over the whole canvas; in a block-causal model, a step in a block
    windows: dict[int, float]  # by window size; empty for a block-causal model
    compile_seconds: float | None = None  # of the first steps of a compiled variant


def variants(settings: Settings) -> list[Variant]:
    """Return the ways to load the model that are measured first, without compilation."""
    found = [Variant()]
    device, dtype = settings.model.device, settings.model.dtype
    lower = {one.cpu_dtype for one in SPEEDS.values() if one.cpu_dtype}
    if computes_bfloat16(device):
        found += [Variant(dtype=one) for one in sorted(lower) if resolve_dtype(one) != dtype]
    if settings.cuda:
        found += [Variant(quantize=kind) for kind in _fitting(settings)]
    return found


def _fitting(settings: Settings) -> list[str]:
    """Return the quantisations of which a copy fits into the GPU's memory, beside the model."""
    model, found = settings.model, list[str]()
    free = free_cuda_memory(model.device)
    plain = sum(linear.weight.numel() for linear in linears(model).values())
    shared = weight_bytes(model, model.dtype, None) - plain * model.dtype.itemsize
    for kind in QUANTIZATIONS:
        needed = weight_bytes(model, model.dtype, kind) - shared
        if needed <= free:
            free -= needed
            found.append(kind)
    return found


def compiled_variants(settings: Settings, times: dict[Variant, Times]) -> list[Variant]:
    """Return what to compile: the model as it is, and its fastest quantisation."""
    if not settings.compile:
        return []
    found = [Variant(compiled=True)]
    quantized = [variant for variant in times if variant.quantize is not None]
    if quantized:
        fastest = min(quantized, key=lambda one: _step(times[one]))
        found.append(fastest._replace(compiled=True))
    return found


def _step(times: Times) -> float:
    """Return the milliseconds of the step that most of a decode consists of."""
    return min(times.windows.values(), default=times.full)


def ticks(settings: Settings) -> int:
    """Return how often `tick` will be called, for a progress bar."""
    first = variants(settings)
    compiled = (2 if any(one.quantize for one in first) else 1) if settings.compile else 0
    each = (1 + len(_windows(settings))) * (settings.repeats + WARM_UP)
    return (len(first) + compiled) * each


def advise(settings: Settings) -> AdviceReport:
    """Measure the candidate settings, and return the fastest for each value of `speed`.

    Raises:
        OptionError: The canvas is too short for a window.
    """
    by_block = settings.model.block_size is not None
    if not by_block and not _windows(settings):
        raise OptionError(
            f"The advice needs at least {min(WINDOWS) + 1} new tokens, not "
            f"{settings.max_new_tokens}.",
            option="max_new_tokens",
            value=settings.max_new_tokens,
        )
    chosen = variants(settings)
    measured = [one.quantize for one in chosen]
    times = _measure(settings, chosen)
    times |= _measure(settings, compiled_variants(settings, times))
    return AdviceReport(
        about=machine.about(settings.model.device, settings.model.dtype),
        settings={
            "model": settings.name,
            "prompt_tokens": settings.prompt_tokens,
            "max_new_tokens": settings.max_new_tokens,
            "repeats": settings.repeats,
            "strategy": DEFAULT_STRATEGY,
        },
        advice=tuple(choose(times, name=settings.name, cache=Blocks() if by_block else None)),
        left_out=tuple(kind for kind in QUANTIZATIONS if settings.cuda and kind not in measured),
    )


def _windows(settings: Settings) -> list[int]:
    if settings.model.block_size is not None:
        return []
    return [size for size in WINDOWS if size < settings.max_new_tokens]


@torch.no_grad()
def _measure(settings: Settings, chosen: list[Variant]) -> dict[Variant, Times]:
    """Time a full step and a step of every window, for every variant, alternately."""
    pieces: dict[tuple[Variant, int], Piece] = {}
    compile_seconds: dict[Variant, float] = {}
    exact = Blocks() if settings.model.block_size is not None else None
    count = 8 if settings.cuda else 1  # steps in a piece
    for variant in chosen:
        model = _load(settings, variant)
        case = Case(
            model, settings.prompt_tokens, settings.max_new_tokens, strategy=DEFAULT_STRATEGY
        )
        usual = new_batcher(case, exact, only_windows=exact is not None)
        pieces[variant, 0] = Steps(case, usual, count)
        for size in _windows(settings):
            policy = Wave(refresh=NEVER, size=size, near=WINDOWS[size])
            pieces[variant, size] = Steps(
                case, new_batcher(case, policy, only_windows=True), 2 * count
            )
        if variant.compiled:
            # Of the full step and one window: a decode has no others.
            sizes = (0, *_windows(settings)[:1])
            compile_seconds[variant] = _first_seconds([pieces[variant, n] for n in sizes], model)
    names = {f"{_describe(variant)}, window {size}": (variant, size) for variant, size in pieces}
    found = time_in_turns(
        settings.model.device,
        {name: pieces[key] for name, key in names.items()},
        repeats=settings.repeats,
        warm_up=WARM_UP,
        now=settings.now,
        tick=settings.tick,
    )
    ms = {key: found[name].ms for name, key in names.items()}
    return {
        variant: Times(
            ms[variant, 0],
            {size: ms[variant, size] for size in _windows(settings)},
            compile_seconds.get(variant),
        )
        for variant in chosen
    }


def _first_seconds(pieces: list[Piece], model: Transformer) -> float:
    """Return how long the first run of some pieces takes, compilation included."""
    began = time.perf_counter()
    for piece in pieces:
        piece()
    synchronize(model.device)
    return time.perf_counter() - began


def _describe(variant: Variant) -> str:
    kind = variant.quantize or variant.dtype or "default"
    return ", ".join([kind, *["compiled"] * variant.compiled])


def _load(settings: Settings, variant: Variant) -> Transformer:
    """Return the model of a variant, with the same weights."""
    model = settings.model
    if variant == Variant():
        return model
    kind = variant.quantize
    other = twin(model) if kind is None else quantized_twin(model, kind)
    if variant.dtype is not None:
        other = other.to(resolve_dtype(variant.dtype))
    if variant.compiled:
        compile_model(other, dynamic=False)
    return other


def choose(times: dict[Variant, Times], *, name: str, cache: Cache | None = None) -> list[Advice]:
    """Return the advice for every value of `speed`, from the times of all variants.

    Args:
        times: The milliseconds per step of each variant.
        name: The model's name, for the lines of code.
        cache: The cache of every speed, for a block-causal model; None: that of each speed.
    """
    exact_cache = cache
    same = [one for one in times if one.dtype is None and one.quantize is None]
    exact = min(times[variant].full for variant in same)
    found = []
    for speed, options in SPEEDS.items():
        lowers = Variant(options.cpu_dtype) in times and options.cpu_dtype is not None
        own = Variant(options.cpu_dtype if lowers else None)
        usual = exact_cache or resolve_cache(options.cache)
        costs = {
            (variant, cache): ms
            for variant in times
            if variant.dtype in (None, options.cpu_dtype)
            if variant.quantize is None or speed != DEFAULT_SPEED
            for cache, ms in _costs(usual, times[variant]).items()
        }
        best = min(costs, key=lambda key: costs[key])
        if costs.get((own, usual), math.inf) < MARGIN * costs[best]:
            best = own, usual
        ms, (variant, cache) = costs[best], best
        given = {
            "speed": None if speed == "exact" else speed,
            # This `speed` would lower the precision, which is not the fastest setting here.
            "dtype": "float32" if lowers and variant.dtype is None else None,
            "quantize": variant.quantize,
            "compile": variant.compiled or None,
            "cache": None if cache == usual else repr(cache),
        }
        found.append(
            Advice(
                speed=speed,
                cache=None if cache is None else repr(cache),
                dtype=variant.dtype,
                compile=variant.compiled,
                quantize=variant.quantize,
                compile_seconds=times[variant].compile_seconds,
                ms_per_step=ms,
                tokens_per_s=1000 / ms,
                times_exact=exact / ms,
                python=_python(name, given),
                command=_command(name, given),
            )
        )
    return found


def _costs(policy: Cache | None, times: Times) -> dict[Cache | None, float]:
    """Return the milliseconds per step with each cache like `policy`, that of a `speed`."""
    if not isinstance(policy, Wave):
        return {policy: times.full}
    refresh = policy.refresh
    return {
        replace(policy, size=size, near=WINDOWS[size]): (times.full + (refresh - 1) * ms) / refresh
        for size, ms in times.windows.items()
    }


def _python(name: str, given: dict[str, Any]) -> str:
    """Return the line of Python that uses a setting."""
    names = ("speed", "dtype", "quantize", "compile")
    load = {key: given[key] for key in names if given[key] is not None}
    words = "".join(f", {key}={value!r}" for key, value in load.items())
    cache = "" if given["cache"] is None else f", cache={given['cache']!r}"
    return f"wavefront.load({name!r}{words}).generate(prompt{cache})"


def _command(name: str, given: dict[str, Any]) -> str:
    """Return the command that uses a setting."""
    parts = [f"wavefront generate -m {name}"]
    parts += [
        f"--{key}" if value is True else f"--{key} {_quoted(value)}"
        for key, value in given.items()
        if value is not None
    ]
    return " ".join([*parts, '"…"'])


def _quoted(value: str) -> str:
    return f'"{value}"' if "(" in value else value
