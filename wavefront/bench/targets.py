"""Verdicts: the targets, and whether the rows of a run reach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wavefront.bench.results import Row, Verdict


def verdicts(rows: Sequence[Row], *, cuda: bool) -> list[Verdict]:
    """Every target that the rows say something about; those of steps are targets on a GPU."""
    named = {one.name: one for one in rows}
    made = [*_references(rows), *_texts(named)]
    return [*_steps(named), *_batch(named), *_overhead(named), *made] if cuda else made


def _steps(named: dict[str, Row]) -> list[Verdict]:
    made = []
    exact = _quickest(named, "exact-compiled", "exact")
    if exact and exact.of_floor:
        share = 100 * exact.of_floor
        made.append(least("exact step", "≥ 80 % of its floor", share, 80, exact))
    if exact and (times := _times(exact, named)):
        made.append(least("exact step", "≥ 1.4 × the LLaDA-style loop", times, 1.4, exact))
    window = _quickest(named, "cached-32-compiled", "cached-16", "cached-32", "cached-64")
    if window and window.floor_ms:
        over = window.ms / window.floor_ms
        made.append(most("cached step", "≤ 1.3 × its floor", over, 1.3, window))
    if window and (times := _times(window, named)):
        made.append(least("cached step", "≥ 7 × the dual-cache loop", times, 7, window))
    whole = _quickest(named, "end-to-end", "end-to-end-compiled")
    if whole and whole.ratio:
        made.append(least("end to end", "≥ 6 × the LLaDA-style loop", whole.ratio, 6, whole))
    return made


def _times(step: Row, named: dict[str, Row]) -> float | None:
    """How often the step goes into one of its loop, as the loop ran here or as it was published,
    whichever is less: that it waits for a slow host is no merit of ours.
    """
    loop = named.get(step.reference or "")
    if loop is None or loop.published_ms is None:
        return step.ratio
    return min(loop.ms, loop.published_ms) / step.ms


def least(work: str, target: str, found: float, goal: float, of: Row | None = None) -> Verdict:
    """A number that should not be smaller."""
    short = "" if found >= goal else f"{100 * (1 - found / goal):.0f} % short"
    return Verdict(
        work=work, target=target, found=found, met=found >= goal, short=short, note=_of(of)
    )


def most(work: str, target: str, found: float, goal: float, of: Row | None = None) -> Verdict:
    """A number that should not be larger."""
    short = "" if found <= goal else f"{100 * (found / goal - 1):.0f} % over"
    return Verdict(
        work=work, target=target, found=found, met=found <= goal, short=short, note=_of(of)
    )


def _of(of: Row | None) -> str:
    return of.name if of else ""


def _quickest(named: dict[str, Row], *names: str) -> Row | None:
    return min((named[n] for n in names if n in named), key=lambda one: one.ms, default=None)


def _references(rows: Sequence[Row]) -> list[Verdict]:
    """A reference loop is trusted when it is as fast as the program it stands for."""
    made = []
    for one in rows:
        if one.published_ms:
            off = 100 * abs(one.ms / one.published_ms - 1)
            target = f"within 10 % of the published {one.published_ms} ms"
            made.append(most(f"{one.what}, off by %", target, off, 10, one))
    return made


def _batch(named: dict[str, Row]) -> list[Verdict]:
    one = _quickest(named, "batch-1", "batch-1-compiled")
    many = _quickest(named, "batch-8", "batch-8-compiled")
    if not one or not many or not one.tokens_per_s or not many.tokens_per_s:
        return []
    gain = many.tokens_per_s / one.tokens_per_s
    return [least("batch 8, cached", "≥ 4 × the tokens/s of batch 1", gain, 4, many)]


def pairs(named: Mapping[str, Row]) -> list[tuple[Row, Row]]:
    """A step and its forward alone: of each kind the compiled ones, where they were measured."""
    kinds = (
        (("exact-compiled", "exact-compiled-forward"), ("exact", "exact-forward")),
        (("cached-32-compiled", "cached-32-compiled-forward"), ("cached-32", "cached-forward")),
    )
    found = [[pair for pair in kind if set(pair) <= set(named)] for kind in kinds]
    return [(named[kind[0][0]], named[kind[0][1]]) for kind in found if kind]


def _overhead(named: dict[str, Row]) -> list[Verdict]:
    target = "≤ 1 % of the forward"
    return [
        most(f"strategy in a step, {step.name}", target, overhead(step, alone), 1, step)
        for step, alone in pairs(named)
    ]


def overhead(step: Row, alone: Row) -> float:
    """What a step takes beyond its forward, in % of that."""
    return 100 * (step.ms - alone.ms) / alone.ms


def _texts(named: dict[str, Row]) -> list[Verdict]:
    exact = [named[n] for n in ("text-standard-stop", "text-block-stop") if n in named]
    waves = [named[n] for n in ("text-wave-stop", "text-wave-defer") if n in named]
    stored = [
        named[n]
        for n in ("text-cached-stop", "text-cached-defer", "text-narrow-defer")
        if n in named
    ]
    loop = "the LLaDA-style loop"
    made: list[Verdict] = []
    for one in (*exact, *waves):
        made.append(least("whole answer, exact", f"≥ 1.5 × {loop}", one.ratio or 0.0, 1.5, one))
    for one in stored:
        made.append(least("whole answer, cached wave", f"≥ 4 × {loop}", one.ratio or 0.0, 4, one))
    return made
