"""Pages: the files of `page/`, served as they are, and the file that is shared, made of them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template
from typing import Any

from starlette.responses import Response

FILES = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
# What a shared file needs to be played; the rest talks to a server.
PLAYER = ("dom.js", "reel.js", "board.js", "charts.js", "player.js")


class Pages:
    """The page's own files, read once."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.files = {
            f"/{path.name}": (path.read_bytes(), KINDS[path.suffix])
            for path in sorted(FILES.iterdir())
            if path.suffix in KINDS and path.name not in ("index.html", "share.html")
        }
        self.files["/"] = ((FILES / "index.html").read_bytes(), "text/html")
        self.files["/share.html"] = (share().encode(), "text/html")

    def mount(self, app: Any) -> frozenset[str]:
        """Add a route for each; the paths."""
        for path, (content, kind) in self.files.items():
            app.add_api_route(
                path, _sender(content, kind), response_class=Response, include_in_schema=False
            )
        return frozenset(self.files)


def _sender(content: bytes, kind: str) -> Any:
    headers = {"cache-control": "no-cache", "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    async def send() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)

    return send


def share() -> str:
    """A page in one piece that lacks only its data; its policy lets it run this and load nothing.

    The data goes where `__DATA__` stands, as JSON in which no `<` is left.
    """
    style = _text("page.css")
    parts = [_text(name) for name in PLAYER]
    script = "'use strict';\n" + "\n".join(parts) + "\nstartShared();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(_text("share.html")).substitute(policy=policy, style=style, script=script)


def _text(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
