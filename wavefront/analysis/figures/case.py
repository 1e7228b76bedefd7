"""The case study: one prompt with two strategies, frame by frame."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wavefront.analysis.figures.answer_arrays import AnswerArrays, answer_length, read_answer
from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.parts import add_legend
from wavefront.analysis.figures.strategies import tint
from wavefront.analysis.figures.style import DRAWABLE, TWO_COLUMNS, Look, Style, looks
from wavefront.traces.trace import Trace

if TYPE_CHECKING or DRAWABLE:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.patches import FancyBboxPatch, Patch

MOMENTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the steps
SIZE = 7.2  # points, of the letters
ADVANCE, LEADING = 0.602 * SIZE, 1.72 * SIZE  # of the monospaced font, in points
GUTTER, MARGIN, HEAD, FOOT, GAP = 26.0, 4.0, 16.0, 20.0, 7.0  # points
END, BREAK = "∎", "↵"


class Cell(NamedTuple):
    """Where a token is drawn. Its final text sets the place, which is the same in every frame."""

    text: str
    line: int
    column: int


@lazy_figure
def case(
    style: Style,
    traces: Mapping[str, Trace],
    pieces: Callable[[Sequence[int]], Sequence[str]],
    *,
    row: int = 0,
    at: Sequence[int] = (),
) -> MplFigure:
    """Draw one column per strategy and one frame per step. `pieces` decodes token ids.

    `at` selects the steps; the default is after 1/8, 1/4, 1/2, 3/4 and all steps. Every position
    has the width of its final token, so that frames can be compared.
    """
    strip = (TWO_COLUMNS * 72 - GUTTER - 2 * MARGIN) / len(traces)
    letters = int((strip - 10) / ADVANCE)
    boards = {spec: read_answer(trace, row) for spec, trace in traces.items()}
    films = {
        spec: lay_out(_texts(boards[spec], answer_length(trace, boards[spec]), pieces), letters)
        for spec, trace in traces.items()
    }
    longest = max(len(seen.known) for seen in boards.values())
    steps = list(at) or moments(longest)
    lines = max((cell.line for film in films.values() for cell in film), default=0) + 1
    frame = lines * LEADING + GAP
    height = HEAD + FOOT + frame * len(steps)
    figure = MplFigure(figsize=(TWO_COLUMNS, height / 72))
    panel = figure.add_axes((0, 0, 1, 1))
    panel.set(xlim=(0, TWO_COLUMNS * 72), ylim=(height, 0))
    panel.axis("off")
    styles = looks(list(traces), style)
    for number, step in enumerate(steps):
        top = HEAD + number * frame
        panel.plot(
            (MARGIN, TWO_COLUMNS * 72 - MARGIN), (top, top), color=style.faint, linewidth=0.5
        )
        panel.text(
            MARGIN,
            top + GAP / 2 + LEADING / 2,
            f"{step}",
            fontsize=7,
            va="center",
            color=style.soft,
        )
        before = steps[number - 1] if number else 0
        for index, spec in enumerate(traces):
            corner = (GUTTER + MARGIN + index * strip, top + GAP / 2)
            _draw_frame(
                panel,
                style,
                boards[spec],
                film=films[spec],
                moment=(before, step),
                corner=corner,
                look=styles[spec],
            )
    panel.text(MARGIN, HEAD / 2, "step", fontsize=7, va="center", color=style.soft)
    for index, spec in enumerate(traces):
        panel.text(
            GUTTER + MARGIN + index * strip,
            HEAD / 2,
            styles[spec].label,
            fontsize=8,
            va="center",
            color=styles[spec].colour,
            fontweight="bold",
        )
    _explain(figure, style, [styles[spec] for spec in traces])
    return figure


def moments(steps: int) -> list[int]:
    """Return the steps after which to draw a frame."""
    return sorted({max(1, round(share * steps)) for share in MOMENTS})


def lay_out(texts: Sequence[str], letters: int) -> list[Cell]:
    """Lay out tokens in lines of `letters` characters. A line break starts a new line."""
    cells: list[Cell] = []
    line = column = 0
    for text in texts:
        shown = display_text(text)
        if column and column + len(shown) > letters:
            line, column = line + 1, 0
        cells.append(Cell(shown[:letters], line, column))
        column += len(shown)
        if "\n" in text:
            line, column = line + 1, 0
    return cells


def display_text(text: str) -> str:
    """Return the displayed text of a token: one line, no control characters, never empty."""
    shown = text.replace("\n", BREAK)
    shown = "".join("\ufffd" if unicodedata.category(c)[0] == "C" else c for c in shown)
    return shown or " "


def _texts(
    seen: AnswerArrays, end: int, pieces: Callable[[Sequence[int]], Sequence[str]]
) -> list[str]:
    """Return the final text of every position, up to and including the first end token."""
    shown = list(pieces([int(token) for token in seen.last[:end]]))
    return shown + ([END] if end < len(seen.last) else [])


def _draw_frame(
    panel: Axes,
    style: Style,
    seen: AnswerArrays,
    *,
    film: Sequence[Cell],
    moment: tuple[int, int],
    corner: tuple[float, float],
    look: Look,
) -> None:
    """Draw the canvas after a step. Tokens since the previous frame are coloured."""
    before, after = (min(step, len(seen.known)) for step in moment)
    whole = np.concatenate([seen.known, (seen.known[-1:] | seen.commit[-1:])])
    offered = np.concatenate([seen.candidates, np.zeros_like(seen.candidates[:1])])
    for place, cell in enumerate(film):
        x, y = corner[0] + cell.column * ADVANCE, corner[1] + cell.line * LEADING
        width, known = len(cell.text) * ADVANCE, bool(whole[after, place])
        fresh = known and not whole[before, place]
        edge, fill = "none", "none"
        if fresh:
            fill = tuple(tint(look.colour, style))
        elif not known:
            edge = look.colour if offered[after, place] else style.faint
        if fresh or not known:
            panel.add_patch(
                FancyBboxPatch(
                    (x + 0.5, y + 0.9),
                    width - 1.0,
                    LEADING - 1.8,
                    facecolor=fill,
                    edgecolor=edge,
                    boxstyle="round,pad=0,rounding_size=1.2",
                    linewidth=0.7,
                )
            )
        if known and cell.text.strip():
            panel.text(
                x,
                y + LEADING / 2,
                cell.text,
                fontsize=SIZE,
                family="DejaVu Sans Mono",
                va="center_baseline",
                color=style.ink,
                parse_math=False,
            )


def _explain(figure: MplFigure, style: Style, styles: Sequence[Look]) -> None:
    thin = {"facecolor": "none", "linewidth": 0.7}
    entries = {
        "decided since the frame above": tuple(
            Patch(facecolor=tuple(tint(look.colour, style))) for look in styles
        ),
        "masked, in scope next": tuple(Patch(edgecolor=look.colour, **thin) for look in styles),
        "masked, out of scope": Patch(edgecolor=style.faint, **thin),
    }
    add_legend(figure, entries, loc="lower center")
