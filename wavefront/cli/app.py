"""The command `wavefront`: its commands, and what becomes of an error.

Exit codes: 0 fine, 1 an error that one sentence explains, 2 a command line that cannot be read,
130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer

from wavefront.cli.commands import COMMANDS
from wavefront.cli.lazy_group import HELP, Shelf, help_without_command
from wavefront.cli.usage import UsageError, explain_usage
from wavefront.core.errors import WavefrontError, WavefrontWarning

EXAMPLES = """\
Start with
wavefront demo
wavefront generate "I have two figs and a pear. How many fruits?" --watch
wavefront generate "I have two figs and a pear. How many fruits?" -s block
wavefront infill "The <mask:4> jumps over the <mask:4> dog." --watch
"""


class Commands(Shelf):
    """The group of all commands; what they raise becomes a sentence and an exit code."""

    table = COMMANDS

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        with warnings.catch_warnings():
            _show_warnings()
            try:
                code = super().main(
                    args, prog_name, complete_var, False, windows_expand_args, **extra
                )
            except UsageError as error:
                code = explain_usage(error)
            except WavefrontError as error:
                _complain("error", str(error))
                code = 1
            except typer.Abort:
                code = 130
        sys.exit(code if isinstance(code, int) else 0)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from wavefront.cli.output import print_examples

        print_examples(EXAMPLES)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The interpreter flushes standard output once more on its way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "OutOfMemory" not in type(error).__name__:
                raise
            raise WavefrontError(
                "Out of memory: try a smaller -n or --batch-size, or --dtype bfloat16."
            ) from error


app = typer.Typer(
    cls=Commands,
    name="wavefront",
    help="Decoding for diffusion language models.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=HELP,
)


def _print_version(asked: bool) -> None:
    if asked:
        from wavefront.cli.list_models import say_version

        say_version()
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it, leave."),
    ] = False,
) -> None:
    help_without_command(context)


def main() -> None:
    """The console script."""
    # Strategies may live in the current directory, where a console script does not look; last, so
    # that no file there can stand in for an installed module.
    if "" not in sys.path and not sys.flags.safe_path:
        sys.path.append("")
    # Threads that spin while they wait make small models many times slower on a busy machine. It
    # has to be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    # Leave by way of the exception, so that a picture being drawn gives the cursor back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    app(prog_name="wavefront")


def _show_warnings() -> None:
    """Each of our warnings once, as a sentence on standard error."""
    usual, shown = warnings.showwarning, set[str]()

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, WavefrontWarning):
            usual(message, category, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            _complain("warning", str(message))

    warnings.showwarning = show
    warnings.simplefilter("always", WavefrontWarning)


def _complain(kind: str, sentence: str) -> None:
    from wavefront.cli.output import complain

    complain(kind, sentence)
