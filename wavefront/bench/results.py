"""Results of a bench: typed rows, curves and targets, and the file that holds them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.bench.timing import Timing
from wavefront.core.errors import OptionError
from wavefront.storage.read_file import MIB, read_json
from wavefront.storage.write_file import write_text

FORMAT = 2
FILE_LIMIT = 256 * MIB  # bytes of a file with results
OURS = "wavefront"
DEFAULT = "default"  # the variant of rows without options, as a user decodes first
RANDOM = "random"  # of block steps whose positions hold different tokens


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a row measures. These fields identify the row; its name is only a label."""

    kind: str  # the group of rows, as in `--only`, such as exact, cached, blocks or end-to-end
    # "step", "forward", "cycle" (a refresh interval), "decode", "answer", "load", "warm-up" or
    # "start"
    work: str = "step"
    program: str = OURS  # or the reference loop: "llada", "llada-block", "dual" or "published"
    window: int | None = None  # positions that a cached step computes; None: the whole canvas
    batch: int = 1
    compiled: bool = False
    captured: bool = True  # on CUDA, steps of wavefront run in a CUDA graph
    variant: str = ""  # which of the decodes of a kind, such as "wave-defer"

    @property
    def name(self) -> str:
        """A label for profiles and notes, such as "cached-32-compiled-forward"."""
        ours = self.program == OURS
        parts = [
            self.kind if ours or self.kind not in ("exact", "cached") else "",
            "" if ours else self.program,
            str(self.window) if ours and self.kind == "cached" else "",
            str(self.batch) if self.kind in ("batch", "blocks", "strategies") else "",
            self.variant,
            "eager" if self.kind == "exact" and not self.captured else "",
            "compiled" if self.compiled else "",
            "cached" if self.kind == "quantized" and self.window else "",
            self.work if self.work in ("forward", "cycle", "load", "warm-up") else "",
        ]
        return "-".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Row(Workload):
    """The measurement of a workload, in milliseconds per step, decode or answer."""

    what: str  # the description in the table
    ms: float
    low: float  # quartiles
    high: float
    least: float
    repeats: int
    length: int = 0  # of the canvas
    tokens_per_s: float | None = None  # all positions
    visible_per_s: float | None = None  # tokens before the stop token
    floor_ms: float | None = None
    experts: float | None = None  # different experts that a layer used in a step, by count
    reference: str | None = None  # the program it is compared with, of the same kind and work
    ratio: float | None = None  # the reference's time over this one's
    published_ms: float | None = None  # the published time of a reference loop
    strategy: str | None = None
    cache: str | None = None
    peak_bytes: int | None = None  # beyond the weights; of `load`, with them
    accuracy: dict[str, Any] | None = None  # of the same configuration, from a file of accuracies
    note: str = ""

    @property
    def quantized(self) -> str | None:
        """How the weights are quantised; None: not."""
        return self.variant if self.kind == "quantized" and self.variant != "none" else None

    @property
    def of_floor(self) -> float | None:
        """The floor as a share of the time: 1 means that the row reaches its floor."""
        return None if self.floor_ms is None else self.floor_ms / self.ms


def make_row(workload: Workload, what: str, timing: Timing, **more: Any) -> Row:
    """Return the row of a workload and its timing in seconds."""
    times = {name: 1000 * getattr(timing, source) for name, source in _TIMES.items()}
    return Row(**asdict(workload), what=what, repeats=timing.repeats, **times, **more)


_TIMES = {"ms": "median", "low": "low", "high": "high", "least": "least"}


def matching(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows whose fields have these values."""
    return [
        row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())
    ]


def fastest(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """Return the fastest of the rows whose fields have these values; None if there is none."""
    return min(matching(rows, **wanted), key=lambda row: row.ms, default=None)


class Fit(NamedTuple):
    """time = scale * size ** exponent, by least squares of the logarithms."""

    exponent: float
    error: float  # standard error; 0 for two points
    scale: float


def fit(sizes: Sequence[float], times: Sequence[float]) -> Fit:
    """Fit the exponent of a cost. At least two different sizes are needed."""
    if len(sizes) < 2 or len(set(sizes)) < 2:
        raise OptionError(f"An exponent needs at least two sizes, not {list(sizes)}.")
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - middle) ** 2 for one in x)
    slope = sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - mean - slope * (a - middle)) ** 2 for a, b in zip(x, y, strict=True))
    error = math.sqrt(left / (len(x) - 2) / spread) if len(x) > 2 else 0.0
    return Fit(slope, error, math.exp(mean - slope * middle))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The cost of a step against a size."""

    subject: str  # "exact" or "cached"
    against: str  # "length" or "batch"
    sizes: tuple[int, ...]
    ms: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    floor_ms: tuple[float, ...]

    @property
    def fit(self) -> Fit | None:
        return fit(self.sizes, self.ms) if len(set(self.sizes)) > 1 else None

    @property
    def late(self) -> Fit | None:
        """The fit of the larger half of the sizes, where constant costs matter least."""
        half = len(self.sizes) // 2
        sizes, ms = self.sizes[half:], self.ms[half:]
        return fit(sizes, ms) if len(set(sizes)) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target and the measured value."""

    work: str
    target: str
    found: float
    met: bool
    short: str = ""  # by how much it is missed
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of one run."""

    about: dict[str, Any]
    settings: dict[str, Any]
    limits: dict[str, float]
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...] = ()
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = field(default=())
    complete: tuple[str, ...] = ()  # the groups of rows that were measured to their end

    @property
    def missing(self) -> tuple[str, ...]:
        """The groups of rows that an interrupted run has not measured."""
        return tuple(name for name in self.settings["only"] if name not in self.complete)

    def find(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def to_json(self) -> dict[str, Any]:
        values = {"format": FORMAT, **asdict(self)}
        for entry, row in zip(values["rows"], self.rows, strict=True):
            entry["name"] = row.name
        for entry, curve in zip(values["curves"], self.curves, strict=True):
            entry["fit"], entry["late"] = (
                None if found is None else found._asdict() for found in (curve.fit, curve.late)
            )
        return values


def save(report: Report, path: Path) -> None:
    """Write a report as JSON."""
    save_json(report.to_json(), path)


def save_json(values: Mapping[str, Any], path: Path) -> None:
    """Write JSON values to a file, whose directory is made if necessary."""
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, error=OptionError)


def load(path: Path) -> Report:
    """Read a report from its file. Raises `OptionError` with the reason if it is not one."""
    try:
        values = read_json(path, limit=FILE_LIMIT, error=OptionError)
        if values["format"] != FORMAT:
            raise OptionError(
                f"{path} has format {values['format']!r}, but this version reads {FORMAT}; run the "
                "bench again."
            )
        kinds = {"rows": Row, "curves": Curve, "targets": Target}
        parts = {
            name: tuple(_from_json(kind, entry) for entry in values[name])
            for name, kind in kinds.items()
        }
        return Report(
            about=values["about"],
            settings=values["settings"],
            limits=values["limits"],
            notes=tuple(values["notes"]),
            # Older files were written only at the end of a run.
            complete=tuple(values.get("complete", values["settings"]["only"])),
            **parts,
        )
    except (KeyError, TypeError) as error:
        raise OptionError(
            f"{str(path)!r} is not a result of `wavefront bench` ({error}); give its --out file."
        ) from None


def _from_json(kind: Any, entry: dict[str, Any]) -> Any:
    known = {one.name for one in fields(kind)}
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k in known}
    return kind(**lists)
