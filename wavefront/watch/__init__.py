"""Watch: a decode drawn in the terminal as it happens, a cell per token.

A consumer of steps: `for step in watch(stream): ...` draws, and passes every step on. In a terminal
the picture is redrawn in place; anywhere else a few snapshots are printed as plain text. All of it
goes to standard error, because standard output is for the answer.

`board` turns steps into frames, `picture` frames into text, `screen` puts that where it is seen.
Nothing here imports torch, so that the command line starts at once.
"""

from wavefront.watch.board import Board
from wavefront.watch.picture import printable, visible
from wavefront.watch.screen import can_animate, watch

__all__ = ["Board", "can_animate", "printable", "visible", "watch"]
