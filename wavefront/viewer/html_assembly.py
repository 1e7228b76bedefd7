"""The page: the files of `page/` and what was made of the inputs, in one HTML text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import wavefront
from wavefront.results.table import Run
from wavefront.viewer import html_parts

ASSETS = Path(__file__).parents[1] / "player" / "assets"
TEMPLATE = Path(__file__).parent / "report.html"
# Of a trace's header: what its tokens read as, and all that was said of what it is a fork of.
LONG = ("texts", "special_ids", "of")
SCRIPTS = ("dom.js", "reel.js", "board.js", "map.js", "history.js", "player.js", "theme.js")


def assemble(
    *,
    title: str,
    runs: Sequence[Run],
    reels: Sequence[dict[str, Any]],
    texts: Sequence[str],
    traces: Sequence[tuple[str, Mapping[str, Any]]],
    notes: Sequence[str],
) -> str:
    """One HTML text that asks for nothing: the policy in its head forbids it to."""
    style = _file("style.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_file, SCRIPTS)) + "})();\n"
    sections = [(f"run-{n}", one) for n, one in enumerate(runs, 1)]
    links = [("player", "Player")] if reels else []
    links += [(name, one.title) for name, one in sections]
    links += [("configuration", "Configuration")] if traces else []
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        policy=html_parts.escape(policy(style, script)),
        title=html_parts.escape(title),
        style=style,
        script=script,
        links=_links(links),
        lead=html_parts.escape(lead(reels, traces)),
        notes="".join(f'<p class="warning">{html_parts.escape(one)}</p>' for one in notes),
        player=Template(_file("player.html")).substitute(answers=html_parts.answers(reels, texts))
        if reels
        else "",
        overview=html_parts.overview(reels) if reels else "",
        runs="".join(html_parts.section(one, name) for name, one in sections),
        configuration=_configuration(traces),
        data=html_parts.embed({"texts": texts, "reels": reels}),
        version=html_parts.escape(wavefront.__version__),
    )


def policy(style: str, script: str) -> str:
    """What the page may do: run this script, use this style, show images that it holds."""
    return (
        "default-src 'none'; "
        f"script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def lead(reels: Sequence[dict[str, Any]], traces: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A sentence under the title."""
    if not reels:
        return ""
    models = dict.fromkeys(str(about.get("model") or "") for _, about in traces)
    named = [one for one in models if one]
    by = f" by {', '.join(named)}" if named else ""
    lengths = sorted({len(one["final"]) for one in reels})
    places = (
        f"{lengths[0]} places" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} places"
    )
    count = {1: "One decode", 2: "Two decodes"}.get(len(reels), f"{len(reels)} decodes")
    return f"{count}{by}, {places} to fill, recorded step by step."


def _file(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _links(links: Sequence[tuple[str, str]]) -> str:
    if len(links) < 3:  # the page is short enough to be seen
        return ""
    items = "".join(f'<a href="#{name}">{html_parts.escape(words)}</a>' for name, words in links)
    return f'<nav aria-label="Contents">{items}</nav>'


def _configuration(traces: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    if not traces:
        return ""
    shown = [(title, _short(about)) for title, about in traces]
    made = html_parts.configuration(shown, "As recorded in the traces")
    return f'<section id="configuration"><h2>Configuration</h2>{made}</section>'


def _short(about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _short(value) if isinstance(value, dict) else value
        for name, value in about.items()
        if name not in LONG
    }
