"""Run a bench: measure the groups of rows one after the other, and build the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wavefront.bench import machine
from wavefront.bench.block_rows import block_rows, prefix_rows
from wavefront.bench.end_to_end import decode_rows, memory_rows, scaling_curves
from wavefront.bench.results import FILE_LIMIT, Curve, Report, Row, Target
from wavefront.bench.settings import Settings
from wavefront.bench.step_rows import (
    Stage,
    batch_rows,
    cached_rows,
    exact_rows,
    quantized_rows,
    strategy_rows,
)
from wavefront.bench.targets import overhead, steps_and_forwards, targets
from wavefront.bench.text_decodes import decodes, text_rows
from wavefront.core import spec
from wavefront.core.errors import OptionError, SpecError
from wavefront.storage.read_file import read_json

WARM_UP = 2
PIECES = {
    "exact": 5,
    "cached": 6,
    "batch": 4,
    "quantized": 6,
    "strategies": 6,
    "memory": 3,
    "prefix": 4,
}
# In addition, with `compile`.
COMPILED_PIECES = {"exact": 2, "cached": 2, "batch": 4, "quantized": 6}


def ticks(settings: Settings) -> int:
    """Return about how often `tick` will be called, for a progress bar."""
    rounds = settings.repeats + WARM_UP
    more = COMPILED_PIECES if settings.compile else {}
    total = sum(rounds * (PIECES.get(n, 0) + more.get(n, 0)) for n in settings.only)
    total += 2 * rounds * len(settings.lengths) * ("lengths" in settings.only)
    total += 2 * rounds * len(settings.batches) * ("batches" in settings.only)
    of_batch = 1 + settings.compile + settings.cuda
    total += rounds * (1 + of_batch * len(settings.batches)) * ("blocks" in settings.only)
    total += (7 if settings.compile else 4) * ("end-to-end" in settings.only)
    items = 1 if settings.quick else settings.items
    return total + items * len(decodes(quick=settings.quick)) * ("text" in settings.only)


@torch.no_grad()
def run(settings: Settings, *, accuracy: Path | None = None) -> Report:
    """Measure everything that the settings select.

    `accuracy` is a file of accuracies of the same configurations, which are added to the rows.
    """
    known = _read_accuracies(accuracy) if accuracy else {}
    device, dtype = settings.model.device, settings.model.dtype
    about = machine.about(device, dtype)
    settings.tick("limits")
    repeats = 5 if settings.quick else 15
    limits = machine.measure_limits(device, dtype, repeats=repeats, now=settings.now)
    stage = Stage(settings, limits)
    rows: list[Row] = []
    more: list[Target] = []
    curves: list[Curve] = []
    notes: list[str] = []
    groups = {
        "exact": exact_rows,
        "cached": cached_rows,
        "batch": batch_rows,
        "quantized": quantized_rows,
        "strategies": strategy_rows,
        "blocks": block_rows,
        "prefix": prefix_rows,
    }
    for name, measure in (groups | {"end-to-end": decode_rows}).items():
        if name in settings.only:
            rows += measure(stage)
    if "memory" in settings.only:
        memory = memory_rows(stage)
        rows += memory.rows
        more.append(memory.target)
    for name, against in (("lengths", "length"), ("batches", "batch")):
        if name in settings.only:
            curves += scaling_curves(stage, against)
    if "text" in settings.only:
        texts = text_rows(stage)
        rows += texts.rows
        notes += texts.notes
    # The canvas of a quick run is hardly longer than an answer, so there is little to save.
    counted = [row for row in rows if not (settings.quick and row.kind == "text")]
    return Report(
        about=about,
        settings=settings.as_json(),
        limits={"flops": limits.flops, "bandwidth": limits.bandwidth},
        rows=_with_accuracies(known, rows),
        curves=tuple(curves),
        targets=(
            *targets(counted, cuda=settings.cuda, published=settings.as_published),
            *more,
        ),
        notes=(*notes, *_overhead_notes(rows)),
    )


def _overhead_notes(rows: Sequence[Row]) -> list[str]:
    return [
        f"Outside its forward pass, the {step.name} step adds {overhead(step, alone):.1f} %."
        for step, alone in steps_and_forwards(rows)
    ]


def add_accuracies(report: Report, accuracy: Path) -> Report:
    """Return a report with the accuracies of its configurations, from a file."""
    return replace(report, rows=_with_accuracies(_read_accuracies(accuracy), report.rows))


def _with_accuracies(known: dict[Any, dict[str, Any]], rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(replace(row, accuracy=known.get(_key(row.strategy, row.cache))) for row in rows)


def _read_accuracies(path: Path) -> dict[Any, dict[str, Any]]:
    """Read accuracies by strategy and cache, as `runs/cache_table.py grade --json` writes them."""
    try:
        entries = read_json(path, limit=FILE_LIMIT, error=OptionError)["entries"]
        return {_key(entry["strategy"], entry["cache"]): entry for entry in entries}
    except (KeyError, TypeError, SpecError) as error:
        raise OptionError(
            f"{str(path)!r} has no accuracies ({error}); create it with runs/cache_table.py grade."
        ) from None


def _key(strategy: str | None, cache: str | None) -> tuple[str, str] | None:
    """Return a key that is the same for every spelling of a configuration."""
    if strategy is None:
        return None
    resolved = repr(spec.resolve(strategy, "strategies"))
    return resolved, "" if cache is None else repr(spec.resolve(cache, "caches"))
