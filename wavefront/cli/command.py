"""The click classes behind every command: examples at the end of help, and lazy loading."""

from __future__ import annotations

import textwrap
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from wavefront.core.errors import WavefrontError

UsageError: Any = typer.BadParameter.__mro__[1]  # click's class, which some typers vendor
PARAMETERS = "wavefront.parameters"  # where a context has the parameters of the running command


def shorten(line: str) -> str:
    """Truncate a line between words, for a shell that shows it next to a suggestion."""
    return textwrap.shorten(line, 60, placeholder=" …")


def _no_type(ctx: Any) -> str:
    """Return what the help page shows as the type of a flag or an argument."""
    return ""


class _Page:
    """A help page that ends with the epilog line by line, with short lines in completion."""

    epilog: str | None
    help: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # typer joins or spreads the lines of an epilog, depending on its version.
        from wavefront.cli.output import print_examples

        epilog, self.epilog = self.epilog, None
        super().format_help(ctx, formatter)  # pyright: ignore[reportAttributeAccessIssue]
        self.epilog = epilog
        print_examples(epilog or "")

    def get_params(self, ctx: Any) -> Any:
        # Newer typers write <bool> behind a flag and <str> behind an argument.
        found = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for one in found:
            typed = one.param_type_name == "option" and not one.is_flag
            if not typed and hasattr(one, "display_type_rich"):
                one.display_type_rich = _no_type
        return found

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        # fish takes the second line of an explanation for a suggestion.
        suggestions = super().shell_complete(ctx, incomplete)  # pyright: ignore[reportAttributeAccessIssue]
        for one in suggestions:
            one.help = shorten(one.help or "")
        return suggestions


class Command(_Page, TyperCommand):
    """A command. Use it as `@app.command(cls=Command, epilog=EXAMPLES)`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # typer keeps the line breaks of a docstring, so join the lines of each paragraph.
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    def invoke(self, ctx: Any) -> Any:
        ctx.meta[PARAMETERS] = dict(ctx.params)  # the contexts of a group and its command share it
        try:
            return super().invoke(ctx)
        except WavefrontError as error:
            from wavefront.cli.option_names import with_option_names

            error.args = (with_option_names(str(error), ctx), *error.args[1:])
            raise


class Group(_Page, TyperGroup):
    """A group of commands. Without a command it prints its help page and exits with status 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help(), end="")
            ctx.exit(2)
        return super().parse_args(ctx, args)


class LazyGroup(Group):
    """A group that imports a command's module when the command runs.

    `modules` maps the name of a command to its module, which defines the typer application `app`,
    to its panel on the help page, and to its line there.
    """

    modules: dict[str, tuple[str, str, str]] = {}  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, panel, line) in self.modules.items():
            self.commands[name] = TyperCommand(name, help=line, rich_help_panel=panel)

    def load(self, name: str) -> Any:
        """Import the command of this name."""
        command = typer.main.get_command(import_module(self.modules[name][0]).app)
        command.name = name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (name, self.load(name), rest) if name in self.modules else (name, command, rest)
