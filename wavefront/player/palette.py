"""Every colour of the project, for light and dark backgrounds.

The web pages get `PAGE` as CSS variables. The SVG animation and the figures use `DRAWING` and
`HUES`, and the terminal uses the light `HUES`. Tests check that no other file holds a copy.
"""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """One colour on a light and on a dark background."""

    light: str
    dark: str


PAGE = {
    "paper": Colour("#fbfaf7", "#14171b"),
    "card": Colour("#ffffff", "#1a1e23"),
    "ink": Colour("#1c1f24", "#f1efe9"),
    "soft": Colour("#5d636d", "#a3a8b0"),
    "faint": Colour("#e4e1da", "#2a2f36"),
    "rule": Colour("#d3cfc6", "#3a4149"),
    "accent": Colour("#1f6aa8", "#74b4ea"),
    "back": Colour("#a8327f", "#ee8ccb"),
    "warn": Colour("#8a5a00", "#f0c674"),
    "warn-paper": Colour("#fdf3dc", "#2e2716"),
    "error": Colour("#9c2f1c", "#ffb4a2"),
    "error-paper": Colour("#fdeee9", "#35201c"),
    "mask": Colour("#dcd9d2", "#383d44"),
    "mask-scope": Colour("#c3d3e1", "#35506a"),
    "token": Colour("#1c1f24", "#f4f2ec"),
    "low-token": Colour("#1c1f24", "#101214"),
    "map": Colour("#efede8", "#20242a"),
    "map-scope": Colour("#dbe4ec", "#293641"),
    "map-front": Colour("#9dbfdc", "#40688b"),
    "map-end": Colour("#e0ddd6", "#2f343a"),
    "hand": Colour("#d9c9ec", "#57407a"),
    # The probability of a token when it was committed, in ten levels.
    "p0": Colour("#dd6530", "#ff9a5c"),
    "p1": Colour("#e47b3c", "#e78b4c"),
    "p2": Colour("#ea9049", "#cf7d3b"),
    "p3": Colour("#efa455", "#b86f2a"),
    "p4": Colour("#f3b767", "#9a6329"),
    "p5": Colour("#f5c882", "#7c5828"),
    "p6": Colour("#f7d99b", "#5f4c25"),
    "p7": Colour("#f4e6b7", "#454229"),
    "p8": Colour("#e5e7d8", "#313c3c"),
    "p9": Colour("#d6e7f6", "#1c354b"),
}
# Backgrounds and text of figures and of the SVG animation.
DRAWING = {
    "paper": Colour("#ffffff", "#12161c"),
    "ink": Colour("#1a1a1a", "#ececec"),
    "soft": Colour("#5c5c5c", "#a7adb5"),
    "faint": Colour("#e3e3e3", "#2b323b"),
    "known": Colour("#d9d9d9", "#323a44"),
    "masked": Colour("#ececec", "#232a33"),
    "sure": Colour("#b9e6d9", "#0d5a45"),
    "likely": Colour("#f8dfa8", "#6b4d06"),
    "unsure": Colour("#f5c0a0", "#7a3413"),
    "back": Colour("#cfcfcf", "#444444"),
}
# The colours of Okabe and Ito, which colour-blind readers can tell apart.
HUES = {
    "green": Colour("#009e73", "#17c495"),
    "vermilion": Colour("#d55e00", "#ff7a2f"),
    "blue": Colour("#0072b2", "#5aa9f0"),
    "purple": Colour("#cc79a7", "#e29ac2"),
    "sky": Colour("#56b4e9", "#8fd0f7"),
    "orange": Colour("#e69f00", "#ffb829"),
    "yellow": Colour("#b8a800", "#f0e442"),  # darker than the original, so it is visible on white
    "grey": Colour("#7f7f7f", "#a0a0a0"),
    "brown": Colour("#8a5a44", "#c79a83"),
}


def page_css() -> str:
    """Return the CSS variables of `PAGE`; `color-scheme` chooses between light and dark."""
    lines = [f"  --{name}: light-dark({c.light}, {c.dark});" for name, c in PAGE.items()]
    return "\n".join([":root {", *lines, "}", ""])
