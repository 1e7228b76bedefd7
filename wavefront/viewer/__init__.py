"""Watch: a decode drawn in the terminal as it happens, a cell per token.

A consumer of steps: `for step in watch(stream): ...` draws, and passes every step on. In a terminal
the picture is redrawn in place; anywhere else a few snapshots are printed as plain text. All of it
goes to standard error, because standard output is for the answer.

`board` turns steps into frames, `picture` frames into text, `screen` puts that where it is seen,
`side` several at once; `film` makes steps of a trace, so that it can be watched again, and
`animation` a picture that plays by itself.
Nothing here imports torch, so that the command line starts at once.
"""

from wavefront.player.visible_text import printable, visible
from wavefront.viewer.cells import Board
from wavefront.viewer.screen import can_animate, watch
from wavefront.viewer.side_by_side_view import side_by_side
from wavefront.viewer.svg_animation import animation
from wavefront.viewer.terminal_layout import plain
from wavefront.viewer.trace_stream import Film, Texts

__all__ = [
    "Board",
    "Film",
    "Texts",
    "animation",
    "can_animate",
    "plain",
    "printable",
    "side_by_side",
    "visible",
    "watch",
]
