"""The `wavefront` program: its commands, and how errors become messages and exit codes.

Exit codes: 0 success; 1 an error, explained in one sentence; 2 a wrong command line; 130
interrupted; 141 the reader of standard output has gone.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from wavefront.cli.command import LazyGroup, UsageError
from wavefront.core.errors import WavefrontError, WavefrontWarning, did_you_mean

EXAMPLES = """\
Start with
wavefront demo
wavefront generate "I have two figs and a pear. How many fruits?" --watch
wavefront generate "I have two figs and a pear. How many fruits?" -s block
wavefront infill "The <mask:4> jumps over the <mask:4> dog." --watch
"""
# Name: module in this package, and the first sentence of the command's docstring (a test compares).
COMMANDS = {
    "demo": ("demo", "Watch the built-in model decode, then compare four strategies."),
    "generate": ("generate", "Answer a prompt, or continue a text."),
    "chat": ("chat", "Chat with a model that has a chat template."),
    "infill": ("infill", "Fill the gaps in a text. <mask:8> marks a gap of eight tokens."),
    "compare": ("compare", "Decode one prompt with several strategies side by side."),
    "serve": ("serve", "Serve a model with OpenAI's API and a page that shows each decode live."),
    "list": ("list", "List strategies, selectors, caches, models and tasks."),
    "eval": ("eval", "Evaluate a model on tasks, and compare the results."),
    "trace": ("trace", "Record decodes, and show, replay, fork, draw or export them."),
    "paper": ("paper", "Reproduce the experiments of the paper."),
    "report": ("report", "Write an HTML report of recorded decodes and runs."),
    "tune": ("tune", "Find the strategy that suits your prompts."),
    "bench": ("bench", "Measure how long a decoding step takes on this machine."),
    "train": ("train", "Train a small diffusion language model on the procedural tasks."),
    "lm-eval": ("lm_eval", "Evaluate with lm-eval, EleutherAI's evaluation harness."),
}


class Program(LazyGroup):
    """The group of all commands. It turns exceptions into messages and exit codes."""

    modules = {name: (f"wavefront.cli.{file}", line) for name, (file, line) in COMMANDS.items()}  # noqa: RUF012

    def main(self, *args: Any, standalone_mode: bool = True, **settings: Any) -> Any:
        with warnings.catch_warnings():
            _show_warnings()
            try:
                code = super().main(*args, standalone_mode=False, **settings)
            except UsageError as error:
                _complain("error", _usage_message(error))
                path = error.ctx.command_path if error.ctx else "wavefront"
                print(f"Try '{path} --help'.", file=sys.stderr)
                code = 2
            except WavefrontError as error:
                _complain("error", str(error))
                code = 1
            except typer.Abort:
                code = 130
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WavefrontError:
            if ctx.meta.get("debug"):
                traceback.print_exc()
            raise
        except BrokenPipeError:
            # The interpreter flushes standard output once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "OutOfMemory" not in type(error).__name__:
                raise
            raise WavefrontError(
                "Out of memory: try a smaller -n or --batch-size, or --dtype bfloat16."
            ) from error


app = typer.Typer(
    cls=Program,
    name="wavefront",
    help="Decoding for diffusion language models.",
    epilog=EXAMPLES,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        import wavefront
        from wavefront.storage.provenance import commit

        parts = [f"commit {known}"] if (known := commit()) else []
        parts.append(f"torch {metadata.version('torch')}")
        print(f"wavefront {wavefront.__version__} ({', '.join(parts)})")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Accept the options of the program itself."""


def main() -> None:
    """Run the command line. This is the console script."""
    # Strategies may live in the current directory, which a console script does not search. It goes
    # last, so that no file there can replace an installed module.
    if "" not in sys.path and not sys.flags.safe_path:
        sys.path.append("")
    # Threads that spin while they wait make small models many times slower on a busy machine.
    # torch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    # Exit through an exception, so that an animation restores the cursor.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    app(prog_name="wavefront")


def _usage_message(error: Any) -> str:
    """Explain in one sentence what is wrong with the command line."""
    message: str = error.format_message()
    if type(error).__name__ == "NoSuchOption":
        # Suggest aliases too: a user who almost writes one knows it from elsewhere.
        options = [name for one in error.ctx.command.params for name in one.opts]
        known = [name for name in options if name.startswith("--")]
        begun = [name for name in known if name.startswith(error.option_name)]
        hint = did_you_mean(error.option_name, begun or known)
        return f"There is no option {error.option_name}{hint}."
    if message.startswith("Got unexpected extra arg"):
        return f"{message}; put a prompt of several words in quotes."
    return message


def _show_warnings() -> None:
    """Print each of our warnings once, as a sentence on standard error."""
    default, shown = warnings.showwarning, set[str]()

    def show(message: Any, category: type[Warning], *position: Any, **more: Any) -> None:
        if not issubclass(category, WavefrontWarning):
            default(message, category, *position, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            _complain("warning", str(message))

    warnings.showwarning = show
    warnings.simplefilter("always", WavefrontWarning)


def _complain(kind: str, sentence: str) -> None:
    from wavefront.cli.output import complain  # it imports rich, which completion does not need

    complain(kind, sentence)
