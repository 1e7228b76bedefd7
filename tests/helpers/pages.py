"""Read README and docs: fenced blocks, commands, links, headings; load scripts of runs/."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[ ]?(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOTE = re.compile(r"<!-- (.+?) -->\n\Z")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+)\)")


SHELLS = {"sh": "bash", "shell": "bash"}


class Block(NamedTuple):
    """A fenced block: its language, the file that it quotes, the comment before it, its text."""

    page: Path
    line: int
    language: str
    title: str
    note: str
    text: str


class Command(NamedTuple):
    """A command of a shell block and the file that its output goes to."""

    words: list[str]
    into: str

    @property
    def text(self) -> str:
        return " ".join(self.words)


def load_script(name: str) -> Any:
    """Load a script of runs/, which is not a package. It can import the scripts beside it."""
    about = importlib.util.spec_from_file_location(name, ROOT / "runs" / f"{name}.py")
    assert about is not None
    assert about.loader is not None
    script = importlib.util.module_from_spec(about)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "runs")
        about.loader.exec_module(script)
    return script


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str = "") -> list[Block]:
    """Return the blocks of a page in order, of one language or all."""
    text = page.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        kind, rest, inside = match.groups()
        title = re.search(r'title="(.+?)"', rest)
        note = NOTE.search(text[: match.start()])
        line = text[: match.start()].count("\n") + 2
        parts = (title.group(1) if title else "", note.group(1) if note else "", inside)
        found.append(Block(page, line, SHELLS.get(kind, kind), *parts))
    return [block for block in found if language in ("", block.language)]


def commands(text: str, variables: dict[str, str]) -> list[Command]:
    """Return the commands of a shell block; assignments go to `variables`; pipes fail."""
    found: list[Command] = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&;|>")
        words.whitespace_split, words.commenters = True, "#"
        parts: list[list[str]] = [[]]
        for word in words:
            if word in ("&&", ";"):
                parts.append([])
            else:
                parts[-1].append(Template(word).safe_substitute(variables))
        for part in filter(None, parts):
            assert "|" not in part, f"pipes are not supported: {line}"
            set_ = re.fullmatch(r"([A-Z]+)=(.*)", part[0], re.DOTALL)
            if set_ is not None and len(part) == 1:
                variables[set_.group(1)] = set_.group(2)
                continue
            into = part[part.index(">") + 1] if ">" in part else ""
            found.append(Command(part[: part.index(">")] if into else part, into))
    return found


def links(page: Path) -> list[str]:
    """Return the targets of all links and images outside code."""
    text = FENCE.sub("", page.read_text("utf-8"))
    return LINK.findall(re.sub(r"`[^`\n]*`", "code", text))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    kept = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in plain]
    return {title.replace(" ", "-") for title in kept}
