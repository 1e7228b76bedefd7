"""Whole decodes, cost against length and batch, and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from wavefront.bench import reference_loops
from wavefront.bench.memory import peak_memory
from wavefront.bench.results import OURS, Curve, Row, Target, Workload, make_row
from wavefront.bench.step_rows import REFRESH, Entry, Stage, window_policy
from wavefront.bench.timing import (
    Piece,
    Timing,
    summarise,
    synchronize,
    without_garbage_collection,
)
from wavefront.bench.workloads import Case, Loop, Steps, new_batcher
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.session import DecodeSession

LLADA = Workload(kind="end-to-end", work="decode", program="llada")
LOOP = "LLaDA-style loop, whole decode"


def decode_rows(stage: Stage) -> list[Row]:
    """Measure whole decodes with a token per step and a window of 32, and the LLaDA-style loop."""
    settings, case = stage.settings, stage.case()
    what = f"whole decode, {case.max_new_tokens} tokens, refresh {REFRESH}"
    workload = partial(Workload, kind="end-to-end", work="decode", window=32)
    decodes = [(workload(), what, case)]
    if settings.compile:
        compiled = stage.case(model=stage.compiled())
        decodes.append((workload(compiled=True), f"{what}, compiled", compiled))
    timings = [_time_decodes(stage, text, own) for _, text, own in decodes]
    loop = _time_loop(stage, case)
    rows = [
        make_row(
            one,
            text,
            timing,
            tokens_per_s=case.max_new_tokens / timing.median,
            floor_ms=_decode_floor(stage, case),
            reference="llada" if loop else None,
            ratio=loop.seconds / timing.median if loop else None,
            strategy=case.strategy,
            cache=repr(window_policy(32)),
            length=case.length,
        )
        for (one, text, _), timing in zip(decodes, timings, strict=True)
    ]
    if loop:
        what = f"{LOOP}, {case.max_new_tokens} tokens"
        more: dict[str, Any] = {"tokens_per_s": case.max_new_tokens / loop.seconds}
        more |= {"note": loop.note, "length": case.length}
        rows.append(make_row(LLADA, what, summarise([loop.seconds]), **more))
    return rows


def _time_decodes(stage: Stage, what: str, case: Case) -> Timing:
    """Time whole decodes of wavefront."""
    captured = CapturedBatchers(case.model) if stage.settings.cuda else None
    plan = replace(case.plan, cache=window_policy(32))

    def decode() -> None:
        DecodeSession(case.model, case.canvas(), plan, captured=captured).drain()

    decode()  # captures graphs and warms up
    seconds = []
    for _ in range(1 if stage.settings.quick else 3):
        stage.settings.tick(what)
        seconds.append(_seconds(stage, decode))
    return summarise(seconds)


class LoopTime(NamedTuple):
    """The time of the LLaDA-style loop for a whole decode."""

    seconds: float
    note: str


def _time_loop(stage: Stage, case: Case) -> LoopTime | None:
    """Time the LLaDA-style loop; None if the model is not of the LLaDA family."""
    llada, steps = stage.llada, case.max_new_tokens
    if llada is None:
        return None
    loop = partial(reference_loops.llada, llada)
    if stage.settings.quick:
        piece = Loop(case, lambda x: loop(x, case.prompt_tokens, steps=steps), stage.count)
        each = stage.time({LLADA.name: piece}, {LLADA.name: LOOP})[LLADA.name].median
        return LoopTime(each * steps, "extrapolated from a few steps")

    def decode() -> None:
        for _ in loop(case.canvas().tokens, case.prompt_tokens, steps=steps):
            pass

    stage.settings.tick(LOOP)
    return LoopTime(_seconds(stage, decode), "")


def _decode_floor(stage: Stage, case: Case) -> float:
    full = -(-case.max_new_tokens // REFRESH)
    windows = case.max_new_tokens - full
    return full * stage.full_floor(case) + windows * stage.window_floor(case, 32)


def _seconds(stage: Stage, call: Callable[[], None]) -> float:
    with without_garbage_collection():
        synchronize(stage.model.device)
        started = stage.settings.now()
        call()
        synchronize(stage.model.device)
        return stage.settings.now() - started


def scaling_curves(stage: Stage, against: str) -> list[Curve]:
    """Measure the exact and the cached step at every length or batch size, not compiled."""
    settings = stage.settings
    sizes = settings.lengths if against == "length" else settings.batches
    found: dict[str, list[tuple[Timing, float]]] = {"exact": [], "cached": []}
    for size in sizes:
        case = stage.case(length=size) if against == "length" else stage.case(batch=size)
        count = max(1, stage.count // (1 if against == "length" else size))
        pieces: dict[str, Piece] = {
            "exact": Steps(case, new_batcher(case), count),
            "cached": stage.window_steps(case, 32, count=2 * count),
        }
        floors = {"exact": stage.full_floor(case), "cached": stage.window_floor(case, 32)}
        labels = {f"{subject} {against} {size}": subject for subject in pieces}
        timings = stage.time({label: pieces[subject] for label, subject in labels.items()})
        for label, subject in labels.items():
            found[subject].append((timings[label], floors[subject]))
    return [
        Curve(
            subject=subject,
            against=against,
            sizes=tuple(sizes),
            ms=tuple(1000 * timing.median for timing, _ in points),
            low=tuple(1000 * timing.low for timing, _ in points),
            high=tuple(1000 * timing.high for timing, _ in points),
            floor_ms=tuple(floor for _, floor in points),
        )
        for subject, points in found.items()
    ]


class MemoryRows(NamedTuple):
    """The rows of memory, and their target."""

    rows: list[Row]
    target: Target


def memory_rows(stage: Stage) -> MemoryRows:
    """Measure the memory of steps, and how many positions have logits at once."""
    case, llada = stage.case(), stage.llada
    positions = case.batch * case.length
    workload = partial(Workload, kind="memory", captured=False)
    exact = Steps(case, new_batcher(case, captured=False), 1)
    cached = Steps(case, new_batcher(case, window_policy(32), captured=False), 1)
    entries = [
        Entry(workload(variant="exact"), "memory: exact step", exact),
        Entry(workload(variant="cached"), "memory: cached step", cached),
    ]
    if llada is not None:
        prompt, steps = case.prompt_tokens, case.max_new_tokens
        loop = Loop(case, lambda x: reference_loops.llada(llada, x, prompt, steps=steps), 1)
        entries.append(
            Entry(workload(program="llada"), "memory: a step of the LLaDA-style loop", loop)
        )
    rows, most = [], 0
    for one, what, piece, *_ in entries:
        stage.settings.tick(what)
        peak = peak_memory(stage.model, piece)
        most = max(most, peak.logits if one.program == OURS else 0)
        kind, size = "peak memory", peak.bytes
        if size is None:  # only CUDA reports its peak
            kind, size = "largest tensor", peak.largest
        note = f"logits of {peak.logits} of {positions} positions at once"
        rows.append(
            make_row(
                one,
                what,
                stage.time({one.name: piece}, {one.name: what})[one.name],
                length=case.length,
                peak_bytes=size,
                note=f"{note}; {kind} {size / 1e6:.0f} MB",
            )
        )
    target = Target(
        work="memory",
        target="no (batch × canvas × vocabulary) float tensor",
        found=most / positions,
        met=most < positions,
        short="" if most < positions else f"{most} of {positions} positions at once",
        note="share of the canvas whose logits exist at once",
    )
    return MemoryRows(rows, target)
