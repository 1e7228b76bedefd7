"""Viewer: decodes in the terminal, as an SVG animation and as an HTML report.

This package contains the terminal view (`watch`, `side_by_side`), `animation` and `html_report`. It
imports `player`, `analysis`, `lm` and what those import. Start reading at `screen.watch`.

The terminal view draws on standard error, because standard output is for the answer. Importing
this package does not import torch, so that the command line starts quickly.
"""

from wavefront.player.visible_text import printable, visible
from wavefront.viewer.cells import Board
from wavefront.viewer.screen import can_animate, watch
from wavefront.viewer.side_by_side_view import side_by_side
from wavefront.viewer.svg_animation import animation
from wavefront.viewer.terminal_layout import plain, plain_legend
from wavefront.viewer.trace_stream import TraceStream, TraceTexts

__all__ = [
    "Board",
    "TraceStream",
    "TraceTexts",
    "animation",
    "can_animate",
    "plain",
    "plain_legend",
    "printable",
    "side_by_side",
    "visible",
    "watch",
]
