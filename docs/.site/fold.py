"""Fold parts of long pages: a reader sees their headings and opens what they need.

`extra.fold` in mkdocs.yml maps a page to the headings to fold: an id, which may
have wildcards, or a level such as `h3`. `objects` are the classes and functions of the reference.
The Markdown stays plain. A link to a heading or to a place inside a folded part opens it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

HEADING = re.compile(r'(?=<h([2-6])\b[^>]*\bid="([^"]+)")')
TITLE = re.compile(r"<h([2-6])\b.*?</h\1>", re.DOTALL)
OBJECT = re.compile(
    r'(<div class="doc doc-object doc-(?:class|function)">\s*)(<h3\b.*?</h3>)', re.DOTALL
)
SENTENCE = re.compile(r"<p>(.*?)(?:[.:](?=\s)|[.:]?</p>)", re.DOTALL)
DIV = re.compile(r"<div\b|</div>")


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Fold the parts of a page that mkdocs.yml lists."""
    patterns = config.extra.get("fold", {})
    wanted = [
        one for path, some in patterns.items() if fnmatch(page.file.src_uri, path) for one in some
    ]
    if "objects" in wanted:
        html = "".join(_fold_objects(html))
    return "".join(_fold_sections(html, wanted)) if wanted else html


def folded(title: str, inside: str) -> str:
    """Return a part that opens with a click on its title; its first sentence stands beside it."""
    found = SENTENCE.search(re.sub(r"<summary>.*?</summary>", "", inside, flags=re.DOTALL))
    text = re.sub(r"<[^>]+>", "", found[1]) if found else ""
    preview = f'<span class="preview">{text}</span>' if text else ""
    return f'<details class="fold"><summary>{title}{preview}</summary>{inside}</details>'


def _fold_sections(html: str, wanted: Sequence[str]) -> Iterator[str]:
    """Fold each wanted heading with what follows it, up to the next heading of its level."""
    starts = [(match.start(), int(match[1]), match[2]) for match in HEADING.finditer(html)]
    yield html[: starts[0][0]] if starts else html
    number = 0
    while number < len(starts):
        start, level, name = starts[number]
        fold = any(fnmatch(name, one) or one == f"h{level}" for one in wanted)
        number += 1
        while fold and number < len(starts) and starts[number][1] > level:
            number += 1
        end = starts[number][0] if number < len(starts) else len(html)
        part = html[start:end]
        title = TITLE.match(part)
        yield folded(title[0], part[title.end() :]) if fold and title else part


def _fold_objects(html: str) -> Iterator[str]:
    """Fold every class and function of the reference below its name."""
    at = 0
    while match := OBJECT.search(html, at):
        depth, end = 1, match.end()
        while depth:
            tag = DIV.search(html, end)
            assert tag is not None
            depth += 1 if tag[0] == "<div" else -1
            inside, end = tag.start(), tag.end()
        yield html[at : match.start()] + match[1] + folded(match[2], html[match.end() : inside])
        at = inside
    yield html[at:]
