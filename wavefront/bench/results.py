"""Results of a bench: rows, fits and verdicts, and how they are kept in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.bench.timing import Timing
from wavefront.core.errors import OptionError

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One subject. Times are milliseconds a step, unless `what` says otherwise."""

    name: str
    what: str
    ms: float
    low: float  # quartiles
    high: float
    least: float
    repeats: int
    rows: int = 1
    length: int = 0  # of the canvas
    tokens_per_s: float | None = None  # all places
    visible_per_s: float | None = None  # what a reader sees
    floor_ms: float | None = None
    reference: str | None = None  # the row it is compared with
    ratio: float | None = None  # the reference's time over this one's
    published_ms: float | None = None  # of the program that a reference stands for
    strategy: str | None = None
    cache: str | None = None
    peak_bytes: int | None = None  # beyond the weights
    accuracy: dict[str, Any] | None = None  # of the same configuration, from a file of accuracies
    note: str = ""

    @property
    def of_floor(self) -> float | None:
        """The share of the floor in the time: 1 is the floor."""
        return None if self.floor_ms is None else self.floor_ms / self.ms


def row(name: str, what: str, timing: Timing, **more: Any) -> Row:
    """A row of a timing in seconds."""
    times = {k: 1000 * getattr(timing, v) for k, v in _TIMES.items()}
    return Row(name=name, what=what, repeats=timing.repeats, **times, **more)


_TIMES = {"ms": "median", "low": "low", "high": "high", "least": "least"}


class Fit(NamedTuple):
    """time = scale * size ** exponent, by least squares of the logarithms."""

    exponent: float
    error: float  # standard error; 0 of two points
    scale: float


def fit(sizes: Sequence[float], times: Sequence[float]) -> Fit:
    """The exponent of a cost; needs two sizes at least."""
    if len(sizes) < 2 or len(set(sizes)) < 2:
        raise OptionError(f"An exponent needs two sizes at least, not {list(sizes)}.")
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - middle) ** 2 for one in x)
    slope = sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - mean - slope * (a - middle)) ** 2 for a, b in zip(x, y, strict=True))
    error = math.sqrt(left / (len(x) - 2) / spread) if len(x) > 2 else 0.0
    return Fit(slope, error, math.exp(mean - slope * middle))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Cost of one subject against a size."""

    subject: str  # exact or cached
    against: str  # length or batch
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
        """Of the larger half, where the cost is of its final kind."""
        half = len(self.sizes) // 2
        sizes, ms = self.sizes[half:], self.ms[half:]
        return fit(sizes, ms) if len(set(sizes)) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A target, and what came of it."""

    work: str
    target: str
    found: float
    met: bool
    short: str = ""  # how far it is missed
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that one run found."""

    about: dict[str, Any]
    settings: dict[str, Any]
    limits: dict[str, float]
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def find(self, name: str) -> Row | None:
        return next((one for one in self.rows if one.name == name), None)

    def to_json(self) -> dict[str, Any]:
        made = {"format": FORMAT, **asdict(self)}
        for one, curve in zip(made["curves"], self.curves, strict=True):
            one["fit"], one["late"] = (
                None if found is None else found._asdict() for found in (curve.fit, curve.late)
            )
        return made


def save(report: Report, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"The results cannot be written to {str(path)!r}: {reason}.") from None


def load(path: Path) -> Report:
    """A report from its file; refused by name when it is none."""
    try:
        values = json.loads(path.read_text())
        if values["format"] != FORMAT:
            raise OptionError(
                f"{path} is of format {values['format']!r}, and this version reads {FORMAT}; "
                "run the bench again."
            )
        parts = {"rows": Row, "curves": Curve, "verdicts": Verdict}
        made = {
            name: tuple(_one(kind, entry) for entry in values[name]) for name, kind in parts.items()
        }
        return Report(
            about=values["about"],
            settings=values["settings"],
            limits=values["limits"],
            notes=tuple(values["notes"]),
            **made,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"{str(path)!r} cannot be read: {reason}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise OptionError(
            f"{str(path)!r} is no result of `wavefront bench` ({error}); give its --out file."
        ) from None


def _one(kind: Any, entry: dict[str, Any]) -> Any:
    known = {one.name for one in fields(kind)}
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k in known}
    return kind(**lists)
