"""Write docs/cli.md, the reference of the command line, from the commands themselves.

python runs/cli_page.py

A test compares the page with the commands. Options that several commands share are listed once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from wavefront.cli.app import PANELS, app
from wavefront.train.command import actions

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
SHARED = 3  # an option that this many commands have is listed once
INTRO = """\
# Command line

`wavefront COMMAND --help` shows this text on a terminal, with examples.
`python runs/cli_page.py` writes this page from the commands; do not edit it.
"""
SHARED_INTRO = """\
## Shared options

Several commands take these options. They mean the same everywhere.
"""


class Option(NamedTuple):
    """An option or argument as the page shows it."""

    names: str
    metavar: str
    help: str
    panel: str

    @property
    def name(self) -> str:
        """The longest of its names that turns it on."""
        return next(one for one in self.names.split(", ") if one.startswith("--"))

    def row(self) -> str:
        written = f"{self.names} {self.metavar}".strip()
        return f"| `{written}` | {_cell(self.help)} |"


class Page(NamedTuple):
    """A command: its words, its usage line, its description and its options."""

    words: tuple[str, ...]
    usage: str
    text: str
    options: list[Option]

    @property
    def title(self) -> str:
        return " ".join(("wavefront", *self.words))

    @property
    def anchor(self) -> str:
        return self.title.replace(" ", "-")


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("\\[", "[").replace("|", "\\|")
    # Code keeps its signs; elsewhere < would start a tag.
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*")
        for part in parts
    )


def _option(one: Any) -> Option:
    if one.param_type_name == "argument":
        return Option(one.metavar or one.name.upper(), "", one.help or "", "Arguments")
    names = ", ".join([*one.opts[::-1], *one.secondary_opts])
    metavar = "" if one.is_flag else one.metavar or ""
    return Option(names, metavar, one.help or "", one.rich_help_panel or "Options")


def pages() -> Iterator[Page]:
    """Yield every command that does something, in the order of the help page."""
    program: Any = typer.main.get_command(app)
    for name in (name for panel in PANELS.values() for name in panel):
        yield from _pages(program.load(name), (name,))


def _pages(command: Any, words: tuple[str, ...]) -> Iterator[Page]:
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _pages(one, (*words, name))
        return
    with command.make_context(" ".join(("wavefront", *words)), [], resilient_parsing=True) as ctx:
        usage = " ".join((ctx.command_path, *command.collect_usage_pieces(ctx)))
    found = [_option(one) for one in command.params if not getattr(one, "hidden", False)]
    yield Page(words, usage, command.help or "", found)
    if words == ("train",):
        yield from _train_pages()


def _train_pages() -> Iterator[Page]:
    """Yield the actions of `wavefront train`, whose options come from argparse."""
    for name, parser in actions().items():
        found = [
            Option(
                ", ".join(one.option_strings),
                "" if one.nargs == 0 else str(one.metavar or ""),
                (one.help or "").replace("%%", "%"),
                "Options",
            )
            for one in parser._actions
            if one.option_strings
        ]
        yield Page(("train", name), f"wavefront train {name} [OPTIONS]", parser.description, found)


def text() -> str:
    """Return the page."""
    every = [*pages()]
    users: dict[Option, list[Page]] = defaultdict(list)
    for page in every:
        for one in page.options:
            users[one].append(page)
    shared = {
        one for one, some in users.items() if len(some) >= SHARED and one.panel != "Arguments"
    }
    parts = [INTRO, *_contents(every), *(_section(page, shared) for page in every), SHARED_INTRO]
    panels: dict[str, list[Option]] = defaultdict(list)
    for one in users:
        if one in shared:
            panels[one.panel].append(one)
    # "Options" is the panel of an option without a better name, so it goes last.
    for panel, options in sorted(panels.items(), key=lambda pair: pair[0] == "Options"):
        title = "Other options" if panel == "Options" else panel
        parts.append(f"### {title}\n\n{_table(options)}")
    return "\n".join(parts)


def _contents(every: list[Page]) -> Iterator[str]:
    for panel, commands in PANELS.items():
        rows = [
            f"| [`{page.title}`](#{page.anchor}) | {_cell(page.text.partition(chr(10) * 2)[0])} |"
            for page in every
            if page.words[0] in commands
        ]
        yield f"**{panel}**\n\n| command | what it does |\n|---|---|\n" + "\n".join(rows) + "\n"


def _section(page: Page, shared: set[Option]) -> str:
    own = [one for one in page.options if one not in shared]
    others = [one for one in page.options if one in shared]
    paragraphs = "\n\n".join(_cell(one) for one in page.text.split("\n\n"))
    lines = [f"## {page.title}\n\n{paragraphs}\n\nUsage: `{page.usage}`\n"]
    if own:
        lines.append(
            f"<details markdown>\n<summary>Options</summary>\n\n{_table(own)}\n</details>\n"
        )
    if others:
        names = ", ".join(f"`{one.name}`" for one in others)
        lines.append(f"It also takes [shared options](#shared-options): {names}.\n")
    return "\n".join(lines)


def _table(options: list[Option]) -> str:
    return "| option | meaning |\n|---|---|\n" + "\n".join(one.row() for one in options) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
    print(f"{PAGE.relative_to(Path.cwd())} is written.")
