"""Tables of results, and the run directory of a report (docs/traces.md).

`run.json` has the title, the configuration and the tables; figures and traces are files in the same
directory. A directory may come from anywhere, so `read` checks everything once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from wavefront.core.errors import ReportError, did_you_mean
from wavefront.results.interval import Interval
from wavefront.storage.read_file import read_bytes, read_json
from wavefront.storage.write_file import write_text

FILE, FORMAT, VERSION = "run.json", "wavefront-run", 1
LARGEST = 16 << 20  # bytes of run.json, and of each figure
DARK = "-dark"  # NAME-dark.svg is NAME.svg for dark pages
KINDS = (".svg", ".png")  # if both exist, the first is used
PNG = b"\x89PNG\r\n\x1a\n"


Cell = str | int | float | bool | None | Interval


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def records(self) -> list[dict[str, Cell]]:
        """Return every row as {column: cell}."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """Return the table as Markdown, without its title and note."""
        head = [
            "| " + " | ".join(map(cell_text, self.columns)) + " |",
            "|" + "---|" * len(self.columns),
        ]
        rows = ["| " + " | ".join(map(cell_text, row)) + " |" for row in self.rows]
        return "\n".join([*head, *rows])


def cell_text(cell: Cell) -> str:
    """Return a cell as text: numbers with three digits, intervals in brackets."""
    if isinstance(cell, Interval):
        value, low, high = interval_texts(cell)
        return f"{value} [{low}, {high}]"
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return number_text(cell)
    return " ".join(str(cell).splitlines()).replace("|", "\\|")


def interval_texts(cell: Interval) -> tuple[str, str, str]:
    """Return value, low and high with the decimals that show the width with two digits.

    Few items give a wide interval, so they show few decimals.
    """
    width = cell.high - cell.low
    if width <= 0:
        text = number_text(cell.value)
        return text, text, text
    digits = min(max(1 - math.floor(math.log10(width)), 0), 6)
    value, low, high = (fixed_text(x, digits) for x in (cell.value, cell.low, cell.high))
    return value, low, high


def fixed_text(value: float, decimals: int) -> str:
    """Format a number with this many decimals. A zero has no sign."""
    text = f"{value:.{decimals}f}"
    return text if float(text) else text.removeprefix("-")


def number_text(value: float) -> str:
    """Format a number with three digits, at most three of them decimals; integers with none."""
    size = abs(value)
    if size >= 1e7 or 0 < size < 5e-4:
        return f"{value:.3g}"
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


def finite_or_none(value: float) -> float | None:
    """Return a number for a cell; None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def to_json(value: Any) -> Any:
    """Return plain JSON data: tensors and tuples become lists, NaN becomes None."""
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, Interval):
        return to_json(vars(value))
    if isinstance(value, Mapping):
        return {str(name): to_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    return finite_or_none(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class RunFile:
    """A figure or trace file of a run directory."""

    file: str
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Run:
    """One section of a report. `read` appends the figures and traces that `run.json` omits."""

    title: str
    text: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    figures: Sequence[RunFile] = ()
    traces: Sequence[RunFile] = ()
    folder: Path = Path()


def save(run: Run, folder: str | Path) -> Path:
    """Write `run.json`. The caller writes figures and traces to the same directory."""
    made = asdict(run)
    del made["folder"]
    _checked(made, "The run")
    file = Path(folder) / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    head = {"format": FORMAT, "version": VERSION}
    text = json.dumps(head | made, indent=1, allow_nan=False) + "\n"
    write_text(file, text, error=ReportError)
    return file


def read(folder: str | Path) -> Run:
    """Read and check a run directory.

    Raises:
        ReportError: The directory is not a valid run; the message says why.
    """
    home = Path(folder)
    where = str(home / FILE)
    found = _json(home / FILE, where)
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise ReportError(f'{where} is not the file of a run: it needs "format": "{FORMAT}".')
    if (version := found.pop("version", None)) != VERSION:
        raise ReportError(f"{where} has version {version!r}, not the supported {VERSION}.")
    run = _checked(found, where)
    figures = [*run.figures, *_unlisted(home, run.figures, KINDS)]
    traces = [*run.traces, *_unlisted(home, run.traces, (".npz",))]
    for item in (*figures, *traces):
        if not (home / item.file).is_file():
            raise ReportError(f"{where} lists {item.file!r}, which is not in the directory.")
    return Run(run.title, run.text, run.configuration, run.tables, figures, traces, home)


def image(file: Path) -> tuple[str, bytes]:
    """Return a figure's media type and contents.

    Raises:
        ReportError: The file is too large or not of the kind that its name says.
    """
    data = read_bytes(file, limit=LARGEST, error=ReportError)
    if file.suffix == ".png" and data.startswith(PNG):
        return "image/png", data
    if file.suffix == ".svg" and re.search(rb"<svg[\s>]", data[:4096]):
        return "image/svg+xml", data
    raise ReportError(f"{file} is not a valid {file.suffix} figure: create it again.")


def dark_twin(file: Path) -> Path | None:
    """Return the same figure for dark pages, or None."""
    twin = file.with_name(f"{file.stem}{DARK}{file.suffix}")
    return twin if twin.is_file() else None


def _json(file: Path, where: str) -> Any:
    if not file.is_file():
        raise ReportError(
            f"{file.parent} has no {FILE} of an experiment (docs/traces.md) and no graded runs of "
            "`wavefront eval run`; `wavefront eval show` and `eval diff` print those."
        )

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not a JSON number")

    return read_json(file, limit=LARGEST, error=ReportError, parse_constant=refuse)


def _unlisted(home: Path, listed: Sequence[RunFile], kinds: tuple[str, ...]) -> list[RunFile]:
    """Return the files of these kinds that are not listed, one per stem."""
    shown = {item.file.rpartition(".")[0] for item in listed}
    files: dict[str, str] = {}
    for kind in kinds:
        for file in sorted(home.glob(f"*{kind}")):
            if not file.stem.endswith(DARK) and file.stem not in shown:
                files.setdefault(file.stem, file.name)
    return [RunFile(files[stem]) for stem in sorted(files)]


def _checked(found: Mapping[str, Any], where: str) -> Run:
    known = ("title", "text", "configuration", "tables", "figures", "traces")
    _only(found, known, where)
    title = _text(found, "title", where)
    if not title.strip():
        raise ReportError(f'{where} has no title: give it a "title".')
    configuration = found.get("configuration", {})
    if not isinstance(configuration, dict):
        raise ReportError(f'{where}: "configuration" must be an object of names and values.')
    return Run(
        title,
        _text(found, "text", where),
        configuration,
        [_table(data, f"{where}, table {n}") for n, data in _each(found, "tables", where)],
        [_item(data, f"{where}, figure {n}", KINDS) for n, data in _each(found, "figures", where)],
        [
            _item(data, f"{where}, trace {n}", (".npz",))
            for n, data in _each(found, "traces", where)
        ],
    )


def _each(found: Mapping[str, Any], name: str, where: str) -> list[tuple[int, dict[str, Any]]]:
    listed = found.get(name, [])
    if not isinstance(listed, list | tuple) or not all(isinstance(entry, dict) for entry in listed):
        raise ReportError(f'{where}: "{name}" must be a list of objects.')
    return list(enumerate(listed, 1))


def _only(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in found:
        if name not in known:
            raise ReportError(f"{where} has an unknown field {name!r}{did_you_mean(name, known)}.")


def _text(found: Mapping[str, Any], name: str, where: str) -> str:
    text = found.get(name, "")
    if not isinstance(text, str):
        raise ReportError(f'{where}: "{name}" must be a string, not {text!r}.')
    return text


def _table(found: dict[str, Any], where: str) -> Table:
    _only(found, ("title", "columns", "rows", "note"), where)
    columns, rows = found.get("columns"), found.get("rows")
    if not isinstance(columns, list | tuple) or not all(
        isinstance(column, str) for column in columns
    ):
        raise ReportError(f'{where}: "columns" must be a list of strings.')
    if not columns or not isinstance(rows, list | tuple):
        raise ReportError(f'{where} needs at least one column, and "rows", a list of lists.')
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list | tuple) or len(row) != len(columns):
            raise ReportError(f"{where}, row {number} must have {len(columns)} cells.")
    cells = [[_cell(cell, f"{where}, row {n}") for cell in row] for n, row in enumerate(rows, 1)]
    return Table(_text(found, "title", where), columns, cells, _text(found, "note", where))


def _cell(found: Any, where: str) -> Cell:
    if isinstance(found, dict):
        ends = [found.get(name) for name in ("low", "value", "high")]
        if set(found) != {"value", "low", "high"} or not all(map(_is_number, ends)):
            raise ReportError(f'{where}: an interval has the numbers "value", "low" and "high".')
        low, value, high = ends
        if not low <= value <= high:  # pyright: ignore[reportOptionalOperand]
            raise ReportError(f"{where}: {value} is not between {low} and {high}.")
        return Interval(value, low, high)  # pyright: ignore[reportArgumentType]
    if found is None or isinstance(found, str | bool) or _is_number(found):
        return found
    raise ReportError(f"{where}: a cell is a string, number, interval or null, not {found!r}.")


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -1e300 < value < 1e300  # not NaN either


def _item(found: dict[str, Any], where: str, kinds: tuple[str, ...]) -> RunFile:
    _only(found, ("file", "title", "note"), where)
    file = _text(found, "file", where)
    # A plain name: you can share a run directory unchanged, and it shows no file outside it.
    if not re.fullmatch(r"\w[^/\\:\0]*", file) or not file.endswith(kinds):
        listed = " or ".join(kinds)
        raise ReportError(f"{where}: {file!r} must name a {listed} file in the same directory.")
    return RunFile(file, _text(found, "title", where), _text(found, "note", where))
