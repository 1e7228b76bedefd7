"""`wavefront trace`: decodes in files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from wavefront.cli import completion
from wavefront.cli.command import Command, Group
from wavefront.cli.decode import prepare, record, run
from wavefront.cli.generate import read_prompt
from wavefront.cli.options import (
    LOAD_OPTIONS,
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    PlainOptions,
    Prompt,
    PromptFile,
    Raw,
    UsageError,
    flatten_options,
    model_option,
    option,
    options_set,
)
from wavefront.cli.output import loading_status, say, say_json, stderr
from wavefront.core.errors import TraceError, check_choice, check_float, check_int
from wavefront.storage.write_file import replacing
from wavefront.viewer import (
    Board,
    TraceStream,
    TraceTexts,
    animation,
    can_animate,
    plain,
    plain_legend,
    printable,
    side_by_side,
    visible,
    watch,
)

if TYPE_CHECKING:
    from wavefront.lm import LM
    from wavefront.traces.trace import Trace

EXAMPLES = """\
Examples
wavefront trace record "I have 2 figs. How many?" -s wavefront -o f.npz
wavefront trace show f.npz
wavefront trace replay f.npz
wavefront trace draw f.npz -o wave.svg
wavefront trace export f.npz > f.csv
wavefront trace fork f.npz --at 8 --strategy block -o g.npz
wavefront trace show f.npz g.npz
"""
RECORD_EXAMPLES = """\
Examples
wavefront trace record "I have 2 figs. How many?" -s wavefront -o f.npz
wavefront trace record -f question.txt -s rcr -n 64 --full -o r.npz
wavefront trace record "A dog saw a <mask:6>." --infill -o dog.npz
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
REPLAY_EXAMPLES = """\
Examples
wavefront trace replay f.npz
wavefront trace replay f.npz --dtype bfloat16 || echo "it differs"
"""
FORK_EXAMPLES = """\
Examples
wavefront trace fork f.npz --at 8 --strategy block --watch
wavefront trace fork f.npz --at 8 --set "3= four" -o g.npz
"""
SPEED, LONGEST = 20.0, 20.0  # steps per second, and the longest duration in seconds
MOST = 4  # traces side by side
SHOWN = 12  # differing positions to print
# Events at one step and position are sorted in the order in which they happen.
EVENTS = ("by hand", "commit", "remask")
COLUMNS = (
    *("step", "forward", "row", "place", "position", "event", "token", "text"),
    "probability",
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace, written by `trace record`.")]
Row = Annotated[int, option(None, "N", "Row of a batch, numbered from 0. Default: 0.")]
app = typer.Typer(
    cls=Group,
    help="Record decodes, and show, replay, fork, draw or export them.",
    epilog=EXAMPLES,
    add_completion=False,
)


class Change(NamedTuple):
    """A position where two answers differ; None where one of them has no token."""

    place: int  # counted over the positions to decode
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class RecordedModel(ModelOptions):
    """Options that choose the model. The trace already names one."""

    model: Annotated[
        str | None,
        model_option("the model that made the trace, if it is on this machine"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RecordingModel(ModelOptions):
    """Options that choose the model for `trace record`, which can also fill gaps."""

    model: Annotated[
        str | None,
        model_option("the first model in `wavefront list models`; with --infill: tale"),
    ] = None


@app.command("record", cls=Command, epilog=RECORD_EXAMPLES)
@flatten_options
def record_trace(
    prompt: Prompt = None,
    *,
    out: Annotated[Path, option(None, "FILE", "File to write the trace to.", "--out", "-o")],
    file: PromptFile = None,
    raw: Raw = False,
    infill: Annotated[
        bool,
        option(
            None, "", "Fill the gaps in the text; <mask:8> marks a gap of eight tokens.", "--infill"
        ),
    ] = False,
    full: Annotated[
        bool,
        option(
            None,
            "",
            "Record score, entropy and alternatives of every masked position at every step.",
            "--full",
        ),
    ] = False,
    length: LengthOptions,
    decoding: DecodingOptions,
    model: RecordingModel,
    output: OutputOptions,
) -> None:
    """Answer a prompt, and record every step of the decode.

    The answer goes to standard output, as with `wavefront generate`.
    """
    text, count = read_prompt(prompt, file), options_set(length)
    if infill:
        from wavefront.text.chat_template import parse_holes

        if count or raw:
            raise UsageError("With --infill, leave out --raw and the length.")
        count = {"max_new_tokens": sum(p for p in parse_holes(text) if isinstance(p, int))}
    from wavefront.models import builtin
    from wavefront.traces import trace_file

    target = trace_file.output_path(out)
    default = builtin.STORIES if infill else None
    lm, options = prepare(model, decoding, output, length=count, default=default)
    kind = "full" if full else "basic"
    if infill:
        del options["max_new_tokens"]
        stream = lm.stream_infill(text, trace=kind, **options)
    else:
        stream = lm.stream(text, raw=raw, trace=kind, **options)
    seconds = run(stream, output)
    answer = stream.completions[0]
    assert answer.trace is not None
    about = {
        "prompt": text,
        "raw": raw,
        "seconds": round(seconds, 4),
        "revision": model.revision,
        "load_options": model.load_options(),
    }
    save(answer.trace, target, output, **about)
    if output.json:
        facts = {"seconds": seconds, "model": model, "prompt": text, "raw": raw}
        say_json(record(lm, stream, answer, **facts) | {"trace": str(target)})
    else:
        say(answer.text)


@app.command(cls=Command, epilog=SHOW_EXAMPLES)
def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="One to four traces.")],
    *,
    speed: Annotated[
        float | None,
        option(None, "X", "Steps per second. Default: 20, or more if it would take over 20 s."),
    ] = None,
    step: Annotated[
        list[int] | None,
        option(None, "N", "Print only the canvas after N steps; repeat for several."),
    ] = None,
    row: Row = 0,
) -> None:
    """Play recorded decodes, several side by side.

    On a terminal they are animated; elsewhere a few steps are printed. No model is needed.
    """
    if len(files) > MOST:
        raise UsageError(f"Show at most {MOST} traces.")
    if speed is not None and not 0 < speed < float("inf"):
        raise UsageError("--speed must be above 0 steps per second.")
    traces = [load_row(file, row) for file in files]
    console = Console(highlight=False, emoji=False, markup=False)
    films, longest = [TraceStream(trace) for trace in traces], max(map(len, traces))
    delay = 1 / (speed or max(SPEED, longest / LONGEST))
    if step:
        if len(films) > 1:
            raise UsageError("--step works with one trace only.")
        _print_moments(films[0], console, step, last=longest)
    elif len(films) > 1:
        side_by_side(films, console=console, delay=delay, timed=False)
    else:
        moving = can_animate(console)
        for _ in watch(films[0], console=console, delay=delay if moving else 0.0, timed=False):
            pass


def _print_moments(film: TraceStream, console: Console, wanted: list[int], *, last: int) -> None:
    for number in wanted:
        check_int("step", number, 0, high=last)
    board = Board(film, glow=0.0, timed=False)
    frame = board.frame()
    console.file.write(f"{frame.strategy}\n")
    moments = {0: frame}
    for step in film:
        board.add(step)
        moments[board.step] = board.frame()
    shown = [moments[number] for number in dict.fromkeys(wanted)]
    for frame in shown:
        console.file.write(f"{plain(frame, console.width)}\n\n")
    if legend := plain_legend(shown, console.width):
        console.file.write(f"{legend}\n")


@app.command(cls=Command, epilog=EXPORT_EXAMPLES)
def export(
    file: File,
    *,
    form: Annotated[
        str,
        option(
            None,
            "WORD",
            "Format: csv or json. Default: csv.",
            "--format",
            "-F",
            complete=completion.words("csv", "json"),
        ),
    ] = "csv",
    out: Annotated[
        Path | None, option(None, "FILE", "Where to write. Default: stdout.", "--out", "-o")
    ] = None,
    row: Annotated[
        int | None, option(None, "N", "Row of a batch, counted from 0. Default: all.")
    ] = None,
) -> None:
    """List the events of a trace as CSV or JSON.

    An event is a token that was committed, masked again or written by hand.

    Steps are numbered from 0, as in `trace fork --at`. The column `place` numbers the positions of
    the answer, and the column `position` numbers the whole canvas. The probability is the one that
    the model gave at that step.
    """
    check_choice("--format", form, ("csv", "json"))
    trace = load_row(file, row)
    write = {"csv": print_csv, "json": print_json}[form]
    with open_target(out) as target:
        write(trace, target)


@app.command(cls=Command, epilog=DRAW_EXAMPLES)
def draw(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One to four traces.")],
    *,
    out: Annotated[
        Path | None, option(None, "FILE", "Where to write. Default: stdout.", "--out", "-o")
    ] = None,
    seconds: Annotated[float, option(None, "X", "Duration of the animation. Default: 10.")] = 10.0,
    row: Row = 0,
) -> None:
    """Draw decodes as an animated SVG, for a browser or a README.

    Several decodes share one timeline, measured in forward passes, so the faster one ends first.
    Outlined positions are candidates. Coloured positions are decoded; the colour shows the
    probability.
    """
    check_float("seconds", seconds, 0.5, high=600)
    if len(files) > MOST:
        raise UsageError(f"Draw at most {MOST} traces, not {len(files)}.")
    picture = animation([load_row(file, row) for file in files], seconds=seconds)
    with open_target(out) as target:
        target.write(picture)
    if out is not None:
        many = "1 decode" if len(files) == 1 else f"{len(files)} decodes"
        note = f"{out}: animation of {many}, {len(picture.encode()) / 1000:.0f} kB"
        stderr().print(note, style="dim", soft_wrap=True)


@contextlib.contextmanager
def open_target(out: Path | None) -> Iterator[IO[str]]:
    """Open the file to write, or standard output."""
    if out is None:
        yield sys.stdout
        return
    with (
        replacing(out, error=TraceError) as part,
        part.open("w", encoding="utf-8", errors="replace", newline="") as target,
    ):
        yield target


def load_row(file: Path, row: int | None = None) -> Trace:
    """Load a trace, or one row of it."""
    from wavefront.traces import trace_file

    trace = trace_file.load(file)
    if row is None:
        return trace
    check_int("row", row, 0, high=trace.first.tokens.shape[0] - 1)
    return trace.row(row)


def save(trace: Trace, file: Path, output: PlainOptions, **about: object) -> Path:
    """Write a trace with additional metadata, and report the file."""
    from wavefront.traces import trace_file

    file = trace_file.save(replace(trace, about={**about, **trace.about}), file)
    if not output.quiet:
        size = file.stat().st_size
        kind = "full trace" if trace.full else "trace"
        note = f"{file}: {kind} of {len(trace)} steps, {size / 1000:.0f} kB"
        stderr().print(note, style="dim", soft_wrap=True)
    return file


@app.command(cls=Command, epilog=REPLAY_EXAMPLES)
@flatten_options
def replay(
    file: File,
    *,
    strategy: Annotated[
        str | None,
        option(
            None,
            "SPEC",
            "Strategy of the trace. Required for your own strategy: a trace never imports code.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        option(None, "SPEC", "Cache policy of the trace. Required for your own policy.", "--cache"),
    ] = None,
    model: RecordedModel,
    output: PlainOptions,
) -> None:
    """Decode a recorded prompt again, and compare every commit.

    The exit status is 1 if anything differs.
    """
    trace = load_row(file)
    found = _load(model, trace, output).replay(trace, strategy=strategy, cache=cache)
    commits = int(trace.commit.sum())
    if output.json:
        parted = None if found is None else found._asdict()
        say_json({"same": found is None, "commits": commits, "differs": parted})
    elif found is None:
        say(f"Identical: {commits} commits in {len(trace)} steps.")
    else:
        row = f" of row {found.row}" if trace.first.tokens.shape[0] > 1 else ""
        say(f"The commits differ from step {found.step}{row} on.")
    if found is not None:
        raise typer.Exit(1)


@app.command(cls=Command, epilog=FORK_EXAMPLES)
@flatten_options
def fork(
    file: File,
    *,
    at: Annotated[
        int, option(None, "N", "Recorded step to continue from, counted from 0.", "--at")
    ],
    strategy: Annotated[
        str | None,
        option(
            None,
            "SPEC",
            "Strategy from there on. Default: the recorded one.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None,
    put: Annotated[
        list[str] | None,
        option(
            None,
            "POSITION=TEXT",
            "Write text at a position of the answer before the step, numbered from 0 within the "
            "answer; repeat for several.",
            "--set",
        ),
    ] = None,
    row: Row = 0,
    out: Annotated[
        Path | None, option(None, "FILE", "Write the new trace. Default: none.", "--out", "-o")
    ] = None,
    model: RecordedModel,
    output: OutputOptions,
) -> None:
    """Continue a recorded decode from one of its steps, with changes.

    The same strategy continues with its recorded state. Another strategy starts from the recorded
    canvas, with the steps that are left. The new trace includes the steps before the fork.
    """
    changes = _read_changes(put or [])
    trace = load_row(file, row)
    if out is not None:
        from wavefront.traces import trace_file

        out = trace_file.output_path(out)
    lm = _load(model, trace, output)
    stream = lm.fork(trace, at, strategy=strategy, overrides=changes)
    seconds = run(stream, output)
    answer = stream.completions[0]
    assert answer.trace is not None
    if out is not None:
        save(answer.trace, out, output)
    differ = differences(trace, answer.trace)
    if output.json:
        facts: dict[str, Any] = {
            "seconds": seconds,
            "model": model,
            "fork": {"at": at, "put": changes},
        }
        made = record(lm, stream, answer, **facts)
        say_json(made | {"differences": [change._asdict() for change in differ]})
        return
    recorded, now = trace.about["options"]["strategy"], stream.decoding.plan.config.strategy
    say(f"recorded: {trace.forwards} forward passes of {recorded}\n{lm.text_of(trace)}\n")
    say(f"from step {at}: {answer.forwards} forward passes of {now!r}\n{answer.text}\n")
    say(_describe(differ))


def _read_changes(texts: list[str]) -> dict[int, str]:
    changes: dict[int, str] = {}
    for text in texts:
        place, sign, what = text.partition("=")
        if not sign or not place.strip().isdecimal():
            raise UsageError(f"--set takes POSITION=TEXT, such as 3=four, not {text!r}.")
        if int(place) in changes:
            raise UsageError(f"--set writes to position {int(place)} twice: leave one out.")
        changes[int(place)] = what
    return changes


def _describe(differ: list[Change]) -> str:
    if not differ:
        return "No token differs."
    lines = ["1 token differs" if len(differ) == 1 else f"{len(differ)} tokens differ"]
    for change in differ[:SHOWN]:
        one, two = ("nothing" if t is None else repr(visible(t)) for t in change[1:])
        lines.append(f"  {change.place:>4}  {one} -> {two}")
    return "\n".join(lines + ["   ..."] * (len(differ) > SHOWN))


def _load(model: RecordedModel, trace: Trace, output: PlainOptions) -> LM:
    """Load the chosen model, or the one that made the trace, which is never downloaded."""
    about = trace.about
    if model.model is None:
        name = about.get("model")
        if not isinstance(name, str):
            raise TraceError("The trace does not name its model: give one with -m.")
        from wavefront.lm import refuse_factory

        refuse_factory(name, where="The trace")
        said = {
            n: v
            for n in ("device", "dtype", "quantize", "revision")
            if isinstance(v := about.get(n), str)
        }
        recorded = about.get("load_options")
        options: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
        # The options belong together, so the user's replace all of the trace's.
        if options.keys() <= LOAD_OPTIONS and not model.load_options():
            said |= options
        mine = {n: getattr(model, n) for n in said if getattr(model, n) is not None}
        model = replace(model, model=name, offline=True, **{**said, **mine})
    with loading_status(shown=not output.quiet):
        return model.load()


def events(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield everything that was written or masked again, in order."""
    texts, slot = TraceTexts(trace.about), trace.first.slot
    found: list[tuple[int, int, int, int, int | None]] = []
    for step, row, place, token in trace.overrides.tolist():
        found.append((step, row, 0, place, token))
    for number, board in enumerate((trace.written, trace.remask), 1):
        tokens = trace.tokens[board].tolist() if number == 1 else [None] * int(board.sum())
        for (step, row, place), token in zip(board.nonzero().tolist(), tokens, strict=True):
            found.append((step, row, number, place, token))
    for step, row, kind, position, token in sorted(found, key=lambda one: one[:4]):
        # With speculation, one forward pass makes several steps.
        yield {
            "step": step,
            "forward": int(trace.launched[step]),
            "row": row,
            "place": int(slot[row, position]),
            "position": position,
            "event": EVENTS[kind],
            "token": token,
            "text": None if token is None else texts.pieces([token])[0],
            "probability": _probability(trace, step, row, position=position) if kind == 1 else None,
        }


def _probability(trace: Trace, step: int, row: int, *, position: int) -> float | None:
    chance = math.exp(min(0.0, float(trace.logp[step, row, position])))
    return round(chance, 6) if math.isfinite(chance) else None


def print_csv(trace: Trace, out: IO[str]) -> None:
    """Write one line per event, below the names of the columns."""
    buffer = io.StringIO(newline="")
    # The module quotes the characters of this line end wherever they occur in a text.
    lines = csv.DictWriter(buffer, COLUMNS, lineterminator="\r\n")
    out.write(",".join(COLUMNS) + "\n")
    for event in events(trace):
        # Do not send control characters of a model to a terminal.
        if out.isatty() and event["text"] is not None:
            event["text"] = printable(event["text"])
        lines.writerow(event)
        out.write(buffer.getvalue().removesuffix("\r\n") + "\n")
        buffer.seek(0)
        buffer.truncate()


def print_json(trace: Trace, out: IO[str]) -> None:
    """Write one object with the metadata of the trace and its events."""
    about = {n: v for n, v in trace.about.items() if n not in ("texts", "special_ids")}
    rows, length = trace.first.tokens.shape
    header = {"steps": len(trace), "rows": rows, "length": length, "forwards": trace.forwards}
    json.dump({**header, "about": about, "events": list(events(trace))}, out)
    out.write("\n")


def differences(before: Trace, after: Trace) -> list[Change]:
    """Return where the visible text of the first row differs between two decodes."""
    one, two = _visible(before), _visible(after)
    places = before.first.slot[0].tolist()
    pairs = ((place, one.get(at), two.get(at)) for at, place in enumerate(places) if place >= 0)
    return [Change(*found) for found in pairs if found[1] != found[2]]


def _visible(trace: Trace) -> dict[int, str]:
    """Return the text at each position before the first stop token of each gap."""
    texts, shown, ended = TraceTexts(trace.about), {}, False
    *_, last = [trace.first, *trace.replay()]
    stops = trace.about["options"]["stop_ids"]
    row = (part[0].tolist() for part in (last.tokens, last.masked, last.slot))
    for position, (token, masked, place) in enumerate(zip(*row, strict=True)):
        ended = place >= 0 and (ended or masked or token in stops)
        if not ended:
            shown[position] = texts.pieces([token])[0]
    return shown
