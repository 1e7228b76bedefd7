"""A trace as HTML for a notebook: the player in a separate frame.

`Trace._repr_html_` finds this function by its name, because `traces` may not import this room.
"""

from __future__ import annotations

from wavefront.player.page import THEME_BUTTON, embed, escape, player_section, standalone_page
from wavefront.player.player_data import decode_record, strategy
from wavefront.player.token_text import TokenReaders
from wavefront.traces.trace import Trace

MAX_ROWS = 8  # rows of a trace that are shown
HEIGHT = 760  # pixels of the frame


def trace_html(trace: Trace) -> str:
    """Return the player of a trace in a frame, so that the notebook's style does not reach it."""
    readers = TokenReaders()
    reader, count = readers.reader(trace.about), trace.step.shape[1]
    title = strategy(trace) or "decode"
    records = [
        decode_record(
            trace.row(row),
            reader,
            title=title if count == 1 else f"{title}, row {row}",
            file="",
            trim=count > 1,
        )
        for row in range(min(count, MAX_ROWS))
    ]
    notes = (f'<p class="warning">{escape(note)}</p>' for note in readers.notes)
    page = standalone_page(
        title=title,
        header="\n".join([f'<div class="over">{THEME_BUTTON}</div>', *notes]),
        main=player_section(),
        data=embed({"options": {"sides": 1}, "decodes": [one.to_json() for one in records]}),
    )
    return (
        f'<iframe srcdoc="{escape_attribute(page)}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {HEIGHT}px; border: 0" title="{escape(title)}"></iframe>'
    )


def escape_attribute(page: str) -> str:
    """Escape a whole page for an attribute. Unlike `escape`, this keeps every character."""
    return page.replace("&", "&amp;").replace('"', "&quot;")
