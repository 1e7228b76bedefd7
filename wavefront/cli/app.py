"""The command `wavefront`: its commands, and what becomes of an error.

Exit codes: 0 fine, 1 an error that one sentence explains, 2 a command line that cannot be read,
130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import wavefront
from wavefront.cli import (
    about,
    bench,
    chat,
    compare,
    demo,
    evaluate,
    experiment,
    forks,
    generate,
    harness,
    measure,
    pairs,
    report,
    serve,
    shelves,
    trace,
    train,
    tune,
)
from wavefront.cli.groups import expand
from wavefront.cli.options import UsageError
from wavefront.cli.output import complain, print_examples
from wavefront.errors import WavefrontError, WavefrontWarning, nearest

EXAMPLES = """\
Start with
wavefront demo
wavefront generate "I have two figs and a pear. How many fruits?" --watch
wavefront generate "I have two figs and a pear. How many fruits?" -s block
wavefront infill "The <mask:4> jumps over the <mask:4> dog." --watch
"""


class Command(TyperCommand):
    """A command whose help page ends with examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # typer's own epilog runs lines together in one version and spreads them in another.
        examples, self.epilog = self.epilog, None
        super().format_help(ctx, formatter)
        self.epilog = examples
        for part in (examples or "").split("\n\n"):
            print_examples(part)


class Commands(TyperGroup):
    """The group of all commands; what they raise becomes a sentence and an exit code."""

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
                code = _explain_usage(error)
            except WavefrontError as error:
                complain("error", str(error))
                code = 1
            except typer.Abort:
                code = 130
        sys.exit(code if isinstance(code, int) else 0)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
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


class Family(TyperGroup):
    """A group within the group, whose help page ends with examples too."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        examples, self.epilog = self.epilog, None
        super().format_help(ctx, formatter)
        self.epilog = examples
        print_examples(examples)


app = typer.Typer(
    cls=Commands,
    name="wavefront",
    help="Decoding for diffusion language models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"wavefront {wavefront.__version__}")
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


def help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")
        raise typer.Exit(2)


traces = typer.Typer(
    cls=Family,
    help="Decodes in files: recorded, shown, repeated, exported, forked.",
    epilog=trace.EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="rich",
)
traces.callback()(help_without_command)


def _add(
    command: Callable[..., None],
    examples: str = "",
    settings: dict[str, Any] | None = None,
    *,
    to: typer.Typer = app,
    name: str | None = None,
) -> None:
    # typer keeps the line breaks of a docstring, and then breaks the lines again.
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    given = {"help": text, "epilog": examples, "context_settings": settings}
    to.command(name, cls=Command, **given)(expand(command))


_add(generate.generate, generate.GENERATE_EXAMPLES)
_add(chat.chat, chat.EXAMPLES)
_add(generate.infill, generate.INFILL_EXAMPLES)
_add(shelves.schedules)
_add(about.models)
_add(demo.demo, demo.EXAMPLES)
_add(compare.compare, compare.EXAMPLES)
_add(measure.measure, measure.EXAMPLES)
_add(experiment.experiment, experiment.EXAMPLES)
_add(experiment.experiments, experiment.LIST_EXAMPLES)
_add(tune.tune, tune.EXAMPLES)
_add(report.report, report.EXAMPLES)
_add(harness.lm_eval, harness.LM_EVAL_EXAMPLES, harness.SETTINGS)
_add(harness.lm_eval_tasks, harness.TASKS_EXAMPLES)
_add(harness.bertscore, harness.BERTSCORE_EXAMPLES)
_add(evaluate.evaluate, evaluate.EVAL_EXAMPLES, name="eval")
_add(evaluate.answers, evaluate.ANSWERS_EXAMPLES)
_add(evaluate.grade, evaluate.GRADE_EXAMPLES)
_add(pairs.diff, pairs.DIFF_EXAMPLES)
_add(pairs.explain, pairs.EXPLAIN_EXAMPLES)
_add(pairs.merge, pairs.MERGE_EXAMPLES)
_add(bench.bench, bench.EXAMPLES)
_add(serve.serve, serve.EXAMPLES)
_add(train.train, train.EXAMPLES, train.SETTINGS)
_add(about.version)
_add(trace.record_trace, trace.RECORD_EXAMPLES, to=traces, name="record")
_add(trace.show, trace.SHOW_EXAMPLES, to=traces)
_add(forks.replay, forks.REPLAY_EXAMPLES, to=traces)
_add(trace.export, trace.EXPORT_EXAMPLES, to=traces)
_add(forks.fork, forks.FORK_EXAMPLES, to=traces)
app.add_typer(traces, name="trace")


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
            complain("warning", str(message))

    warnings.showwarning = show
    warnings.simplefilter("always", WavefrontWarning)


def _explain_usage(error: Any) -> int:
    """A sentence for a command line that cannot be read, and the exit code that goes with it."""
    sentence: str = error.format_message()
    command: Any = error.ctx.command if error.ctx else None
    if type(error).__name__ == "NoSuchOption":
        # Aliases too: whoever writes one almost right knows it from somewhere.
        known = [name for one in command.params for name in one.opts if name.startswith("--")]
        begun = [name for name in known if name.startswith(error.option_name)]
        hint = nearest(error.option_name, begun or known)
        sentence = f"There is no option {error.option_name}{hint}."
    elif unknown := re.match("No such command '(.*?)'", sentence):
        sentence = f"There is no command {unknown[1]!r}{nearest(unknown[1], command.commands)}."
    elif sentence.startswith("Got unexpected extra arg"):
        sentence += "; put a prompt of several words in quotes."
    complain("error", sentence)
    path = error.ctx.command_path if error.ctx else "wavefront"
    print(f"Try '{path} --help'.", file=sys.stderr)
    return 2
