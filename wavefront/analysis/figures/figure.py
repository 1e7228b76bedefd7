"""Figure: a figure that can be drawn in either style, and written as files."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import matplotlib
from matplotlib.figure import Figure as MplFigure

from wavefront.analysis.figures.style import LIGHT, STYLES, Style

Given = ParamSpec("Given")

# Neither dates nor versions: equal input makes equal files.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "wavefront"},
    "png": {"Software": "wavefront"},
}


@dataclass(frozen=True)
class Figure:
    """A figure not yet drawn; a notebook shows it as it is."""

    draw: Callable[[Style], MplFigure]

    def bytes(self, kind: str = "svg", style: Style = LIGHT) -> bytes:
        """The figure as a file of `kind`, svg or png."""
        file = io.BytesIO()
        with warnings.catch_warnings(), matplotlib.rc_context(style.settings):
            # What a model wrote may hold letters that the font lacks; it shows a box for them.
            warnings.filterwarnings("ignore", message=".*[Gg]lyph", category=UserWarning)
            figure = self.draw(style)
            _settle(figure)
            figure.savefig(file, format=kind, metadata=_METADATA[kind])
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.bytes("png")


def _settle(figure: MplFigure) -> None:
    """Lay the panels out now, on a grid: the layout's last digits differ from call to call."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for panel in figure.axes:
        left, bottom, width, height = (round(float(e), 6) for e in panel.get_position().bounds)
        panel.set_position((left, bottom, width, height))


def lazy_figure(
    draw: Callable[Concatenate[Style, Given], MplFigure],
) -> Callable[Given, Figure]:
    """A function that draws in a style it is given becomes one that returns a Figure."""

    @functools.wraps(draw)
    def make(*args: Given.args, **kwargs: Given.kwargs) -> Figure:
        return Figure(lambda style: draw(style, *args, **kwargs))

    return make


def save(figure: Figure, folder: str | Path, name: str) -> list[Path]:
    """Write `name.png`, `name.svg`, `name-dark.png` and `name-dark.svg` into the folder."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    written = []
    for style in STYLES:
        for kind in ("png", "svg"):
            file = home / f"{name}{'' if style is LIGHT else '-dark'}.{kind}"
            file.write_bytes(figure.bytes(kind, style))
            written.append(file)
    return written
