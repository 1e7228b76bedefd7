"""Watch several decodes side by side, one step of each in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table

from wavefront.viewer.cells import GLOW, Board
from wavefront.viewer.screen import LiveScreen, can_animate
from wavefront.viewer.terminal_layout import (
    FIXED_LINES,
    Frame,
    legend,
    one_line,
    panel,
    plain,
    plain_legend,
)

if TYPE_CHECKING:
    from wavefront.lm import Stream
    from wavefront.viewer.trace_stream import TraceStream

MIN_COLUMNS = 34  # columns of a picture; a narrower one has no room for the counts
GAP = 2
MIN_LINES = FIXED_LINES + 2  # lines of a picture on a low screen


def side_by_side(
    streams: Sequence[Stream | TraceStream],
    *,
    console: Console | None,
    delay: float = 0.0,
    timed: bool = True,
    titles: Sequence[str] = (),
) -> list[float]:
    """Run all streams, one step of each in turn, and draw them.

    A console that cannot redraw gets only the final frames; without a console nothing is drawn.

    Args:
        streams: Decodes in progress, or recorded ones.
        console: Where to draw, or None.
        delay: Seconds to wait after each round of the animation.
        timed: Show the seconds.
        titles: What to write above each picture; by default the strategy of the stream.

    Returns:
        The seconds that each stream took, without drawing and `delay`.
    """
    live = console is not None and can_animate(console)
    glow = GLOW if live else 0.0
    boards = [Board(stream, glow=glow, prompt=False, timed=timed) for stream in streams]
    steps = dict(enumerate(map(iter, streams)))
    seconds = [0.0] * len(streams)
    screen = LiveScreen(console, draw_side_by_side) if console and live else None
    with screen or contextlib.nullcontext():
        if screen:
            screen.show(*_frames(boards, seconds, titles))
        while steps:
            for number in [*steps]:
                began = time.monotonic()
                step = next(steps[number], None)
                seconds[number] += time.monotonic() - began
                if step is None:
                    del steps[number]
                else:
                    boards[number].add(step)
            if screen and screen.is_due(0):
                screen.show(*_frames(boards, seconds, titles))
            if screen and delay > 0 and steps:
                time.sleep(delay)
        frames = _frames(boards, seconds, titles)
        if screen:
            screen.show(*frames)
        elif console:
            _print(
                _frames(boards, seconds, titles), console
            )  # a second frame marks no commit as new
    return seconds


def _frames(
    boards: Sequence[Board], seconds: Sequence[float], titles: Sequence[str]
) -> list[Frame]:
    frames = [board.frame() for board in boards]
    timed = [
        one if one.seconds is None else one._replace(seconds=spent)
        for one, spent in zip(frames, seconds, strict=True)
    ]
    if not titles:
        return timed
    return [one._replace(strategy=title) for one, title in zip(timed, titles, strict=True)]


def layout(count: int, width: int) -> tuple[int, int]:
    """Return the pictures per line and the columns of each; four pictures make two by two."""
    most = max(1, min(count, (width + GAP) // (MIN_COLUMNS + GAP)))
    across = -(-count // -(-count // most))
    return across, (width - GAP * (across - 1)) // across


def draw_side_by_side(
    frames: Sequence[Frame], width: int, height: int, *, tops: list[int]
) -> Group:
    """Lay out the pictures in as few lines as fit; `tops` keeps the first text line of each."""
    across, column = layout(len(frames), width)
    down = -(-len(frames) // across)
    # One line for the legend, and one between two lines of pictures.
    room = max(MIN_LINES, (height - down) // down)
    table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    for _ in range(across):
        table.add_column(width=column, no_wrap=True)
    for start in range(0, len(frames), across):
        cells = []
        for number in range(start, min(start + across, len(frames))):
            rows, tops[number], _ = panel(frames[number], column, room, top=tops[number])
            cells.append(Group(*rows))
        table.add_row(*cells, *[""] * (across - len(cells)), end_section=False)
        if start + across < len(frames):
            table.add_row("")
    return Group(table, one_line(legend(width)))


def _print(frames: Sequence[Frame], console: Console) -> None:
    for frame in frames:
        # The console would style and wrap the text again, so write to its file.
        console.file.write(f"{frame.strategy}\n{plain(frame, console.width)}\n\n")
    if legend := plain_legend(frames, console.width):
        console.file.write(f"{legend}\n\n")
    console.file.flush()
