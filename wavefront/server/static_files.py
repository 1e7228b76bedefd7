"""The files of the server's page, and the standalone page that it shares.

The form is in `page/`. The player, its style and its colours come from `wavefront.player`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from string import Template
from typing import Any

from starlette.responses import Response

from wavefront.player import palette
from wavefront.player.page import SCRIPTS, THEME_BUTTON, asset, player_section, standalone_page

FORM = Path(__file__).parent / "page"
FORM_SCRIPTS = ("cards.js", "live.js")


class StaticFiles:
    """The files of the page by path, with their media types."""

    def __init__(self) -> None:
        scripts = {name: asset(name) for name in SCRIPTS}
        scripts |= {name: _form_file(name) for name in FORM_SCRIPTS}
        styles = {
            "palette.css": palette.page_css(),
            "player.css": asset("player.css"),
            "page.css": _form_file("page.css"),
        }
        index = Template(_form_file("index.html")).substitute(
            player=player_section(),
            theme_button=THEME_BUTTON,
            scripts="\n".join(f'<script src="{name}"></script>' for name in scripts),
        )
        self.files = {
            "/": (index, "text/html"),
            "/share.html": (shared_page(), "text/html"),
            **{f"/{name}": (text, "text/javascript") for name, text in scripts.items()},
            **{f"/{name}": (text, "text/css") for name, text in styles.items()},
        }

    def mount(self, app: Any) -> frozenset[str]:
        """Add a route for each file and return the paths."""
        for path, (text, kind) in self.files.items():
            app.add_api_route(
                path, _sender(text.encode(), kind), response_class=Response, include_in_schema=False
            )
        return frozenset(self.files)


def shared_page() -> str:
    """Return a standalone page without its data.

    The browser replaces `__DATA__` with JSON in which every `<` is escaped.
    """
    return standalone_page(
        title="wavefront: a decode",
        header=f'<div class="over"><span>wavefront <b id="model"></b></span>{THEME_BUTTON}</div>',
        main=player_section(),
        data="__DATA__",
    )


def _sender(content: bytes, kind: str) -> Any:
    headers = {"cache-control": "no-cache", "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    async def send() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)

    return send


def _form_file(name: str) -> str:
    return (FORM / name).read_text(encoding="utf-8")
