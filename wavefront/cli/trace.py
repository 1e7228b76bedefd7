"""`wavefront trace record`, `show`, `draw` and `export`: decodes in files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wavefront.cli.decode import prepare, record, run
from wavefront.cli.generate import read
from wavefront.cli.option_groups import given
from wavefront.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    PlainOptions,
    Prompt,
    PromptFile,
    UsageError,
    option,
)
from wavefront.cli.output import say, say_json, stderr
from wavefront.cli.trace_events import print_csv, print_json
from wavefront.core.errors import TraceError, check_choice, check_float, check_int
from wavefront.viewer import Board, TraceStream, animation, can_animate, plain, side_by_side, watch

if TYPE_CHECKING:
    from wavefront.traces.trace import Trace

EXAMPLES = """\
Examples
wavefront trace record "I have 2 figs and a pear. How many fruits?" -o f.npz
wavefront trace show f.npz
wavefront trace replay f.npz
wavefront trace draw f.npz -o wave.svg
wavefront trace export f.npz > f.csv
wavefront trace fork f.npz --at 8 --strategy block -o g.npz
wavefront trace show f.npz g.npz
"""
RECORD_EXAMPLES = """\
Examples
wavefront trace record "I have 2 figs and a pear. How many fruits?" -o f.npz
wavefront trace record -f question.txt -s rcr -n 64 --full -o r.npz
wavefront trace record "A <mask:4> and a <mask:4>." --infill -o fox.npz
"""
SHOW_EXAMPLES = """\
Examples
wavefront trace show f.npz --speed 5
wavefront trace show f.npz --step 8 --step 16
wavefront trace show f.npz g.npz
"""
EXPORT_EXAMPLES = """\
Examples
wavefront trace export f.npz > f.csv
wavefront trace export f.npz --format json -o f.json
"""
DRAW_EXAMPLES = """\
Examples
wavefront trace draw f.npz g.npz -o wave.svg
wavefront trace draw f.npz --seconds 4 > wave.svg
"""
SPEED, LONGEST = 20.0, 20.0  # steps a second; and seconds that a decode takes at most
MOST = 4  # traces side by side

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace, as `trace record` makes.")]
Row = Annotated[int, option(None, "N", "Of a batch, from 0; by default 0.")]


def record_trace(
    prompt: Prompt = None,
    *,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="Where to write it.")],
    file: PromptFile = None,
    raw: Annotated[bool, option(None, "", "Continue the text as it is.", "--raw")] = False,
    infill: Annotated[
        bool, option(None, "", "Fill the holes of the text, written <mask:8>.", "--infill")
    ] = False,
    full: Annotated[
        bool,
        option(
            None,
            "",
            "Keep score, entropy and alternatives of every masked place at every step.",
            "--full",
        ),
    ] = False,
    length: LengthOptions,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Answer a prompt, and keep how it came about.

    The answer goes to standard output, as with `wavefront generate`.
    """
    text, places = read(prompt, file), given(length)
    if infill:
        from wavefront.text.chat_template import parse_holes

        if places or raw:
            raise UsageError("The holes say what to fill: leave out --raw and the length.")
        places = {"max_new_tokens": sum(p for p in parse_holes(text) if isinstance(p, int))}
    from wavefront.traces import trace_file

    target = trace_file.writable(out)
    lm, options = prepare(model, decoding, output, length=places)
    kind = "full" if full else "basic"
    if infill:
        del options["max_new_tokens"]
        stream = lm.stream_infill(text, trace=kind, **options)
    else:
        stream = lm.stream(text, raw=raw, trace=kind, **options)
    seconds = run(stream, output)
    answer = stream.completions[0]
    assert answer.trace is not None
    about = {"prompt": text, "raw": raw, "seconds": round(seconds, 4), "revision": model.revision}
    save(answer.trace, target, output, **about)
    if output.json:
        facts = {"seconds": seconds, "model": model, "prompt": text, "raw": raw}
        say_json(record(lm, stream, answer, **facts) | {"trace": str(target)})
    else:
        say(answer.text)


def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="One to four traces.")],
    *,
    speed: Annotated[
        float | None,
        option(None, "X", "Steps a second; by default 20, or more for what would take over 20 s."),
    ] = None,
    step: Annotated[
        list[int] | None,
        option(None, "N", "Show the moment after N steps, and nothing else; may be given again."),
    ] = None,
    row: Row = 0,
) -> None:
    """Play recorded decodes, several side by side.

    In a terminal the picture moves; elsewhere a few moments are printed. No model is needed.
    """
    if len(files) > MOST:
        raise UsageError(f"Show at most {MOST} traces at once.")
    if speed is not None and not 0 < speed < float("inf"):
        raise UsageError("--speed is a number of steps a second, above 0.")
    traces = [load_row(file, row) for file in files]
    console = Console(highlight=False, emoji=False, markup=False)
    films, longest = [TraceStream(trace) for trace in traces], max(map(len, traces))
    delay = 1 / (speed or max(SPEED, longest / LONGEST))
    if step:
        if len(films) > 1:
            raise UsageError("--step shows moments of one trace: name one.")
        _print_moments(films[0], console, step, longest)
    elif len(films) > 1:
        side_by_side(films, console=console, delay=delay, timed=False)
    else:
        moving = can_animate(console)
        for _ in watch(films[0], console=console, delay=delay if moving else 0.0, timed=False):
            pass


def _print_moments(film: TraceStream, console: Console, wanted: list[int], last: int) -> None:
    for number in wanted:
        check_int("step", number, 0, last)
    board = Board(film, glow=0.0, timed=False)
    frame = board.frame()
    console.file.write(f"{frame.strategy}\n")
    moments = {0: frame}
    for step in film:
        board.add(step)
        moments[board.step] = board.frame()
    for number in dict.fromkeys(wanted):
        console.file.write(f"{plain(moments[number], console.width)}\n\n")


def export(
    file: File,
    *,
    form: Annotated[
        str, option(None, "WORD", "csv (the default) or json.", "--format", "-F")
    ] = "csv",
    out: Annotated[
        Path | None, option(None, "PATH", "Where to; by default standard output.", "--output", "-o")
    ] = None,
    row: Annotated[int | None, option(None, "N", "Of a batch, from 0; by default all.")] = None,
) -> None:
    """List what happened: what was committed, taken back and written by hand, and when.

    A step counts from 0, so that `trace fork --at` it changes what follows; a place counts the
    places to fill, a position all of them. The probability is what the model gave the token then.
    """
    check_choice("--format", form, ("csv", "json"))
    trace = load_row(file, row)
    write = {"csv": print_csv, "json": print_json}[form]
    with _target(out) as target:
        write(trace, target)


def draw(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Traces, as `trace record` makes.")
    ],
    *,
    out: Annotated[
        Path | None, option(None, "PATH", "Where to; by default standard output.", "--output", "-o")
    ] = None,
    seconds: Annotated[
        float, option(None, "X", "How long the film takes before it begins anew; by default 10.")
    ] = 10.0,
    row: Row = 0,
) -> None:
    """Draw decodes as a film, an SVG file that plays by itself in a browser or a README.

    Below one another on one clock of forwards, so that a strategy that needs fewer is done earlier.
    Outlined: what the strategy looks at. Coloured: what was decided, by how sure the model was.
    """
    check_float("seconds", seconds, 0.5, 600)
    if len(files) > MOST:
        raise UsageError(f"At most {MOST} traces at once, not {len(files)}.")
    picture = animation([load_row(file, row) for file in files], seconds=seconds)
    with _target(out) as target:
        target.write(picture)
    if out is not None:
        many = "a decode" if len(files) == 1 else f"{len(files)} decodes"
        note = f"{out}: a film of {many}, {len(picture.encode()) / 1000:.0f} kB"
        stderr().print(note, style="dim", soft_wrap=True)


@contextlib.contextmanager
def _target(out: Path | None) -> Iterator[IO[str]]:
    """Where to write: a file, or standard output."""
    if out is None:
        yield sys.stdout
        return
    try:
        with out.open("w", encoding="utf-8", newline="") as target:
            yield target
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{out} cannot be written: {reason}.") from error


def load_row(file: Path, row: int | None = None) -> Trace:
    """A trace from its file, or a row of it."""
    from wavefront.traces import trace_file

    trace = trace_file.load(file)
    if row is None:
        return trace
    check_int("row", row, 0, trace.first.tokens.shape[0] - 1)
    return trace.row(row)


def save(trace: Trace, file: Path, output: PlainOptions, **about: object) -> Path:
    """Write a trace with what more there is to say of it, and say so."""
    from wavefront.traces import trace_file

    file = trace_file.save(replace(trace, about={**about, **trace.about}), file)
    if not output.quiet:
        size = file.stat().st_size
        kind = "full trace" if trace.full else "trace"
        note = f"{file}: a {kind} of {len(trace)} steps, {size / 1000:.0f} kB"
        stderr().print(note, style="dim", soft_wrap=True)
    return file
