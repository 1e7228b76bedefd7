"""Run a bench: measure the groups of rows one after the other, and build the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wavefront.bench import machine
from wavefront.bench.block_rows import block_rows, prefix_rows
from wavefront.bench.default_rows import default_rows
from wavefront.bench.end_to_end import decode_rows, memory_rows, scaling_curves
from wavefront.bench.results import FILE_LIMIT, Curve, Report, Row, Target
from wavefront.bench.settings import Settings
from wavefront.bench.start_rows import start_rows
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
    "default": 6,
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
    turns = len(settings.batches) + (settings.model.config.experts is not None)
    total += rounds * (2 + of_batch * turns) * ("blocks" in settings.only)
    total += (7 if settings.compile else 4) * ("end-to-end" in settings.only)
    items = 1 if settings.quick else settings.items
    return total + items * len(decodes(quick=settings.quick)) * ("text" in settings.only)


class GroupResult(NamedTuple):
    """What the measurement of a group of rows found."""

    rows: Sequence[Row] = ()
    targets: Sequence[Target] = ()
    curves: Sequence[Curve] = ()
    notes: Sequence[str] = ()


@torch.no_grad()
def run(
    settings: Settings,
    *,
    accuracy: Path | None = None,
    save: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Measure everything that the settings select.

    Args:
        settings: The settings.
        accuracy: A file of accuracies of the same configurations, which are added to the rows.
        save: Called with the report so far after each group of rows.
    """
    known = _read_accuracies(accuracy) if accuracy else {}
    device, dtype = settings.model.device, settings.model.dtype
    about = machine.about(device, dtype)
    settings.tick("limits")
    repeats = 5 if settings.quick else 15
    limits = machine.measure_limits(device, dtype, repeats=repeats, now=settings.now)
    stage = Stage(settings, limits)
    found: dict[str, GroupResult] = {}

    def report() -> Report:
        rows = [row for group in found.values() for row in group.rows]
        # The canvas of a quick run is hardly longer than an answer, so there is little to save.
        counted = [row for row in rows if not (settings.quick and row.kind == "text")]
        return Report(
            about=about,
            settings=settings.as_json(),
            limits={"flops": limits.flops, "bandwidth": limits.bandwidth},
            rows=_with_accuracies(known, rows),
            curves=tuple(curve for group in found.values() for curve in group.curves),
            targets=(
                *targets(counted, cuda=settings.cuda, published=settings.as_published),
                *(target for group in found.values() for target in group.targets),
            ),
            notes=(
                *(note for group in found.values() for note in group.notes),
                *_overhead_notes(rows, quick=settings.quick),
            ),
            complete=tuple(found),
        )

    for name, measure in GROUPS.items():
        if name in settings.only:
            found[name] = measure(stage)
            save(report())
    return report()


def _only_rows(measure: Callable[[Stage], list[Row]]) -> Callable[[Stage], GroupResult]:
    return lambda stage: GroupResult(rows=measure(stage))


def _memory(stage: Stage) -> GroupResult:
    found = memory_rows(stage)
    return GroupResult(rows=found.rows, targets=[found.target])


def _curves(against: str) -> Callable[[Stage], GroupResult]:
    return lambda stage: GroupResult(curves=scaling_curves(stage, against))


def _text(stage: Stage) -> GroupResult:
    found = text_rows(stage)
    return GroupResult(rows=found.rows, notes=found.notes)


# How to measure each group of rows, in this order.
GROUPS: dict[str, Callable[[Stage], GroupResult]] = {
    "exact": _only_rows(exact_rows),
    "cached": _only_rows(cached_rows),
    "default": _only_rows(default_rows),
    "batch": _only_rows(batch_rows),
    "quantized": _only_rows(quantized_rows),
    "strategies": _only_rows(strategy_rows),
    "blocks": _only_rows(block_rows),
    "prefix": _only_rows(prefix_rows),
    "end-to-end": _only_rows(decode_rows),
    "memory": _memory,
    "lengths": _curves("length"),
    "batches": _curves("batch"),
    "text": _text,
    "start": _only_rows(start_rows),
}


def _overhead_notes(rows: Sequence[Row], *, quick: bool) -> list[str]:
    """Say what a step costs beyond its forward pass; a quick run only if it can tell."""
    return [
        f"{step.what}: {overhead(step, alone):.1f} % more time than its forward pass alone."
        for step, alone in steps_and_forwards(rows)
        if not quick or step.low > alone.high
    ]


def add_accuracies(report: Report, accuracy: Path) -> Report:
    """Return a report with the accuracies of its configurations, from a file."""
    return replace(report, rows=_with_accuracies(_read_accuracies(accuracy), report.rows))


def _with_accuracies(known: dict[Any, dict[str, Any]], rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(
        replace(row, accuracy=known.get(_key(row.strategy, row.cache, row.quantized)))
        for row in rows
    )


def _read_accuracies(path: Path) -> dict[Any, dict[str, Any]]:
    """Read accuracies by configuration, as `runs/cache_table.py grade --json` writes them.

    An entry is of unquantised weights, unless it has a field `quantize`.
    """
    try:
        entries = read_json(path, limit=FILE_LIMIT, error=OptionError)["entries"]
        return {
            _key(entry["strategy"], entry["cache"], entry.get("quantize")): entry
            for entry in entries
        }
    except (KeyError, TypeError, SpecError) as error:
        raise OptionError(
            f"{str(path)!r} has no accuracies ({error}); create it with runs/cache_table.py grade."
        ) from None


def _key(
    strategy: str | None, cache: str | None, quantize: str | None
) -> tuple[str, str, str] | None:
    """Return a key that is the same for every spelling of a configuration."""
    if strategy is None:
        return None
    resolved = repr(spec.resolve(strategy, "strategies"))
    return resolved, "" if cache is None else repr(spec.resolve(cache, "caches")), quantize or ""
