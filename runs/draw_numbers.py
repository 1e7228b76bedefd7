"""Draw ten numbers from the README and the results, to check them by running their commands again.

    python runs/draw_numbers.py                  # for the current commit
    python runs/draw_numbers.py COMMIT --count 5

The commit's hash is the seed, so nobody chooses the numbers, and everybody who draws for the same
commit and the same pages gets the same ones. Every page gives at most one number. A number is a
value of a table, without its interval, or a decimal number or a percentage of a list. Numbers of
the paper, settings, sizes of samples and seconds are left out. The command is the one that stands
next to the number, that of the page which is linked there, or the page's own. A number without a
command is drawn too, and says so.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SUMMARIES = "docs/results/*/summary.md"
COUNT = 10
NO_COMMAND = "none on the page"
VALUE = re.compile(r"[+-−]?\d[\d,]*(?:\.\d+)?(?= ?(?:%|\[|$))")  # at the start of a cell
SENTENCE_VALUE = re.compile(r"(?<![\w.=/])[+-−]?\d[\d,]*(?:\.\d+(?: %)?| %)(?![\w.]*[\w=])")
COMMAND = re.compile(r"`((?:python runs/|wavefront (?:paper|bench|eval|tune) )[^`]+)`")
SETTINGS = ("N", "T", "F", "R", "refresh", "steps", "step", "size", "radius", "seed")
NOT_FOUND = re.compile(r"^(?:|n|items|p|p \(.*\)|seconds|paper.*)$")  # columns that say nothing new
NOT_MEASURED = (
    r"^```.*?^```$",
    r"^<summary>Configuration</summary>.*?^</details>$",
    r"^## (?:The paper's numbers|Points of the paper).*?(?=^## |\Z)",
)


class Number(NamedTuple):
    """A number, where it stands, and the command that gives it again."""

    page: str
    line: int
    value: str
    text: str  # the row with its column, or the sentence
    command: str


def read_numbers(page: Path, root: Path = ROOT) -> list[Number]:
    """Return the numbers of a page, in order."""
    lines = _measured_lines(page)
    own = _page_command(page)
    found: list[Number] = []
    columns: list[str] = []
    section = ""
    for at, line in enumerate(lines, 1):
        if line.startswith("#"):
            section = ""
        linked = _linked_command(page, line)
        if not line.startswith("|") and (named := COMMAND.search(line) or linked):
            section = named if isinstance(named, str) else named[1]
        command = linked or section or own or NO_COMMAND
        where = page.relative_to(root).as_posix()
        if not line.startswith("|"):
            columns = []
            if line.startswith(("* ", "    * ")):
                found += [
                    Number(where, at, match[0].strip(), line.strip(), command)
                    for match in SENTENCE_VALUE.finditer(_without_code(line))
                ]
        elif not columns:
            columns = _cells(line)
        elif not set(line) <= {"|", "-"}:
            found += [
                Number(where, at, value, f"{label}: {column}", command)
                for label, column, value in _table_values(columns, _cells(line))
            ]
    return found


def _measured_lines(page: Path) -> list[str]:
    """Return the lines of a page; code, the configuration and the paper's numbers are empty.

    Of the README only the section with results counts.
    """
    text = page.read_text("utf-8")
    for part in NOT_MEASURED:
        text = re.sub(part, lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    lines = text.splitlines()
    if page.name != "README.md":
        return lines
    start = lines.index("## Results")
    end = next(n for n in range(start + 1, len(lines)) if lines[n].startswith("## "))
    return [line if start < n < end else "" for n, line in enumerate(lines)]


def _page_command(page: Path) -> str:
    """Return the command that made a page: that of its configuration, or the first one it names."""
    text = page.read_text("utf-8")
    recorded = re.search(r"^\* command: `(.+)`$", text, re.M) or COMMAND.search(text)
    return recorded[1] if recorded and page.name == "summary.md" else ""


def _linked_command(page: Path, line: str) -> str:
    """Return the command of the first page of results that a line links to."""
    for link in re.findall(r"\]\(([^)#]+summary\.md)", line):
        linked = (page.parent / link).resolve()
        if linked.is_file() and (command := _page_command(linked)):
            return command
    return ""


def _without_code(line: str) -> str:
    """Blank out code, links, and the bounds of intervals."""
    for part in (r"`[^`]*`", r"\]\([^)]*\)", r"\[[+-−]?\d[^\]]*\]"):
        line = re.sub(part, lambda m: " " * len(m[0]), line)
    return line


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _table_values(columns: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the label of the row, the column and the value, for every measured cell."""
    if "claim" in columns[0]:  # the paper's claims: their numbers are those of the tables below
        return
    named = [*zip(columns, cells, strict=False)]
    words = [cell for _, cell in named if cell not in ("", "–") and not VALUE.match(cell)]
    sizes = [f"{name} = {cell}" for name, cell in named if name in SETTINGS and VALUE.match(cell)]
    label = ", ".join([*words[:4], *sizes])
    for column, cell in named:
        match = VALUE.match(cell)
        if match and column not in SETTINGS and not NOT_FOUND.match(column):
            yield label, column, match[0]


def draw(commit: str, pages: Sequence[Path], count: int = COUNT, root: Path = ROOT) -> list[Number]:
    """Draw numbers from different pages; the same commit and pages give the same numbers."""
    source = random.Random(commit)
    known = {page: found for page in sorted(pages) if (found := read_numbers(page, root))}
    chosen = source.sample([*known], min(count, len(known)))
    return [source.choice(known[page]) for page in chosen]


def result_pages(root: Path = ROOT) -> list[Path]:
    """Return the pages to draw from: the README, the summary of all results, and every page."""
    return [root / "README.md", root / "docs/results.md", *sorted(root.glob(SUMMARIES))]


def head(root: Path = ROOT) -> str:
    """Return the hash of the current commit."""
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the numbers that are drawn for a commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", nargs="?", help="the seed; default: the current commit")
    parser.add_argument("--count", type=int, default=COUNT)
    given = parser.parse_args(arguments)
    commit = given.commit or head()
    print(f"commit {commit}")
    for number, one in enumerate(draw(commit, result_pages(), given.count), 1):
        print(f"\n{number}. {one.value}\n   {one.text}\n   {one.page}:{one.line}")
        print(f"   {one.command}")


if __name__ == "__main__":
    main()
