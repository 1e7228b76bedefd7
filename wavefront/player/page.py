"""Standalone HTML pages that hold the player, its style and its data in one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from string import Template
from typing import Any

import wavefront
from wavefront.player import palette
from wavefront.player.visible_text import printable

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("dom.js", "decode.js", "board.js", "charts.js", "history.js", "player.js")
START = "recorded.js"  # starts the player of a standalone page
THEME_BUTTON = (
    '<button id="theme" type="button" aria-label="Light or dark">'
    '<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="6.5" class="ring"/>'
    '<path d="M10 3.5a6.5 6.5 0 0 1 0 13z"/></svg><span>Dark</span></button>'
)


def escape(text: object) -> str:
    """Escape text for HTML, inside tags and between them."""
    valid = str(text).encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
    return html.escape(printable(valid), quote=True)


def embed(value: Any) -> str:
    """Encode JSON for a script element so that nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return the text of a file of the player."""
    return (ASSETS / name).read_text(encoding="utf-8")


def player_section(without_script: str = "") -> str:
    """Return the player's HTML; `without_script` is HTML for readers who block scripts."""
    return Template(asset("player.html")).substitute(without_script=without_script)


def standalone_page(*, title: str, header: str, main: str, data: str, style: str = "") -> str:
    """Return one HTML file; its policy lets it run its own script and load nothing.

    `header` and `main` are HTML, `data` is JSON from `embed`, and `style` is CSS to add.
    """
    style = palette.page_css() + asset("player.css") + style
    parts = [asset(name) for name in (*SCRIPTS, START)]
    script = "(() => {\n'use strict';\n" + "\n".join(parts) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(asset("page.html")).substitute(
        policy=escape(policy),
        title=escape(title),
        header=header,
        main=main,
        style=style,
        script=script,
        data=data,
        version=escape(wavefront.__version__),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
