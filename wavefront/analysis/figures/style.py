"""The style of figures: sizes, colours, marks and fonts, light and dark.

The colours are Okabe and Ito's, which are safe for colour-blind readers. Each strategy has the same
colour and mark in every figure. Two strategies of one kind differ by a dashed line and a hollow
mark. The font is bundled with matplotlib, so that a figure is the same file on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

# Without matplotlib a figure can be described, but not drawn.
DRAWABLE = find_spec("matplotlib") is not None
ONE_COLUMN, TWO_COLUMNS = 3.35, 6.9  # inches: the columns of a paper
DPI = 300

# Colour and mark of every registered strategy, and of the first external ones.
_LOOKS = {
    "wavefront": ("green", "o"),
    "block": ("vermilion", "s"),
    "standard": ("blue", "^"),
    "left_to_right": ("purple", "D"),
    "tide": ("sky", "P"),
    "adablock": ("orange", "X"),
    "dsb": ("grey", "v"),
    "dcd": ("yellow", "<"),
    "rcr": ("brown", ">"),
    "tbd": ("orange", "h"),
}
_SPARE = (("sky", "p"), ("purple", "*"), ("orange", "d"), ("grey", "H"))
# For strategies of one kind, in order: line styles, and bar fills.
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (3, 1, 1, 1, 1, 1)))
_HATCHES = (None, "//////", "||||||", "xxxxxx", "------")  # lines: dots make big files


@dataclass(frozen=True)
class Style:
    """One of the two variants."""

    name: str
    paper: str  # the background
    ink: str  # lines and text
    soft: str  # secondary text: ticks, notes
    faint: str  # grid lines and frames
    known: str  # decided positions
    hues: Mapping[str, str]

    @property
    def settings(self) -> Any:
        """The matplotlib settings that differ from its defaults."""
        return {
            "figure.facecolor": self.paper,
            "figure.dpi": DPI,
            "savefig.facecolor": self.paper,
            "savefig.dpi": DPI,
            "axes.facecolor": self.paper,
            "axes.edgecolor": self.soft,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.linewidth": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 8,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlepad": 5,
            "axes.labelsize": 7.5,
            "axes.labelpad": 3,
            "axes.axisbelow": True,
            "grid.color": self.faint,
            "grid.linewidth": 0.5,
            "text.color": self.ink,
            "xtick.color": self.soft,
            "ytick.color": self.soft,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "lines.linewidth": 1.3,
            "lines.markersize": 3.6,
            "legend.frameon": False,
            "legend.fontsize": 7,
            "legend.handlelength": 1.6,
            "legend.borderaxespad": 0.2,
            "font.family": "DejaVu Sans",
            "font.size": 7.5,
            "hatch.linewidth": 0.6,
            "hatch.color": self.paper,
            "image.interpolation": "nearest",
            # Draw text as outlines, so that it looks the same for every reader.
            "svg.fonttype": "path",
            "svg.hashsalt": "wavefront",
        }


LIGHT = Style(
    name="light",
    paper="#ffffff",
    ink="#1a1a1a",
    soft="#5c5c5c",
    faint="#e3e3e3",
    known="#d9d9d9",
    hues={
        "green": "#009e73",
        "vermilion": "#d55e00",
        "blue": "#0072b2",
        "purple": "#cc79a7",
        "sky": "#56b4e9",
        "orange": "#e69f00",
        "yellow": "#b8a800",  # darker than the original, which is invisible on white
        "grey": "#7f7f7f",
        "brown": "#8a5a44",
        "ink": "#1a1a1a",
    },
)
DARK = Style(
    name="dark",
    paper="#12161c",
    ink="#ececec",
    soft="#a7adb5",
    faint="#2b323b",
    known="#323a44",
    hues={
        "green": "#17c495",
        "vermilion": "#ff7a2f",
        "blue": "#5aa9f0",
        "purple": "#e29ac2",
        "sky": "#8fd0f7",
        "orange": "#ffb829",
        "yellow": "#f0e442",
        "grey": "#a0a0a0",
        "brown": "#c79a83",
        "ink": "#ececec",
    },
)
STYLES = (LIGHT, DARK)


class Look(NamedTuple):
    """How a strategy is drawn."""

    label: str
    colour: str
    mark: str
    dash: Any
    hollow: bool
    hatch: str | None = None


def looks(specs: Sequence[str], style: Style) -> dict[str, Look]:
    """Return the look of every strategy of a figure, by its spec string."""
    kinds = [kind(spec) for spec in specs]
    strangers = [one for one in dict.fromkeys(kinds) if one not in _LOOKS]
    found: dict[str, Look] = {}
    for number, (spec, one) in enumerate(zip(specs, kinds, strict=True)):
        before = kinds[:number].count(one)
        spare = _SPARE[strangers.index(one) % len(_SPARE)] if one in strangers else None
        hue, mark = spare or _LOOKS[one]
        dash = _DASHES[before % len(_DASHES)]
        fill = _HATCHES[before % len(_HATCHES)]
        found[spec] = Look(label(spec, specs), style.hues[hue], mark, dash, before > 0, fill)
    return found


def kind(spec: str) -> str:
    """Return `wavefront` for `wavefront(size=8)`, or the class of an external strategy."""
    return spec.partition("(")[0].strip().rpartition(".")[2]


def label(spec: str, beside: Sequence[str]) -> str:
    """Return a strategy's short name, with the options that distinguish it from its kind."""
    one = kind(spec)
    kin = [_options(other) for other in beside if kind(other) == one]
    if len(kin) < 2:
        return one.replace("_", " ")
    own = [part for part in _options(spec) if not all(part in other for other in kin)]
    # A word needs no option name; a number does.
    own = [part.partition("=")[2] if part.endswith("'") else part for part in own]
    # A selector that takes every value of its grid is named by its kind.
    own = [re.sub(r"^selector=(\w+)\(\w+=\{\w+\}\)$", r"\1", part) for part in own]
    return f"{one} {', '.join(own)}".replace("'", "").replace("_", " ").strip()


def _options(spec: str) -> list[str]:
    """Split the options of a spec at the top level."""
    parts, depth = [""], 0
    for letter in spec.partition("(")[2].rpartition(")")[0]:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
