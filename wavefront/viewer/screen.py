"""Watch a decode: an animation on a terminal, snapshots in a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wavefront.viewer.cells import GLOW, Board
from wavefront.viewer.terminal_layout import Frame, draw, headline, plain, plain_legend

if TYPE_CHECKING:
    from wavefront.core.state import Step
    from wavefront.lm import Stream
    from wavefront.viewer.trace_stream import TraceStream

PAUSE = 1 / 15  # minimum seconds between two drawings
# Lays out frames: draw(frames, width, height, tops=first text line of each).
Draw = Callable[..., Group]
SNAPSHOTS = 4  # printed where the console cannot redraw


def watch(
    stream: Stream | TraceStream,
    *,
    console: Console | None = None,
    row: int = 0,
    delay: float = 0.0,
    live: bool | None = None,
    transient: bool = False,
    prompt: bool = True,
    timed: bool = True,
) -> Iterator[Step]:
    """Draw one row of a stream and yield its steps.

    Args:
        stream: A decode in progress, or a recorded one.
        console: Where to draw. Default: standard error.
        row: The row to draw.
        delay: Seconds to wait after each step.
        live: True for an animation, False for snapshots. Default: whether the console can redraw.
        transient: Keep only one line of the animation at the end.
        prompt: Show the prompt before the answer.
        timed: Show the seconds.
    """
    console = console or Console(stderr=True)
    live = can_animate(console) if live is None else live
    board = Board(stream, row, glow=GLOW if live else 0.0, prompt=prompt, timed=timed)
    moving = LiveScreen(console, _draw_one, transient=transient)
    screen = moving if live else _Printer(console, board.steps)
    with screen:
        screen.show(board.frame())
        for step in stream:
            board.add(step)
            if screen.is_due(board.step):
                screen.show(board.frame())
            yield step
            if delay > 0:
                time.sleep(delay)
        screen.show(board.frame())
    if live and transient:
        console.print(Text(headline(board.frame(), console.width), "dim"))


def can_animate(console: Console) -> bool:
    """Return whether the console can redraw its lines."""
    return console.is_terminal and not console.is_dumb_terminal


class LiveScreen:
    """An animation of one or more frames on a terminal."""

    def __init__(self, console: Console, draw: Draw, *, transient: bool = False) -> None:
        self._console, self._draw = console, draw
        self._tops: list[int] = []
        self._drawn = 0.0
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=transient,
            redirect_stdout=False,  # redirecting would send the answer to standard error
            vertical_overflow="crop",
        )

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._live.__exit__(None, None, None)

    def is_due(self, step: int) -> bool:
        return time.monotonic() - self._drawn >= PAUSE

    def show(self, *frames: Frame) -> None:
        self._tops = self._tops or [0] * len(frames)
        width, height = self._console.size
        self._live.update(self._draw(frames, width, height - 1, tops=self._tops), refresh=True)
        self._drawn = time.monotonic()


def _draw_one(frames: Sequence[Frame], width: int, height: int, *, tops: list[int]) -> Group:
    picture, tops[0] = draw(frames[0], width, height, top=tops[0])
    return picture


class _Printer:
    """Snapshots for a console that is a file or a pipe."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._due = console, [steps * n // SNAPSHOTS for n in range(1, SNAPSHOTS)]
        self._frames: list[Frame] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *problem: object) -> None:
        if legend := plain_legend(self._frames, self._console.width):
            self._print(f"{legend}\n")

    def is_due(self, step: int) -> bool:
        due = bool(self._due) and step >= self._due[0]
        self._due = [number for number in self._due if number > step]
        return due

    def show(self, frame: Frame) -> None:
        if self._frames and frame.step == self._frames[-1].step:
            return  # this step was printed before
        if not self._frames:
            self._print(frame.strategy)
        self._frames.append(frame)
        self._print(plain(frame, self._console.width) + "\n")

    def _print(self, text: str) -> None:
        # The console would style and wrap the text again, so write to its file.
        self._console.file.write(text + "\n")
        self._console.file.flush()
