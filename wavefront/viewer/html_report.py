"""From trace files and run directories to the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import ReportError
from wavefront.player.player_data import reel, strategy
from wavefront.player.token_text import Words
from wavefront.results import table as runs
from wavefront.results.table import Item, Run
from wavefront.traces.trace import Trace
from wavefront.traces.trace_file import load
from wavefront.viewer.html_assembly import assemble

ROWS = 8  # of a trace that are shown when nobody says which


class Report(NamedTuple):
    """The page, and what the one who made it should know."""

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
    inputs: Sequence[str | Path],
    *,
    title: str = "",
    model: str | None = None,
    rows: Sequence[int] | None = None,
) -> Report:
    """One page of all of them; equal inputs make equal pages.

    `model` names whose tokenizer reads the traces, by default the one that each names; `rows` are
    those shown of every trace, by default the first few.
    """
    if not inputs:
        raise ReportError("There is nothing to report: give trace files or run directories.")
    found: list[Run] = []
    sources: list[Source] = []
    for one in map(Path, inputs):
        if one.is_dir():
            found.append(runs.read(one))
            sources += [_source(one / item.file, item) for item in found[-1].traces]
        else:
            sources.append(_source(one, Item(one.name)))
    words = Words(model)
    reels = _reels(sources, words, rows)
    html = assemble(
        title=title or _title(found, sources),
        runs=found,
        reels=reels,
        texts=words.texts,
        traces=[(one.title, one.trace.about) for one in _apart(sources)],
        notes=words.notes,
    )
    count = [sum(len(one.tables) for one in found), sum(len(one.figures) for one in found)]
    return Report(html, words.notes, len(reels), *count)


def _source(file: Path, item: Item) -> Source:
    trace = load(file)
    return Source(file, item.title or strategy(trace) or file.stem, trace)


def _apart(sources: Sequence[Source]) -> list[Source]:
    """The same, with titles that tell them apart."""
    titles = [one.title for one in sources]
    return [
        one
        if titles.count(one.title) == 1
        else one._replace(title=f"{one.title} · {one.file.stem}")
        for one in sources
    ]


def _reels(
    sources: Sequence[Source], words: Words, rows: Sequence[int] | None
) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for file, title, trace in sources:
        count = len(trace.first.tokens)
        wanted = list(range(min(count, ROWS))) if rows is None else list(rows)
        if not wanted or any(not 0 <= one < count for one in wanted):
            raise ReportError(f"{file} has the rows 0 to {count - 1}; {wanted} is asked for.")
        if len(wanted) < count and rows is None:
            words.notes.append(f"{file.name} has {count} rows; the first {ROWS} are shown.")
        reader = words.reader(trace.about)
        for row in wanted:
            place = file.name if count == 1 else f"{file.name}, row {row}"
            one = trace.row(row)
            made.append(reel(one, reader, title=title, place=place, cut=count > 1))
    return made


def _title(found: Sequence[Run], sources: Sequence[Source]) -> str:
    if found:
        return found[0].title if len(found) == 1 else f"{found[0].title}, and {len(found) - 1} more"
    kinds = list(dict.fromkeys(one.title.partition("(")[0] for one in sources))
    if len(kinds) == 1:
        return f"How {kinds[0]} decodes"
    return f"{', '.join(kinds[:-1])} and {kinds[-1]}, step by step"
