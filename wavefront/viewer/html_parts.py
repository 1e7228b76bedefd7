"""Parts of the page as HTML. Whatever comes from a file is escaped here, and only here."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wavefront.player.player_data import numbers
from wavefront.results.table import Cell, Interval, Item, Run, Table, dark_twin, image
from wavefront.viewer import printable

# Half-width of the drawing of an interval, in its own units, and its height.
SPAN, TALL = 100, 14
LONGEST = 400  # characters of a setting that are shown


def escape(text: object) -> str:
    """Text for HTML, inside tags and between them."""
    # Half a character cannot be written into a file.
    whole = str(text).encode("utf-8", "replace").decode()
    return html.escape(printable(whole), quote=True)


def embed(value: Any) -> str:
    """JSON for a script element: nothing in it ends the element or a line of it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def section(run: Run, name: str) -> str:
    """One run: what it is, its tables, its figures, its configuration."""
    inside = [f"<h2>{escape(run.title)}</h2>"]
    inside += [f"<p>{escape(part)}</p>" for part in run.text.split("\n\n") if part.strip()]
    inside += [table(one) for one in run.tables]
    inside += [figure(run, one) for one in run.figures]
    if run.configuration:
        inside.append(configuration([("value", run.configuration)], "Configuration"))
    return f'<section class="run" id="{name}">{"".join(inside)}</section>'


def table(one: Table) -> str:
    """A table; a column of intervals is also drawn, on one axis."""
    columns = list(zip(*one.rows, strict=True)) or [() for _ in one.columns]
    axes = [_axis(column) for column in columns]
    places = [_places(column) for column in columns]
    classes = [' class="n"' if _is_numeric(column) else "" for column in columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for name, kind in zip(one.columns, classes, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{_cell(cell, axis, shown)}</td>"
            for cell, axis, shown, kind in zip(row, axes, places, classes, strict=True)
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


def _is_numeric(column: Sequence[Cell]) -> bool:
    kinds = [type(cell) for cell in column if cell is not None]
    return bool(kinds) and all(kind in (int, float, Interval) for kind in kinds)


def _axis(column: Sequence[Cell]) -> tuple[float, float] | None:
    found = [cell for cell in column if isinstance(cell, Interval)]
    if len(found) < 2:
        return None
    low, high = min(one.low for one in found), max(one.high for one in found)
    return (low, high) if high > low else None


def _places(column: Sequence[Cell]) -> int:
    """Decimals that every number of a column gets, so that they stand under one another."""
    found = [number(cell) for cell in column if isinstance(cell, float)]
    plain = [len(text.partition(".")[2]) for text in found if "e" not in text]
    return max(plain, default=0)


def _cell(cell: Cell, axis: tuple[float, float] | None, places: int) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Interval):
        shown = decimals(cell.high - cell.low)
        value, low, high = (f"{x:.{shown}f}" for x in (cell.value, cell.low, cell.high))
        text = f'<b>{value}</b> <span class="range">[{low}, {high}]</span>'
        return text + (_whisker(cell, *axis) if axis else "")
    if isinstance(cell, float) and "e" not in number(cell):
        return f"{cell:.{places}f}"
    return escape(cell)


def number(value: float) -> str:
    """A number as people write it: whole ones whole, others to four digits."""
    if float(value).is_integer():
        return str(int(value)) if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.4g}"


def decimals(width: float) -> int:
    """Decimals that give an interval of this width two digits."""
    return min(max(1 - math.floor(math.log10(width)), 0), 6) if width > 0 else 3


def _whisker(cell: Interval, low: float, high: float) -> str:
    """The interval as a line with a dot, for the eye; the numbers stand beside it."""
    start, at, end = (
        round(4 + (SPAN - 8) * (x - low) / (high - low), 1)
        for x in (cell.low, cell.value, cell.high)
    )
    middle = TALL / 2
    return (
        f'<svg class="whisker" viewBox="0 0 {SPAN} {TALL}" width="{SPAN}" height="{TALL}" '
        f'aria-hidden="true"><line class="axis" x1="0" x2="{SPAN}" y1="{middle}" y2="{middle}"/>'
        f'<line x1="{start}" x2="{end}" y1="{middle}" y2="{middle}"/>'
        f'<circle cx="{at}" cy="{middle}" r="3"/></svg>'
    )


def figure(run: Run, item: Item) -> str:
    """A figure inside the page, as an image: nothing that an SVG file brings along can run."""
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


def configuration(columns: Sequence[tuple[str, Mapping[str, Any]]], title: str) -> str:
    """Settings side by side: first those that differ; one that all share is written once."""
    settings = [flat(about) for _, about in columns]
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


def flat(about: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings under dotted names; the options, which everybody looks for, by bare ones."""
    found: dict[str, Any] = {}
    for name, value in about.items():
        key = f"{before}{name}"
        if isinstance(value, dict) and value:
            found |= flat(value, "" if key == "options" else f"{key}.")
        else:
            found[key] = value
    return found


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value)
    return escape(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


def overview(reels: Sequence[dict[str, Any]]) -> str:
    """What every decode comes to, in a line."""
    columns = ("decode", "steps", "forwards", "tokens", "tokens / forward", "mean probability")
    found = [numbers(one) for one in reels]
    back = any(one["taken_back"] for one in found)
    rows = []
    for one, made in zip(reels, found, strict=True):
        same = [other["title"] for other in reels].count(one["title"]) > 1
        cells: list[Cell] = [f"{one['title']} · {one['place']}" if same else one["title"]]
        cells += [*(made[name] for name in ("steps", "forwards", "tokens"))]
        cells += [round(made["per_forward"], 3), round(made["chance"], 3)]
        rows.append([*cells, made["taken_back"]] if back else cells)
    note = (
        "Tokens are those before the end of the answer; the mean probability is theirs, at the "
        "moment of their commit."
    )
    made = table(Table("", [*columns, "taken back"] if back else columns, rows, note))
    return f'<section id="numbers"><h2>In numbers</h2>{made}</section>'


def answers(reels: Sequence[dict[str, Any]], texts: Sequence[str]) -> str:
    """For readers without scripts: what every decode came to."""
    parts = []
    for one in reels:
        seen = [token for token, fill in zip(one["final"], one["fill"], strict=True) if not fill]
        text = "".join(texts[int(token)] if token >= 0 else "▒" for token in seen)
        parts.append(f"<h3>{escape(one['title'])}</h3><pre>{escape(text)}</pre>")
    return "".join(parts)
