"""The `wavefront` program: its commands, and how errors become messages and exit codes.

Exit codes: 0 success; 1 an error, explained in one sentence; 2 a wrong command line; 130
interrupted; 141 standard output was closed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from wavefront.cli.command import PARAMETERS, LazyGroup, UsageError
from wavefront.core.errors import WavefrontError, WavefrontWarning, did_you_mean

EXAMPLES = """\
Start with
wavefront demo
wavefront generate "I have two figs and a pear. How many fruits?" --watch
wavefront generate "I have two figs and a pear. How many fruits?" -s block
wavefront infill "Once upon a time there was a <mask:6>. She <mask:12>."
"""
# The panels of the help page: name, then module in this package and the first sentence of the
# command's docstring (a test compares). A line fits a terminal of 80 columns.
PANELS = {
    "Decode": {
        "demo": ("demo", "Watch a built-in model write a story, and compare strategies."),
        "generate": ("generate", "Answer a prompt, or continue a text."),
        "chat": ("chat", "Chat with a model that has a chat template."),
        "infill": ("infill", "Fill the gaps in a text. <mask:8> marks a gap of eight tokens."),
        "compare": ("compare", "Decode one prompt with several strategies side by side."),
    },
    "Inspect": {
        "list": ("list", "List strategies, selectors, caches, models and tasks."),
        "trace": ("trace", "Record decodes, and show, replay, fork, draw or export them."),
        "report": ("report", "Write an HTML report of recorded decodes and runs."),
    },
    "Measure": {
        "eval": ("eval", "Evaluate a model on tasks, and compare the results."),
        "tune": ("tune", "Find the strategy that suits your prompts."),
        "bench": ("bench", "Measure how long a decoding step takes on this machine."),
        "paper": ("paper", "Reproduce the experiments of the paper."),
        "lm-eval": ("lm_eval", "Evaluate with lm-eval, EleutherAI's evaluation harness."),
    },
    "Serve and train": {
        "serve": ("serve", "Serve OpenAI's API, and a web page that shows decodes live."),
        "train": ("train", "Train a diffusion model, or adapt an autoregressive one."),
    },
}


OWN_FOLDER = "WAVEFRONT_OWN_FOLDER"  # the same as in `core.spec`, which takes time to import
# Errors of writing: the disk is full or fails, or a limit is reached.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class Program(LazyGroup):
    """The group of all commands. It turns exceptions into messages and exit codes."""

    modules = {  # noqa: RUF012
        name: (f"wavefront.cli.{file}", panel, line)
        for panel, commands in PANELS.items()
        for name, (file, line) in commands.items()
    }

    def main(self, *args: Any, standalone_mode: bool = True, **settings: Any) -> Any:
        with warnings.catch_warnings(), _log_shown():
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
            except OSError as error:
                if error.errno not in DISK_ERRORS:
                    raise
                _discard_output()
                _complain("error", _disk_message(error))
                code = 1
            code = _flush_output(code if isinstance(code, int) else 0)
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WavefrontError:
            if ctx.meta.get("debug"):
                traceback.print_exc()
            raise
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(141) from None
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "OutOfMemory" not in type(error).__name__:
                raise
            raise WavefrontError(out_of_memory(ctx.meta.get(PARAMETERS, {}))) from error
        except Exception as error:
            own = _own_frames(error)
            if not own or ctx.meta.get("debug"):
                raise
            said = traceback.TracebackException.from_exception(error).format_exception_only()
            print(*traceback.format_list(own), *said, sep="", end="", file=sys.stderr)
            where = f"{Path(own[-1].filename).name}, line {own[-1].lineno}"
            more = " --debug shows all calls." if "debug" in ctx.meta else ""
            raise WavefrontError(f"Your code failed in {where}.{more}") from error


def out_of_memory(parameters: Mapping[str, Any]) -> str:
    """Return what to do when the memory is full, from the parameters of the command."""
    smaller = {"max_new_tokens": "-n", "batch_size": "--batch-size"}
    names = [option for name, option in smaller.items() if name in parameters]
    advice = [f"a smaller {' or '.join(names)}"] if names else []
    if "quantize" in parameters:
        if parameters["quantize"] is None:
            advice.insert(0, "--quantize int8")
        elif parameters["quantize"] != "int4":
            advice.append("--quantize int4")
    quantized = parameters.get("quantize") is not None
    if quantized and "speed" in parameters and parameters["speed"] != "fast":
        advice.append("--speed fast")
    return f"Out of memory: try {', or '.join(advice or ['a smaller model'])}."


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the calls in the user's own files, such as a strategy; none if it is not their fault.

    It is theirs if the last call is in a file outside this package and outside Python's folders.
    """
    ours = (Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix))
    frames = traceback.extract_tb(error.__traceback__)
    own = [not any(Path(one.filename).is_relative_to(home) for home in ours) for one in frames]
    last = len(own) > 0 and own[-1] and Path(frames[-1].filename).is_file()
    return [one for one, is_own in zip(frames, own, strict=True) if is_own] if last else []


def _flush_output(code: int) -> int:
    """Flush standard output, and return the exit status."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        _discard_output()
        _complain("error", _disk_message(error))
        return 1
    return code


def _discard_output() -> None:
    """Discard standard output, because the interpreter flushes it once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _disk_message(error: OSError) -> str:
    """Say what cannot be written: a file has a name, and standard output has none."""
    reason = (error.strerror or str(error)).rstrip(".").lower()
    return f"{error.filename or 'Standard output'} cannot be written: {reason}."


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
    # Strategies may live in the current directory, which a console script does not search.
    if not sys.flags.safe_path:
        os.environ[OWN_FOLDER] = os.getcwd()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    # Exit through an exception, so that an animation restores the cursor.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    app(prog_name="wavefront")


def _usage_message(error: Any) -> str:
    """Explain in one sentence what is wrong with the command line."""
    message: str = error.format_message()
    if type(error).__name__ == "NoSuchOption":
        # Suggest aliases too: users of other samplers know them.
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


class _LogLines(logging.Handler):
    """Prints the log of the library as sentences on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "note" if record.levelno < logging.WARNING else "warning"
        _complain(kind, record.getMessage())


@contextlib.contextmanager
def _log_shown() -> Iterator[None]:
    """Print the log of the library, such as a note that a model is being compiled."""
    log, handler = logging.getLogger("wavefront"), _LogLines()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _complain(kind: str, sentence: str) -> None:
    from wavefront.cli.output import complain  # it imports rich, which completion does not need

    complain(kind, sentence)
