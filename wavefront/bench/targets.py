"""Targets: the speed that we want, and whether the rows of a run reach it."""

from __future__ import annotations

from collections.abc import Sequence

from wavefront.bench.results import OURS, Row, Target, fastest, matching
from wavefront.bench.text_decodes import CASCADE

LOOP = "the LLaDA-style loop"


def targets(rows: Sequence[Row], *, cuda: bool) -> list[Target]:
    """Return every target that the rows measure; the targets of steps hold for CUDA only."""
    found = [*_references(rows), *_answers(rows)]
    return [*_steps(rows), *_batch(rows), *_overhead(rows), *found] if cuda else found


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
    decode = fastest(rows, kind="end-to-end", program=OURS)
    if decode and decode.ratio:
        found.append(at_least("end to end", f"≥ 6 × {LOOP}", decode.ratio, goal=6, row=decode))
    return found


def _speedup(step: Row, rows: Sequence[Row]) -> float | None:
    """Return how much faster a step is than its reference loop, measured or published.

    The faster of the two counts, so that a slow host, for which the loop waits, does not help us.
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


def _batch(rows: Sequence[Row]) -> list[Target]:
    one = fastest(rows, kind="batch", batch=1)
    many = fastest(rows, kind="batch", batch=8)
    if not one or not many or not one.tokens_per_s or not many.tokens_per_s:
        return []
    gain = many.tokens_per_s / one.tokens_per_s
    target = "≥ 4 × the tokens/s of batch 1"
    return [at_least("batch 8, cached", target, gain, goal=4, row=many)]


def steps_and_forwards(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each kind of step with its forward pass alone; the compiled ones if measured."""
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
    """Return what a step takes beyond its forward pass, in % of the forward pass."""
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
