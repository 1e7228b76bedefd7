"""The HTML report: one page from trace files and run directories.

`make` reads the inputs and returns a standalone page with the player, the tables and figures of
every run, and the configuration. All text from files is escaped by `player.page.escape`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import ReportError
from wavefront.player.page import THEME_BUTTON, embed, escape, player_section, standalone_page
from wavefront.player.player_data import DecodeRecord, decode_record, strategy
from wavefront.player.token_text import TokenReaders
from wavefront.results import table as run_tables
from wavefront.results.table import (
    Cell,
    Interval,
    Run,
    RunFile,
    Table,
    dark_twin,
    fixed_text,
    image,
    interval_texts,
    number_text,
)
from wavefront.text.tokenizer import Tokenizer
from wavefront.traces.trace import Trace
from wavefront.traces.trace_file import load

STYLE = Path(__file__).parent / "report.css"
MAX_ROWS = 8  # rows of a trace that are shown by default
MAX_SETTING = 400  # characters shown of one setting
WHISKER_WIDTH, WHISKER_HEIGHT = 100, 14  # the drawing of an interval, in pixels
# A link of Markdown: a report is one file, so it names the file next to it that the link opens.
LINK, LINK_TEXT = re.compile(r"\[([^\[\]]+)\]\(([\w./-]+)\)"), r"\1 (<code>\2</code>)"
LONG_TEXT = 32  # characters of a cell, above which its column gets more room
LONG_SETTINGS = ("texts", "special_ids", "of")  # parts of a trace header that are not shown


class Report(NamedTuple):
    """The page, notes for its author, and a list of its contents."""

    html: str
    notes: list[str]
    decodes: int
    tables: int
    figures: int


class Source(NamedTuple):
    """One trace file."""

    file: Path
    title: str
    trace: Trace


def make(
    inputs: Sequence[str | Path | Run],
    *,
    title: str = "",
    model: str | Tokenizer | None = None,
    rows: Sequence[int] | None = None,
) -> Report:
    """Build one page from trace files and run directories; equal inputs give equal pages.

    Args:
        inputs: Trace files, run directories, and runs that are already read.
        title: The heading. Default: derived from the inputs.
        model: The model whose tokenizer reads all traces, or that tokenizer. Default: the model
            each trace names.
        rows: The rows to show of every trace. Default: the first eight.

    Raises:
        ReportError: If there is no input, a run directory is invalid, or a row does not exist.
        TraceError: If a trace file cannot be read.
    """
    if not inputs:
        raise ReportError("There is nothing to report: give trace files or run directories.")
    runs: list[Run] = []
    sources: list[Source] = []
    for one in inputs:
        if isinstance(one, Run):
            runs.append(one)
            continue
        path = Path(one)
        if path.is_dir():
            runs.append(run_tables.read(path))
            sources += [_source(path / item.file, item) for item in runs[-1].traces]
        else:
            sources.append(_source(path, RunFile(path.name)))
    readers = TokenReaders(model)
    records = _records(sources, readers, rows)
    html = _page(
        title or _title(runs, sources), runs, sources, records=records, notes=readers.notes
    )
    tables, figures = sum(len(run.tables) for run in runs), sum(len(run.figures) for run in runs)
    return Report(html, readers.notes, len(records), tables, figures)


def _source(file: Path, item: RunFile) -> Source:
    trace = load(file)
    return Source(file, item.title or strategy(trace) or file.stem, trace)


def _records(
    sources: Sequence[Source], readers: TokenReaders, rows: Sequence[int] | None
) -> list[DecodeRecord]:
    records: list[DecodeRecord] = []
    for file, title, trace in sources:
        count = len(trace.first.tokens)
        wanted = list(range(min(count, MAX_ROWS))) if rows is None else list(rows)
        if not wanted or any(not 0 <= row < count for row in wanted):
            raise ReportError(f"{file} has rows 0 to {count - 1}, not all of {wanted}.")
        if len(wanted) < count and rows is None:
            readers.notes.append(f"{file.name} has {count} rows; the first {MAX_ROWS} are shown.")
        reader = readers.reader(trace.about)
        for row in wanted:
            name = file.name if count == 1 else f"{file.name}, row {row}"
            one = trace.row(row)
            records.append(decode_record(one, reader, title=title, file=name, trim=count > 1))
    return records


def _title(runs: Sequence[Run], sources: Sequence[Source]) -> str:
    if runs:
        return runs[0].title if len(runs) == 1 else f"{runs[0].title}, and {len(runs) - 1} more"
    kinds = list(dict.fromkeys(source.title.partition("(")[0] for source in sources))
    if len(kinds) == 1:
        return f"How {kinds[0]} decodes"
    return f"{', '.join(kinds[:-1])} and {kinds[-1]}, step by step"


# The page.


def _page(
    title: str,
    runs: Sequence[Run],
    sources: Sequence[Source],
    *,
    records: Sequence[DecodeRecord],
    notes: Sequence[str],
) -> str:
    named_runs = [(f"run-{n}", run) for n, run in enumerate(runs, 1)]
    links = [("player", "Player")] if records else []
    links += [(name, run.title) for name, run in named_runs]
    links += [("configuration", "Configuration")] if sources else []
    header = [
        f'<div class="over"><span>wavefront report</span>{THEME_BUTTON}</div>',
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(lead(records, sources))}</p>',
        _links(links),
        *(f'<p class="warning">{escape(note)}</p>' for note in notes),
    ]
    main = [player_section(answers(records)), overview(records)] if records else []
    main += [run_section(run, name, heading=run.title != title) for name, run in named_runs]
    main.append(_configuration(sources))
    return standalone_page(
        title=title,
        header="\n".join(header),
        main="\n".join(main),
        data=embed({"options": {"sides": 2}, "decodes": [one.to_json() for one in records]}),
        style=STYLE.read_text(encoding="utf-8"),
    )


def lead(records: Sequence[DecodeRecord], sources: Sequence[Source]) -> str:
    """Return the sentence under the title."""
    if not records:
        return ""
    models = dict.fromkeys(str(source.trace.about.get("model") or "") for source in sources)
    named = [model for model in models if model]
    by = f" by {', '.join(named)}" if named else ""
    lengths = sorted({record.events[0]["places"] for record in records})
    span = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    count = {1: "One decode", 2: "Two decodes"}.get(len(records), f"{len(records)} decodes")
    return f"{count}{by}, {span} positions to fill, recorded step by step."


def _links(links: Sequence[tuple[str, str]]) -> str:
    if len(links) < 3:  # a short page needs no contents
        return ""
    items = "".join(f'<a href="#{name}">{escape(words)}</a>' for name, words in links)
    return f'<nav aria-label="Contents">{items}</nav>'


def overview(records: Sequence[DecodeRecord]) -> str:
    """Return a table with one line of numbers for every decode."""
    columns = ["decode", "steps", "forwards", "tokens", "tokens / forward", "mean probability"]
    titles = [record.title for record in records]
    back = any(record.summary.taken_back for record in records)
    rows: list[list[Cell]] = []
    for title, file, _, summary in records:
        row: list[Cell] = [f"{title} · {file}" if titles.count(title) > 1 else title]
        row += [summary.steps, summary.forwards, summary.tokens]
        row += [round(summary.tokens_per_forward, 3), round(summary.probability, 3)]
        rows.append([*row, summary.taken_back] if back else row)
    note = (
        "Only tokens before the end of the answer count. The mean probability is theirs, at the "
        "step that committed them."
    )
    table = table_html(Table("", [*columns, "remasked"] if back else columns, rows, note))
    return f'<section id="numbers"><h2>Summary</h2>{table}</section>'


def answers(records: Sequence[DecodeRecord]) -> str:
    """Return the answer of every decode, for readers who block scripts."""
    return "".join(
        f"<h3>{escape(record.title)}</h3><pre>{escape(record.summary.text)}</pre>"
        for record in records
    )


def _configuration(sources: Sequence[Source]) -> str:
    if not sources:
        return ""
    titles = [source.title for source in sources]
    columns = [
        (
            title if titles.count(title) == 1 else f"{title} · {file.stem}",
            _without_long_settings(trace.about),
        )
        for file, title, trace in sources
    ]
    table = settings_html(columns, "As recorded in the traces")
    return f'<section id="configuration"><h2>Configuration</h2>{table}</section>'


def _without_long_settings(about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_long_settings(value) if isinstance(value, dict) else value
        for name, value in about.items()
        if name not in LONG_SETTINGS
    }


# Runs: text, tables, figures and settings.


def run_section(run: Run, name: str, *, heading: bool = True) -> str:
    """Return the HTML of one run: its text, tables, figures and configuration.

    Args:
        run: The run.
        name: The id of the section.
        heading: Whether it begins with its title. The title of the page may say the same.
    """
    inside = [f"<h2>{escape(run.title)}</h2>"] if heading else []
    parts = [part for part in run.text.split("\n\n") if part.strip()]
    inside += [f"<p>{LINK.sub(LINK_TEXT, escape(part))}</p>" for part in parts]
    inside += [table_html(one) for one in run.tables]
    inside += [figure_html(run, one) for one in run.figures]
    if run.configuration:
        inside.append(settings_html([("value", run.configuration)], "Configuration"))
    return f'<section class="run" id="{name}">{"".join(inside)}</section>'


def table_html(one: Table) -> str:
    """Return the HTML of a table; a column of intervals is also drawn, on one axis."""
    columns = list(zip(*one.rows, strict=True)) or [() for _ in one.columns]
    axes = [_axis(column) for column in columns]
    decimals_of = [_column_decimals(column) for column in columns]
    classes = [_column_class(column) for column in columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for name, kind in zip(one.columns, classes, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{_cell(cell, axis, shown)}</td>"
            for cell, axis, shown, kind in zip(row, axes, decimals_of, classes, strict=True)
        )
        + "</tr>"
        for row in one.rows
    )
    caption = f"<caption>{escape(one.title)}</caption>" if one.title else ""
    note = f'<p class="note">{escape(one.note)}</p>' if one.note else ""
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(one.title or "Table")}">'
        f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}"
    )


def _column_class(column: Sequence[Cell]) -> str:
    """Return the class of a column's cells: numbers, long texts, or neither."""
    kinds = [type(cell) for cell in column if cell is not None]
    if kinds and all(kind in (int, float, Interval) for kind in kinds):
        return ' class="n"'
    return ' class="long"' if any(len(str(cell)) > LONG_TEXT for cell in column) else ""


def _axis(column: Sequence[Cell]) -> tuple[float, float] | None:
    found = [cell for cell in column if isinstance(cell, Interval)]
    if len(found) < 2:
        return None
    low, high = min(one.low for one in found), max(one.high for one in found)
    return (low, high) if high > low else None


def _column_decimals(column: Sequence[Cell]) -> int:
    """Return the decimals for every number of a column, so that they line up."""
    found = [number_text(cell) for cell in column if isinstance(cell, float)]
    plain = [len(text.partition(".")[2]) for text in found if "e" not in text]
    return max(plain, default=0)


def _cell(cell: Cell, axis: tuple[float, float] | None, digits: int) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Interval):
        value, low, high = interval_texts(cell)
        text = f'<b>{value}</b> <span class="range">[{low}, {high}]</span>'
        return text + (_whisker(cell, *axis) if axis else "")
    if isinstance(cell, float):
        text = number_text(cell)
        return text if "e" in text else fixed_text(cell, digits)
    return escape(cell)


def _whisker(cell: Interval, low: float, high: float) -> str:
    """Draw an interval as a line with a dot, next to its numbers."""
    start, at, end = (
        round(4 + (WHISKER_WIDTH - 8) * (x - low) / (high - low), 1)
        for x in (cell.low, cell.value, cell.high)
    )
    width, height, middle = WHISKER_WIDTH, WHISKER_HEIGHT, WHISKER_HEIGHT / 2
    return (
        f'<svg class="whisker" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-hidden="true"><line class="axis" x1="0" x2="{width}" y1="{middle}" y2="{middle}"/>'
        f'<line x1="{start}" x2="{end}" y1="{middle}" y2="{middle}"/>'
        f'<circle cx="{at}" cy="{middle}" r="3"/></svg>'
    )


def figure_html(run: Run, item: RunFile) -> str:
    """Embed a figure as an image, so that no script of an SVG file can run."""
    light = run.folder / item.file
    dark = dark_twin(light)
    words = item.title or light.stem.replace("_", " ").replace("-", " ")
    kind = "light" if dark else "both"
    images = [_image(light, kind, words)] + ([_image(dark, "dark", words)] if dark else [])
    note = f" <span>{escape(item.note)}</span>" if item.note else ""
    caption = f"<figcaption><b>{escape(words)}</b>{note}</figcaption>"
    return f"<figure>{''.join(images)}{caption}</figure>"


def _image(file: Any, kind: str, words: str) -> str:
    media, data = image(file)
    text = base64.b64encode(data).decode()
    return f'<img class="{kind}" alt="{escape(words)}" src="data:{media};base64,{text}">'


def settings_html(columns: Sequence[tuple[str, Mapping[str, Any]]], title: str) -> str:
    """Return a table of settings: first those that differ, then the shared ones once."""
    settings = [flatten(about) for _, about in columns]
    names = list(dict.fromkeys(name for one in settings for name in one))
    values = {name: [_setting(one.get(name)) for one in settings] for name in names}
    differ = [name for name in names if len(set(values[name])) > 1]
    wide = f' colspan="{len(columns)}"'
    rows = ["".join(f"<td>{text}</td>" for text in values[name]) for name in differ]
    same = [name for name in names if name not in differ]
    rows += [f"<td{wide if len(columns) > 1 else ''}>{values[name][0]}</td>" for name in same]
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
        for name, cells in zip([*differ, *same], rows, strict=True)
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name, _ in columns)
    head = f"<thead><tr><td></td>{head}</tr></thead>" if len(columns) > 1 else ""
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(title)}">'
        f'<table class="settings"><caption>{escape(title)}</caption>{head}'
        f"<tbody>{body}</tbody></table></div>"
    )


def flatten(about: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names; the decoding options keep their bare names."""
    found: dict[str, Any] = {}
    for name, value in about.items():
        key = f"{before}{name}"
        if isinstance(value, dict) and value:
            found |= flatten(value, "" if key == "options" else f"{key}.")
        else:
            found[key] = value
    return found


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = ", ".join(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return escape(text if len(text) <= MAX_SETTING else text[: MAX_SETTING - 1] + "…")
