"""Targets: the speed that we want, and whether the rows of a run reach it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavefront.bench.results import DEFAULT, OURS, RANDOM, Row, Target, fastest, matching
from wavefront.bench.text_decodes import CASCADE

LOOP = "the LLaDA-style loop"


def targets(rows: Sequence[Row], *, cuda: bool, published: bool = False) -> list[Target]:
    """Return every target that the rows measure; the targets of steps apply only to CUDA.

    Args:
        rows: The rows.
        cuda: Whether they were measured on CUDA.
        published: Whether machine, model and sizes are those of the published times; only then
            do targets in milliseconds, tokens per second and bytes apply.
    """
    found = [*_references(rows), *_answers(rows)]
    if not cuda:
        return found
    return [
        *_steps(rows),
        *_defaults(rows),
        *_batch(rows, published=published),
        *_quantized(rows, published=published),
        *_strategies(rows),
        *_overhead(rows),
        *found,
    ]


def at_least(
    work: str, target: str, found: float, *, goal: float, row: Row | None = None
) -> Target:
    """Return a target for a number that should not be smaller than the goal."""
    short = "" if found >= goal else f"{100 * (1 - found / goal):.0f} % short"
    return _target(work, target, found, short=short, row=row)


def at_most(work: str, target: str, found: float, *, goal: float, row: Row | None = None) -> Target:
    """Return a target for a number that should not be larger than the goal."""
    short = "" if found <= goal else f"{100 * (found / goal - 1):.0f} % over"
    return _target(work, target, found, short=short, row=row)


def _target(work: str, target: str, found: float, *, short: str, row: Row | None) -> Target:
    note = row.name if row else ""
    return Target(work=work, target=target, found=found, met=not short, short=short, note=note)


def _steps(rows: Sequence[Row]) -> list[Target]:
    found = []
    exact = fastest(rows, kind="exact", work="step", program=OURS, captured=True)
    if exact and exact.of_floor:
        share = 100 * exact.of_floor
        found.append(at_least("exact step", "≥ 80 % of its floor", share, goal=80, row=exact))
    if exact and (times := _speedup(exact, rows)):
        found.append(at_least("exact step", f"≥ 1.4 × {LOOP}", times, goal=1.4, row=exact))
    window = fastest(rows, kind="cached", work="step", program=OURS)
    if window and window.floor_ms:
        over = window.ms / window.floor_ms
        found.append(at_most("cached step", "≤ 1.3 × its floor", over, goal=1.3, row=window))
    if window and (times := _speedup(window, rows)):
        target = "≥ 7 × the dual-cache loop"
        found.append(at_least("cached step", target, times, goal=7, row=window))
    for work in ("block step", "block step, random tokens"):
        mixed = [row for row in rows if row.variant.startswith(RANDOM) == work.endswith("tokens")]
        block = fastest(mixed, kind="blocks", program=OURS, batch=1)
        if block and block.floor_ms:
            over = block.ms / block.floor_ms
            found.append(at_most(work, "≤ 1.4 × its floor", over, goal=1.4, row=block))
        if block and block.ratio:
            target = "≥ 3 × the published loop"
            found.append(at_least(work, target, block.ratio, goal=3, row=block))
    decode = fastest(rows, kind="end-to-end", program=OURS)
    if decode and decode.ratio:
        found.append(at_least("end to end", f"≥ 6 × {LOOP}", decode.ratio, goal=6, row=decode))
    return found


def _speedup(step: Row, rows: Sequence[Row]) -> float | None:
    """Return how much faster a step is than its reference loop, measured or published.

    The faster of the two counts, so a slow host, which slows the loop, does not improve our ratio.
    """
    loops = matching(rows, kind=step.kind, work=step.work, program=step.reference)
    if not loops or loops[0].published_ms is None:
        return step.ratio
    return min(loops[0].ms, loops[0].published_ms) / step.ms


def _references(rows: Sequence[Row]) -> list[Target]:
    """Check that every reference loop is as fast as the published program."""
    found = []
    for row in rows:
        if row.published_ms:
            off = 100 * abs(row.ms / row.published_ms - 1)
            target = f"within 10 % of the published {row.published_ms} ms"
            found.append(at_most(f"{row.what}, off by %", target, off, goal=10, row=row))
    return found


def _defaults(rows: Sequence[Row]) -> list[Target]:
    """Compare rows without options with the captured rows of the same work."""
    found = []
    for kind, work in (("exact", "step"), ("cached", "cycle")):
        same: dict[str, Any] = {"kind": kind, "work": work, "program": OURS, "compiled": False}
        usual = matching(rows, variant=DEFAULT, **same)
        captured = matching(rows, variant="", captured=True, **same)
        if usual and captured:
            over = usual[0].ms / captured[0].ms
            target = "≤ 1.05 × the captured row"
            what = f"default settings, {kind}"
            found.append(at_most(what, target, over, goal=1.05, row=usual[0]))
    for row in matching(rows, kind="default"):
        captured = matching(rows, kind="default", variant=f"{row.variant}-captured")
        what = f"no options, speed={row.variant}"
        if row.work == "warm-up":
            target = "warm-up ≤ 20 s"
            found.append(at_most(what, target, row.ms / 1000, goal=20, row=row))
        elif captured:
            over, target = row.ms / captured[0].ms, "≤ 1.05 × the captured row"
            found.append(at_most(what, target, over, goal=1.05, row=row))
    for row in matching(rows, kind="start", variant="second"):
        target, seconds = "≤ 30 s to the first token", row.ms / 1000
        found.append(at_most("second start with compilation", target, seconds, goal=30, row=row))
    return found


def _batch(rows: Sequence[Row], *, published: bool) -> list[Target]:
    found = []
    one = fastest(rows, kind="batch", batch=1)
    many = fastest(rows, kind="batch", batch=8)
    if one and many and one.tokens_per_s and many.tokens_per_s:
        gain = many.tokens_per_s / one.tokens_per_s
        target = "≥ 4 × the tokens/s of batch 1"
        found.append(at_least("batch 8, cached", target, gain, goal=4, row=many))
    if published and many:
        found.append(at_most("batch 8, cached", "≤ 7.2 ms", many.ms, goal=7.2, row=many))
    most = fastest(rows, kind="batch", batch=32)
    if published and most and most.tokens_per_s:
        rate = most.tokens_per_s
        found.append(at_least("batch 32, cached", "≥ 1,100 tokens/s", rate, goal=1100, row=most))
    return found


def _quantized(rows: Sequence[Row], *, published: bool) -> list[Target]:
    """Compare steps with quantised weights with their floors, and with unquantised ones."""
    found = []
    usual: dict[str, Any] = {"kind": "quantized", "work": "step"}
    plain = fastest(rows, variant="none", window=32, **usual)
    for kind in ("int8", "fp8"):
        step = fastest(rows, variant=kind, window=32, **usual)
        if step and step.floor_ms:
            over, work = step.ms / step.floor_ms, f"cached step, {kind}"
            found.append(at_most(work, "≤ 1.4 × its floor", over, goal=1.4, row=step))
            if plain:
                times, target = plain.ms / step.ms, "≥ 1.7 × the unquantised step"
                found.append(at_least(work, target, times, goal=1.7, row=step))
    if not published:
        return found
    for kind, window, most in (("int4", 32, 2.0), ("fp8", None, 17.0)):
        step = fastest(rows, variant=kind, window=window, **usual)
        if step:
            work = f"{'cached' if window else 'exact'} step, {kind}"
            found.append(at_most(work, f"≤ {most:g} ms", step.ms, goal=most, row=step))
    for kind, most in (("int8", 9.5), ("int4", 6.0)):
        row = fastest(rows, kind="quantized", work="load", variant=kind)
        if row and row.peak_bytes:
            peak, work = row.peak_bytes / 1e9, f"memory, {kind}, loading included"
            found.append(at_most(work, f"≤ {most:g} GB", peak, goal=most, row=row))
    return found


def _strategies(rows: Sequence[Row]) -> list[Target]:
    """Compare the wave with blocks, and an adaptive strategy with `standard`."""
    found = []
    steps = {(row.variant, row.batch): row for row in matching(rows, kind="strategies")}
    wave, block = steps.get(("wave", 1)), steps.get(("block", 1))
    if wave and block:
        off = 100 * abs(wave.ms / block.ms - 1)
        found.append(at_most("wave, off by %", "within 2 % of blocks", off, goal=2, row=wave))
    for (name, batch), row in steps.items():
        base = steps.get(("standard", batch))
        if name == "tide" and base:
            over, work = row.ms / base.ms, f"adaptive step, batch {batch}"
            found.append(at_most(work, "≤ 1.15 × standard", over, goal=1.15, row=row))
    return found


def steps_and_forwards(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each kind of step with its forward-only row; the compiled ones if measured."""
    found = []
    for kind in ("exact", "cached"):
        forwards = matching(rows, kind=kind, work="forward", program=OURS)
        for forward in sorted(forwards, key=lambda row: not row.compiled):
            same = {"compiled": forward.compiled, "captured": True, "window": forward.window}
            steps = matching(rows, kind=kind, work="step", program=OURS, **same)
            if steps:
                found.append((steps[0], forward))
                break
    return found


def _overhead(rows: Sequence[Row]) -> list[Target]:
    target = "≤ 1 % of the forward"
    return [
        at_most(f"strategy in a step, {step.name}", target, overhead(step, alone), goal=1, row=step)
        for step, alone in steps_and_forwards(rows)
    ]


def overhead(step: Row, alone: Row) -> float:
    """Return the extra time of a step over its forward pass, in % of the forward pass."""
    return 100 * (step.ms - alone.ms) / alone.ms


def _answers(rows: Sequence[Row]) -> list[Target]:
    answers = [row for row in matching(rows, kind="text", program=OURS) if row.strategy != CASCADE]
    exact, cached = "whole answer, exact", "whole answer, cached wave"
    return [
        *(
            at_least(exact, f"≥ 1.5 × {LOOP}", row.ratio or 0.0, goal=1.5, row=row)
            for row in answers
            if row.cache is None
        ),
        *(
            at_least(cached, f"≥ 4 × {LOOP}", row.ratio or 0.0, goal=4, row=row)
            for row in answers
            if row.cache is not None
        ),
    ]
