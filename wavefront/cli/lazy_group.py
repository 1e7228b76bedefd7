"""Commands that are listed before they are loaded: a group knows its lines, a call brings one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from wavefront.cli.commands import TRACE, Entry
from wavefront.cli.shell_completion import brief

HELP = {"help_option_names": ["--help", "-h"]}


class Command(TyperCommand):
    """A command whose help page ends with examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # typer's own epilog runs lines together in one version and spreads them in another.
        examples, self.epilog = self.epilog, None
        super().format_help(ctx, formatter)
        self.epilog = examples
        _print_examples(*(examples or "").split("\n\n"))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return _in_brief(super().shell_complete(ctx, incomplete))


class Sketch(TyperCommand):
    """A command by its line alone: parsing a command line brings the whole one."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name=name, help=entry.line, rich_markup_mode="rich")
        self.entry = entry

    @cached_property
    def whole(self) -> Any:
        module_name, _, name = self.entry.where.partition(".")
        module = import_module(f"wavefront.cli.{module_name}")
        found = getattr(module, name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        examples = getattr(module, self.entry.examples) if self.entry.examples else ""
        settings = getattr(module, self.entry.settings) if self.entry.settings else None
        return _build(found, self.name or name, examples, settings)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        return self.whole.make_context(info_name, args, *more, **extra)


class Shelf(TyperGroup):
    """A group of sketches."""

    table: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in self.table.items():
            self.commands[name] = Sketch(name, entry)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return _in_brief(super().shell_complete(ctx, incomplete))


class Family(Shelf):
    """A group within the group, whose help page ends with examples too."""

    table = TRACE

    def format_help(self, ctx: Any, formatter: Any) -> None:
        examples, self.epilog = self.epilog, None
        super().format_help(ctx, formatter)
        self.epilog = examples
        _print_examples(examples or "")


def help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")
        raise typer.Exit(2)


def _build(
    command: Callable[..., None], name: str, examples: str, settings: dict[str, Any] | None
) -> Any:
    from wavefront.cli.option_groups import expand

    # typer keeps the line breaks of a docstring, and then breaks the lines again.
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    one = typer.Typer(add_completion=False, rich_markup_mode="rich")
    given = {"help": text, "epilog": examples, "context_settings": settings}
    one.command(name, cls=Command, **given)(expand(command))
    return typer.main.get_command(one)


def _in_brief(suggestions: list[Any]) -> list[Any]:
    for one in suggestions:
        one.help = brief(one.help or "")
    return suggestions


def _print_examples(*parts: str) -> None:
    from wavefront.cli.output import print_examples

    for part in parts:
        print_examples(part)
