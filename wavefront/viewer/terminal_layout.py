"""Picture: a moment of a decode laid out as text, a cell per token.

Pure: what is known of the moment comes as a Frame, and what comes out are lines. What a model
writes is untrusted, and this is the place where it loses its control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from wavefront.player.palette import HUES
from wavefront.player.visible_text import visible

MASKED, FRONT, END, CONTROL = "·", "□", "∎", "◆"

# LLaDA's meaning (red, orange, green), in shades that colour-blind eyes can tell apart; weight,
# underline and reverse say the same again where there is no colour.
STYLES = {
    "prompt": "dim",
    "known": "",
    "sure": f"bold {HUES['green'].light}",
    "likely": f"bold underline {HUES['orange'].light}",
    "unsure": f"bold reverse {HUES['vermilion'].light}",
    "front": f"bold {HUES['sky'].light}",
    "masked": "dim",
    "end": "dim",
}
# And once more where there is no style either.
MARKS = {"sure": ("[", "]"), "likely": ("[", "?]"), "unsure": ("[", "??]")}
FIXED_LINES = 4  # of the picture: the strategy, the counts, the bar, the legend


class Cell(NamedTuple):
    """A token as it is shown."""

    text: str
    state: str  # a key of STYLES


class Frame(NamedTuple):
    """All there is to draw of one moment."""

    cells: list[Cell]
    strategy: str
    step: int  # steps done
    steps: int
    forwards: int
    committed: int
    places: int
    seconds: float | None  # None where it would mean nothing


def level(probability: float) -> str:
    """How sure a commit was."""
    return "unsure" if probability < 0.3 else "likely" if probability < 0.7 else "sure"


def wrap(cells: Iterable[Cell], width: int, *, plain: bool = False) -> list[list[Cell]]:
    """Cells in lines of at most `width` columns, broken between tokens where that is possible."""
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
    """A word in pieces of at most `width` columns, nothing lost.

    By hand: rich's own cut loses a word without width (an accent alone), and a joiner misleads it.
    """
    if cell_len(word) <= width:  # nearly every word, in every frame
        return [word]
    pieces = [""]
    for letter in word:
        if cell_len(pieces[-1] + letter) <= width:
            pieces[-1] += letter
        else:
            pieces.append(letter)
    return pieces


def _marked(text: str, state: str) -> str:
    """A commit in brackets, with the blanks around it outside."""
    bare = text.strip() or text
    if state not in MARKS or not bare:
        return text
    before, _, after = text.partition(bare)
    left, right = MARKS[state]
    return f"{before}{left}{bare}{right}{after}"


def headline(frame: Frame, width: int) -> str:
    """The counts, as fully as `width` columns allow."""
    step, tokens = f"step {frame.step}/{frame.steps}", f"{frame.committed}/{frame.places}"
    rate = frame.committed / frame.forwards if frame.forwards else 0.0
    exact, whole = (
        ("", "")
        if frame.seconds is None
        else (f" · {frame.seconds:.1f} s", f" · {frame.seconds:.0f}s")
    )
    forms = (
        f"{step} · {frame.forwards} forwards · {tokens} tokens · {rate:.2f} per forward{exact}",
        f"{step} · {frame.forwards} fwd · {tokens} tok · {rate:.1f}/fwd{whole}",
        f"{step} · {frame.forwards} fwd · {tokens}{whole}",
        f"{step} · {tokens}{whole}",
        tokens,
    )
    return next((form for form in forms if len(form) <= width), tokens)


def bar(frame: Frame, width: int) -> Text:
    """A rule that fills up with the answer."""
    filled = width * frame.committed // max(1, frame.places)
    return Text.assemble(("━" * filled, STYLES["front"]), ("─" * (width - filled), "dim"))


def legend(width: int, note: str = "") -> Text:
    """What the signs mean, after a note; as many of them as `width` columns allow."""
    commits = [("sure", "sure"), (" ", ""), ("likely", "likely"), (" ", ""), ("unsure", "unsure")]
    full = [("just now: ", "dim"), *((text, STYLES.get(state, "")) for text, state in commits)]
    signs = [(FRONT, STYLES["front"]), (" front  ", "dim")]
    forms = (
        [*signs, (f"{MASKED} masked  ", "dim"), *full],
        [*signs, *full[1:]],
        signs,
    )
    before = [(f"{note}  ", "dim")] if note else []
    texts = [Text.assemble(*before, *form) for form in forms]
    return next((text for text in texts if text.cell_len <= width), texts[-1])


def draw(frame: Frame, width: int, height: int, top: int = 0) -> tuple[Group, int]:
    """The picture, and its first line of text: hand that in again, so that the text stays put."""
    rows, top, hidden = panel(frame, width, height - 1, top)
    return Group(*rows, one_line(legend(width, hidden))), top


def panel(frame: Frame, width: int, height: int, top: int = 0) -> tuple[list[Text], int, str]:
    """The same without its legend: the lines, the first line of text, and which are hidden."""
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
    """The text, cut where the line ends."""
    row.no_wrap, row.overflow = True, "ellipsis"
    return row


def window(lines: Sequence[Sequence[Cell]], height: int, top: int) -> int:
    """The first line to show, so that the front is in view; `top` again while that will do."""
    focus = len(lines) - 1
    for state in ("masked", "front"):
        found = (at for at, line in enumerate(lines) if any(cell.state == state for cell in line))
        focus = next(found, focus)
    if not top <= focus <= top + height * 2 // 3:
        top = focus - height // 3
    return max(0, min(top, len(lines) - height))


def plain(frame: Frame, width: int) -> str:
    """The moment as bare text: no style, no cursor, nothing cut."""
    lines = ["".join(text for text, _ in line) for line in wrap(frame.cells, width, plain=True)]
    return "\n".join([headline(frame, width), *lines])
