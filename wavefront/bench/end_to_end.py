"""Wholes: a decode from end to end, cost against length and batch, and memory."""

from __future__ import annotations

from typing import Any

from wavefront.bench import reference_loops
from wavefront.bench.memory import peak
from wavefront.bench.results import Curve, Row, Verdict, row
from wavefront.bench.step_rows import REFRESH, Stage, policy
from wavefront.bench.timing import Piece, settle, summary, undisturbed
from wavefront.bench.workloads import Case, Loop, Steps, cached, exact
from wavefront.engine.session import DecodeSession


def end_to_end(stage: Stage) -> list[Row]:
    """All places, T = N, a window of 32 refreshed every 32 steps, beside the LLaDA-style loop."""
    settings, case = stage.settings, stage.case()
    what = f"whole decode, {case.places} places, refresh {REFRESH}"
    ways = {"end-to-end": (what, case)}
    if settings.compile:
        ways["end-to-end-compiled"] = f"{what}, compiled", stage.case(model=stage.compiled())
    spent = {name: _ours(stage, name, one) for name, (_, one) in ways.items()}
    base, note = _theirs(stage, case)
    rows = [
        row(
            name,
            text,
            summary(spent[name]),
            tokens_per_s=case.places / summary(spent[name]).median,
            floor_ms=_whole_floor(stage, case),
            reference="end-to-end-llada" if base else None,
            ratio=base / summary(spent[name]).median if base else None,
            strategy=case.strategy,
            cache=repr(policy(32, REFRESH)),
            length=case.length,
        )
        for name, (text, _) in ways.items()
    ]
    if base:
        what, rate = f"LLaDA-style loop, whole decode, {case.places} places", case.places / base
        more: dict[str, Any] = {"tokens_per_s": rate, "note": note, "length": case.length}
        rows.append(row("end-to-end-llada", what, summary([base]), **more))
    return rows


def _ours(stage: Stage, name: str, case: Case) -> list[float]:
    """Seconds of whole decodes."""
    run = cached(case, policy(32, REFRESH))

    def whole() -> None:
        run.restart()
        DecodeSession(case.model, case.canvas(), case.plan, run=run).drain()

    whole()  # captures, and warms up
    spent = []
    for _ in range(1 if stage.settings.quick else 3):
        stage.settings.tick(name)
        spent.append(_seconds(stage, whole))
    return spent


def _theirs(stage: Stage, case: Case) -> tuple[float | None, str]:
    """Seconds of the LLaDA-style loop, and how they were found."""
    llada, given, steps = stage.llada, case.given, case.places
    if llada is None:
        return None, ""
    if stage.settings.quick:
        piece = Loop(
            case, lambda x: reference_loops.llada(llada, x, given, steps=steps), stage.count
        )
        each = stage.time({"end-to-end-llada": piece})["end-to-end-llada"].median
        return each * steps, "a few of its steps, times all"

    def whole() -> None:
        for _ in reference_loops.llada(llada, case.canvas().tokens, given, steps=steps):
            pass

    stage.settings.tick("end-to-end-llada")
    return _seconds(stage, whole), ""


def _whole_floor(stage: Stage, case: Case) -> float:
    full = -(-case.places // REFRESH)
    return full * stage.full_floor(case) + (case.places - full) * stage.window_floor(case, 32)


def _seconds(stage: Stage, call: Any) -> float:
    with undisturbed():
        settle(stage.model.device)
        began = stage.settings.now()
        call()
        settle(stage.model.device)
        return stage.settings.now() - began


def curves(stage: Stage, against: str) -> list[Curve]:
    """The exact and the cached step at every size, captured and not compiled."""
    settings = stage.settings
    sizes = settings.lengths if against == "length" else settings.batches
    found: dict[str, list[Any]] = {"exact": [], "cached": []}
    for size in sizes:
        case = stage.case(length=size) if against == "length" else stage.case(rows=size)
        count = max(1, stage.count // (1 if against == "length" else size))
        pieces: dict[str, Piece] = {
            f"exact {against} {size}": Steps(case, exact(case), case.read(), count),
            f"cached {against} {size}": stage.windowed(case, 32, count=2 * count),
        }
        floor = {"exact": stage.full_floor(case), "cached": stage.window_floor(case, 32)}
        for name, timing in stage.time(pieces).items():
            kind = name.partition(" ")[0]
            found[kind].append((timing, floor[kind]))
    return [
        Curve(
            subject=kind,
            against=against,
            sizes=tuple(sizes),
            ms=tuple(1000 * timing.median for timing, _ in made),
            low=tuple(1000 * timing.low for timing, _ in made),
            high=tuple(1000 * timing.high for timing, _ in made),
            floor_ms=tuple(floor for _, floor in made),
        )
        for kind, made in found.items()
    ]


def memory(stage: Stage) -> tuple[list[Row], list[Verdict]]:
    """Steps run as they stand, every tensor looked at: how many logits there are at once."""
    case, llada = stage.case(), stage.llada
    places = case.rows * case.length
    pieces: dict[str, Piece] = {
        "memory-exact": Steps(case, exact(case, captured=False), case.read(), 1),
        "memory-cached": Steps(
            case, cached(case, policy(32, REFRESH), captured=False), min(32, case.read()), 1
        ),
    }
    if llada is not None:
        given, steps = case.given, case.places
        pieces["memory-llada"] = Loop(
            case, lambda x: reference_loops.llada(llada, x, given, steps=steps), 1
        )
    rows, most = [], 0
    for name, piece in pieces.items():
        stage.settings.tick(name)
        found = peak(stage.model, piece)
        ours = name != "memory-llada"
        most = max(most, found.logits if ours else 0)
        timing = stage.time({name: piece})[name]
        text = f"logits of {found.logits} of {places} places at once"
        rows.append(
            row(
                name,
                f"memory: {name.partition('-')[2]} step, not captured",
                timing,
                length=case.length,
                peak_bytes=found.bytes if found.bytes is not None else found.largest,
                note=text + ("" if found.bytes is not None else "; bytes: the largest tensor"),
            )
        )
    verdict = Verdict(
        work="memory",
        target="no (batch × canvas × vocabulary) float tensor",
        found=most / places,
        met=most < places,
        short="" if most < places else f"{most} of {places} places at once",
        note="share of the canvas whose logits exist at once",
    )
    return rows, [verdict]
