"""Run: the groups of rows one after the other, and the report they make."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wavefront.bench import end_to_end, machine, text_decodes
from wavefront.bench.results import Curve, Report, Row, Verdict
from wavefront.bench.settings import Settings
from wavefront.bench.step_rows import Stage, batch_rows, cached_rows, exact_rows
from wavefront.bench.targets import overhead, pairs, verdicts
from wavefront.core import spec
from wavefront.core.errors import OptionError, SpecError

WARM_UP = 2
PIECES = {"exact": 5, "cached": 6, "batch": 2, "memory": 3}
COMPILED = {"exact": 2, "cached": 2, "batch": 2}  # more of them


def ticks(settings: Settings) -> int:
    """How often `tick` will be called, nearly: for a bar with the time left."""
    rounds = settings.repeats + WARM_UP
    more = COMPILED if settings.compile else {}
    total = sum(rounds * (PIECES.get(n, 0) + more.get(n, 0)) for n in settings.only)
    total += 2 * rounds * len(settings.lengths) * ("lengths" in settings.only)
    total += 2 * rounds * len(settings.batches) * ("batches" in settings.only)
    total += (7 if settings.compile else 4) * ("end-to-end" in settings.only)
    items = 1 if settings.quick else settings.items
    return total + items * (len(text_decodes.WAYS) + 2) * ("text" in settings.only)


@torch.no_grad()
def run(settings: Settings, *, accuracy: Path | None = None) -> Report:
    """Measure everything that the settings ask for."""
    known = _accuracies(accuracy) if accuracy else {}
    device, dtype = settings.model.device, settings.model.dtype
    about = machine.about(device, dtype)
    settings.tick("limits")
    few = 5 if settings.quick else 15
    limits = machine.limits(device, dtype, repeats=few, now=settings.now)
    stage = Stage(settings, limits)
    rows: list[Row] = []
    found: list[Verdict] = []
    curves: list[Curve] = []
    notes: list[str] = []
    groups = {"exact": exact_rows, "cached": cached_rows, "batch": batch_rows}
    for name, group in groups.items():
        if name in settings.only:
            rows += group(stage)
    if "end-to-end" in settings.only:
        rows += end_to_end.end_to_end(stage)
    if "memory" in settings.only:
        made, verdict = end_to_end.memory(stage)
        rows, found = rows + made, found + verdict
    for name, against in (("lengths", "length"), ("batches", "batch")):
        if name in settings.only:
            curves += end_to_end.curves(stage, against)
    if "text" in settings.only:
        made, said = text_decodes.text_rows(stage)
        rows, notes = rows + made, notes + said
    return Report(
        about=about,
        settings=settings.said(),
        limits={"flops": limits.flops, "bandwidth": limits.bandwidth},
        rows=_with(known, rows),
        curves=tuple(curves),
        verdicts=(*verdicts(rows, cuda=settings.cuda), *found),
        notes=(*notes, *_overheads(rows)),
    )


def _overheads(rows: Iterable[Row]) -> list[str]:
    named = {one.name: one for one in rows}
    return [
        f"Beyond its forward, a step of {step.name} takes {overhead(step, alone):+.1f} % of it."
        for step, alone in pairs(named)
    ]


def accurate(report: Report, accuracy: Path) -> Report:
    """A report with the accuracies of its configurations, which may be measured after it."""
    return replace(report, rows=_with(_accuracies(accuracy), report.rows))


def _with(known: dict[Any, dict[str, Any]], rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(replace(one, accuracy=known.get(_key(one.strategy, one.cache))) for one in rows)


def _accuracies(path: Path) -> dict[Any, dict[str, Any]]:
    """By strategy and cache, as `runs/cache_table.py grade --json` writes them."""
    try:
        entries = json.loads(path.read_text())["entries"]
        return {_key(one["strategy"], one["cache"]): one for one in entries}
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"{str(path)!r} cannot be read: {reason}.") from None
    except (ValueError, KeyError, TypeError, SpecError) as error:
        raise OptionError(
            f"{str(path)!r} holds no accuracies ({error}); make it with runs/cache_table.py grade."
        ) from None


def _key(strategy: str | None, cache: str | None) -> tuple[str, str] | None:
    """Two spellings of one configuration are one."""
    if strategy is None:
        return None
    made = repr(spec.resolve(strategy, "strategies"))
    return made, "" if cache is None else repr(spec.resolve(cache, "caches"))
