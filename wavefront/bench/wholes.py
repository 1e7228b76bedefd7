"""Wholes: a decode from end to end, cost against length and batch, and memory."""

from __future__ import annotations

from typing import Any

from wavefront.bench import loops
from wavefront.bench.clock import Piece, settle, summary
from wavefront.bench.memory import peak
from wavefront.bench.results import Curve, Row, Verdict, row
from wavefront.bench.steps import REFRESH, Stage, policy
from wavefront.bench.subjects import Case, Loop, Steps, cached, exact
from wavefront.decoding import Decoding


def end_to_end(stage: Stage) -> list[Row]:
    """All places, T = N, a window of 32 refreshed every 32 steps, beside the LLaDA-style loop."""
    settings, case, llada = stage.settings, stage.case(), stage.llada
    wave = policy(32, REFRESH)
    run = cached(case, wave)
    repeats = 1 if settings.quick else 3

    def ours() -> None:
        run.restart()
        Decoding(stage.model, case.canvas(), case.plan, run=run).drain()

    def theirs() -> None:
        assert llada is not None
        canvas = case.canvas().tokens
        for _ in loops.llada(llada, canvas, case.given, steps=case.places):
            pass

    ours()  # captures, and warms up
    spent: dict[str, list[float]] = {"end-to-end": [], "end-to-end-llada": []}
    for number in range(repeats):
        settings.tick("end-to-end")
        spent["end-to-end"].append(_seconds(stage, ours))
        if llada is not None and not settings.quick and number == 0:
            settings.tick("end-to-end-llada")
            spent["end-to-end-llada"].append(_seconds(stage, theirs))
    note = ""
    if llada is not None and settings.quick:
        given, steps = case.given, case.places
        piece = Loop(case, lambda x: loops.llada(llada, x, given, steps=steps), stage.count)
        each = stage.time({"end-to-end-llada": piece})["end-to-end-llada"].median
        spent["end-to-end-llada"].append(each * steps)
        note = "a few of its steps, times all"
    base = spent["end-to-end-llada"]
    shared: dict[str, Any] = {"length": case.length}
    rows = [
        row(
            "end-to-end",
            f"whole decode, {case.places} places, refresh {REFRESH}",
            summary(spent["end-to-end"]),
            tokens_per_s=case.places / summary(spent["end-to-end"]).median,
            floor_ms=_whole_floor(stage, case),
            reference="end-to-end-llada" if base else None,
            ratio=base[0] / summary(spent["end-to-end"]).median if base else None,
            schedule=case.schedule,
            cache=repr(wave),
            **shared,
        )
    ]
    if base:
        what = f"LLaDA-style loop, whole decode, {case.places} places"
        rate = case.places / base[0]
        made = row("end-to-end-llada", what, summary(base), tokens_per_s=rate, note=note, **shared)
        rows.append(made)
    return rows


def _whole_floor(stage: Stage, case: Case) -> float:
    full = -(-case.places // REFRESH)
    return full * stage.full_floor(case) + (case.places - full) * stage.window_floor(case, 32)


def _seconds(stage: Stage, call: Any) -> float:
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
        pieces["memory-llada"] = Loop(case, lambda x: loops.llada(llada, x, given, steps=steps), 1)
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
