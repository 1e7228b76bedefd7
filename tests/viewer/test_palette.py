"""Every colour is written once, in `wavefront.player.palette`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wavefront
from wavefront.analysis.figures import style as figures
from wavefront.player import palette
from wavefront.viewer import svg_animation, terminal_layout

ROOT = Path(wavefront.__file__).parent
HEX = re.compile(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b")
# The figures have a copy, because `analysis` may not import the player; it is compared below.
WITH_COLOURS = {"player/palette.py"}


def test_no_other_file_of_the_pages_and_viewers_names_a_colour() -> None:
    files = [
        file
        for room in ("player", "viewer", "server")
        for file in (ROOT / room).rglob("*")
        if file.suffix in (".py", ".js", ".css", ".html")
    ]
    assert len(files) > 20
    found = {
        file.relative_to(ROOT).as_posix(): HEX.findall(file.read_text(encoding="utf-8"))
        for file in files
    }
    assert {name for name, colours in found.items() if colours} <= WITH_COLOURS


@pytest.mark.parametrize("name", ["paper", "ink", "soft", "faint", "known"])
def test_figures_use_the_drawing_colours(name: str) -> None:
    colour = palette.DRAWING[name]
    assert (getattr(figures.LIGHT, name), getattr(figures.DARK, name)) == colour


def test_figures_use_the_hues() -> None:
    for name, colour in palette.HUES.items():
        assert (figures.LIGHT.hues[name], figures.DARK.hues[name]) == colour


def test_terminal_and_animation_use_the_palette() -> None:
    known = {one for group in (palette.DRAWING, palette.HUES) for c in group.values() for one in c}
    used = HEX.findall(" ".join(terminal_layout.STYLES.values()) + svg_animation.style())
    assert used
    assert set(used) <= known


def test_style_sheets_use_only_variables_of_the_palette() -> None:
    defined = set(palette.PAGE) | {"serif", "sans", "mono", "done"}
    for file in (*(ROOT / "player/assets").iterdir(), *(ROOT / "server/page").iterdir()):
        used = set(re.findall(r"var\(--([\w-]+)\)", file.read_text(encoding="utf-8")))
        assert used <= defined, file.name


def test_css_holds_every_colour_in_light_and_dark() -> None:
    css = palette.page_css()
    for name, (light, dark) in palette.PAGE.items():
        assert f"--{name}: light-dark({light}, {dark});" in css
