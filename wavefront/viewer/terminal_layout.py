"""Lay out the current canvas of a decode as text, one cell per token.

The functions are pure: a `Frame` goes in, and lines come out. Model output is untrusted, so every
text passes through `visible`, which removes control characters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from wavefront.player.palette import HUES
from wavefront.player.visible_text import visible

MASKED, FRONT, END, CONTROL = "·", "□", "∎", "◆"

# Confidence as in LLaDA's demo (red, orange, green), in colours that colour-blind readers can tell
# apart. Weight, underline and reverse repeat it on a terminal without colour.
STYLES = {
    "prompt": "dim",
    "known": "",
    "sure": f"bold {HUES['green'].light}",
    "likely": f"bold underline {HUES['orange'].light}",
    "unsure": f"bold reverse {HUES['vermilion'].light}",
    "front": f"bold {HUES['sky'].light}",
    "masked": "dim",
    "end": "dim",
    "pinned": "dim italic",  # the constraint has left no choice
}
# The same styles in plain text.
MARKS = {"sure": ("[", "]"), "likely": ("[", "?]"), "unsure": ("[", "??]")}
FIXED_LINES = 4  # the strategy, the counts, the bar and the legend


class Cell(NamedTuple):
    """One token as it is shown."""

    text: str
    state: str  # a key of STYLES


class Frame(NamedTuple):
    """Everything to draw after one step."""

    cells: list[Cell]
    strategy: str
    step: int  # steps done
    steps: int
    forwards: int
    committed: int
    positions: int  # to fill
    seconds: float | None  # None for a decode that is not timed


UNSURE, SURE = 0.3, 0.7  # limits of the probability of a commit


def level(probability: float) -> str:
    """Return the style of a commit with this probability."""
    return "unsure" if probability < UNSURE else "likely" if probability < SURE else "sure"


def wrap(cells: Iterable[Cell], width: int, *, plain: bool = False) -> list[list[Cell]]:
    """Break cells into lines of at most `width` columns, between tokens if possible."""
    lines: list[list[Cell]] = [[]]
    column = 0
    for text, state in cells:
        shown = _marked(visible(text), state) if plain else visible(text)
        for part in shown.splitlines(keepends=True):
            word = part.removesuffix("\n")
            if column and column + cell_len(word) > width:
                lines.append([])
                column, word = 0, word.removeprefix(" ") or word
            first, *rest = _pieces(word, width)
            lines[-1].append(Cell(first, state))
            lines += [[Cell(more, state)] for more in rest]
            column = cell_len(rest[-1]) if rest else column + cell_len(first)
            if part.endswith("\n"):
                lines.append([])
                column = 0
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """Split a word into pieces of at most `width` columns.

    Rich's own split drops a word of width zero, such as a lone accent, and misreads joiners.
    """
    if cell_len(word) <= width:
        return [word]
    pieces = [""]
    for letter in word:
        if cell_len(pieces[-1] + letter) <= width:
            pieces[-1] += letter
        else:
            pieces.append(letter)
    return pieces


def _marked(text: str, state: str) -> str:
    """Put a commit in brackets, with the blanks around it outside."""
    bare = text.strip() or text
    if state not in MARKS or not bare:
        return text
    before, _, after = text.partition(bare)
    left, right = MARKS[state]
    return f"{before}{left}{bare}{right}{after}"


def headline(frame: Frame, width: int) -> str:
    """Return the counts in the longest form that fits into `width` columns."""
    step, tokens = f"step {frame.step}/{frame.steps}", f"{frame.committed}/{frame.positions}"
    rate = frame.committed / frame.forwards if frame.forwards else 0.0
    exact, whole = (
        ("", "")
        if frame.seconds is None
        else (f" · {frame.seconds:.1f} s", f" · {frame.seconds:.0f}s")
    )
    forms = (
        f"{step} · {frame.forwards} forwards · {tokens} positions · {rate:.2f} per forward{exact}",
        f"{step} · {frame.forwards} fwd · {tokens} tok · {rate:.1f}/fwd{whole}",
        f"{step} · {frame.forwards} fwd · {tokens}{whole}",
        f"{step} · {tokens}{whole}",
        tokens,
    )
    return next((form for form in forms if len(form) <= width), tokens)


def bar(frame: Frame, width: int) -> Text:
    """Return a progress bar of the answer."""
    filled = width * frame.committed // max(1, frame.positions)
    return Text.assemble(("━" * filled, STYLES["front"]), ("─" * (width - filled), "dim"))


def legend(width: int, note: str = "", *, pinned: bool = False) -> Text:
    """Return a note and an explanation of the signs, in the longest form that fits.

    Args:
        width: Columns of the terminal.
        note: Text before the signs.
        pinned: Whether to explain tokens that a constraint pinned.
    """
    commits = [("sure", "sure"), (" ", ""), ("likely", "likely"), (" ", ""), ("unsure", "unsure")]
    full = [("just now: ", "dim"), *((text, STYLES.get(state, "")) for text, state in commits)]
    signs = [(FRONT, STYLES["front"]), (" front  ", "dim")]
    rest = (f"{MASKED} masked  ", "dim")
    ends = (f"{END} end  {CONTROL} control token  ", "dim")
    forms = (
        [*signs, rest, ends, *full],
        [*signs, rest, *full],
        [*signs, *full[1:]],
        signs,
    )
    before = [(f"{note}  ", "dim")] if note else []
    if pinned:
        before += [("pinned by the constraint", STYLES["pinned"]), ("  ", "")]
    texts = [Text.assemble(*before, *form) for form in forms]
    return next((text for text in texts if text.cell_len <= width), texts[-1])


def draw(frame: Frame, width: int, height: int, *, top: int = 0) -> tuple[Group, int]:
    """Return the picture and its first line of text; pass that back as `top` next time."""
    rows, top, hidden = panel(frame, width, height - 1, top=top)
    pinned = any(cell.state == "pinned" for cell in frame.cells)
    return Group(*rows, one_line(legend(width, hidden, pinned=pinned))), top


def panel(frame: Frame, width: int, height: int, *, top: int = 0) -> tuple[list[Text], int, str]:
    """Return the picture without its legend: its lines, `top`, and a note on hidden lines."""
    lines = wrap(frame.cells, width)
    room = max(1, height - FIXED_LINES + 1)
    top = window(lines, room, top)
    body = [
        Text.assemble(*((text, STYLES[state]) for text, state in line))
        for line in lines[top : top + room]
    ]
    hidden = f"lines {top + 1}-{top + room} of {len(lines)}" if len(lines) > room else ""
    rows = [Text(frame.strategy, "bold"), Text(headline(frame, width)), bar(frame, width)]
    return [one_line(row) for row in (*rows, *body)], top, hidden


def one_line(row: Text) -> Text:
    """Make a text that is cut at the end of its line."""
    row.no_wrap, row.overflow = True, "ellipsis"
    return row


def window(lines: Sequence[Sequence[Cell]], height: int, top: int) -> int:
    """Return the first line to show so that the front is in view; keep `top` if possible."""
    focus = len(lines) - 1
    for state in ("masked", "front"):
        found = (at for at, line in enumerate(lines) if any(cell.state == state for cell in line))
        focus = next(found, focus)
    if not top <= focus <= top + height * 2 // 3:
        top = focus - height // 3
    return max(0, min(top, len(lines) - height))


def plain(frame: Frame, width: int) -> str:
    """Return the frame as plain text, without styles and without truncation."""
    lines = ["".join(text for text, _ in line) for line in wrap(frame.cells, width, plain=True)]
    return "\n".join([headline(frame, width), *lines])


def plain_legend(frames: Iterable[Frame], width: int) -> str:
    """Return lines that explain the signs in plain frames; empty if the frames show none."""
    cells = {cell for frame in frames for cell in frame.cells}
    texts = {visible(cell.text).strip() for cell in cells}
    parts = []
    if any(cell.state in MARKS for cell in cells):
        chances = (f"{SURE} or more", f"{UNSURE} to {SURE}", f"less than {UNSURE}")
        marks = [
            f"{left}a{right} {chance}"
            for (left, right), chance in zip(MARKS.values(), chances, strict=True)
        ]
        parts.append(f"just committed, with probability {', '.join(marks)}")
    meanings = {
        FRONT: "front",
        MASKED: "masked",
        END: "end of the answer",
        CONTROL: "control token",
    }
    parts += [f"{sign} {meaning}" for sign, meaning in meanings.items() if sign in texts]
    return textwrap.fill(f"Signs: {'; '.join(parts)}.", width) if parts else ""
