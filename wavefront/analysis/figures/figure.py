"""A figure that can be drawn in either style and written to files."""

from __future__ import annotations

import functools
import io
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from wavefront.analysis.figures.style import DRAWABLE, LIGHT, STYLES, Style
from wavefront.core.errors import MissingExtraError, ReportError, install_command
from wavefront.storage.write_file import write_bytes

if TYPE_CHECKING or DRAWABLE:
    import matplotlib
    from matplotlib.figure import Figure as MplFigure

Given = ParamSpec("Given")

TITLE_SIZE, TITLE_LETTER = 7.5, 4.1  # points: of the font, and of the width of a letter
# No dates or versions, so that equal input gives equal files.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "wavefront"},
    "png": {"Software": "wavefront"},
}


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn on demand. A notebook displays it."""

    draw: Callable[[Style], MplFigure]
    title: str = ""  # one line above all panels: what is shown, on which tasks and how many items

    def bytes(self, kind: str = "svg", style: Style = LIGHT) -> bytes:
        """Return the figure as a file of `kind`, svg or png.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if not DRAWABLE:
            raise MissingExtraError(f"Figures need matplotlib: {install_command('figures')}.")
        file = io.BytesIO()
        with warnings.catch_warnings(), matplotlib.rc_context(style.settings):
            # A model may write characters that the font lacks. They show as boxes.
            warnings.filterwarnings("ignore", message=".*[Gg]lyph", category=UserWarning)
            figure = self.draw(style)
            if self.title and figure.get_layout_engine() is not None:  # else there is no room
                letters = int(72 * figure.get_size_inches()[0] / TITLE_LETTER)
                text = textwrap.fill(self.title, letters).replace("$", r"\$")
                figure.suptitle(text, x=0.01, ha="left", fontsize=TITLE_SIZE, linespacing=1.3)
            _fix_layout(figure)
            figure.savefig(file, format=kind, metadata=_METADATA[kind])
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.bytes("png")


def _fix_layout(figure: MplFigure) -> None:
    """Lay out the panels now and round their positions, which vary in the last digits."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for panel in figure.axes:
        left, bottom, width, height = (round(float(e), 6) for e in panel.get_position().bounds)
        panel.set_position((left, bottom, width, height))


def lazy_figure(
    draw: Callable[Concatenate[Style, Given], MplFigure],
) -> Callable[Given, Figure]:
    """Decorate a function that draws in a given style, so that it returns a Figure."""

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
            write_bytes(file, figure.bytes(kind, style), error=ReportError)
            written.append(file)
    return written
