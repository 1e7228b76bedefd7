"""`wavefront trace replay` and `fork`: a recorded decode made again, or in another way."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli.decode import record, run
from wavefront.cli.options import ModelOptions, OutputOptions, PlainOptions, UsageError, option
from wavefront.cli.output import say, say_json, stderr
from wavefront.cli.trace import File, Row, load_row, save
from wavefront.cli.trace_events import Change, differences
from wavefront.core.errors import TraceError
from wavefront.viewer import visible

if TYPE_CHECKING:
    from wavefront.lm import LM
    from wavefront.traces.trace import Trace

REPLAY_EXAMPLES = """\
Examples
wavefront trace replay f.npz
wavefront trace replay f.npz --dtype bfloat16 || echo "it decodes otherwise"
"""
FORK_EXAMPLES = """\
Examples
wavefront trace fork f.npz --at 8 --strategy block --watch
wavefront trace fork f.npz --at 8 --set "3= four" -o g.npz
"""
SHOWN = 12  # places that differ, written out


@dataclass(frozen=True, kw_only=True)
class MakerOptions(ModelOptions):
    """Which model, for a trace that names one already."""

    model: Annotated[
        str | None,
        option(
            "Model",
            "NAME",
            "By default the one that made the trace, if it is on this machine.",
            "--model",
            "-m",
        ),
    ] = None


def replay(
    file: File,
    *,
    strategy: Annotated[
        str | None,
        option(None, "SPEC", "Needed for a strategy of your own: a file's word imports nothing."),
    ] = None,
    model: MakerOptions,
    output: PlainOptions,
) -> None:
    """Decode again what was recorded, and say whether every commit is the same.

    The exit status is 1 when something differs.
    """
    trace = load_row(file)
    found = _load(model, trace, output).replay(trace, strategy=strategy)
    commits = int(trace.commit.sum())
    if output.json:
        parted = None if found is None else found._asdict()
        say_json({"same": found is None, "commits": commits, "differs": parted})
    elif found is None:
        say(f"The same: {commits} commits in {len(trace)} steps.")
    else:
        row = f" of row {found.row}" if trace.first.tokens.shape[0] > 1 else ""
        say(f"Other commits from step {found.step}{row} on.")
    if found is not None:
        raise typer.Exit(1)


def fork(
    file: File,
    *,
    at: Annotated[
        int, option(None, "N", "The recorded step to go on from, counted from 0.", "--at")
    ],
    strategy: Annotated[
        str | None,
        option(None, "SPEC", "Another strategy, to take over there.", "--strategy", "-s"),
    ] = None,
    put: Annotated[
        list[str] | None,
        option(
            None,
            "PLACE=TEXT",
            "Write a text there first; places count from 0, as `trace export` lists them.",
            "--set",
        ),
    ] = None,
    row: Row = 0,
    out: Annotated[
        Path | None, option(None, "PATH", "Write the new trace.", "--output", "-o")
    ] = None,
    model: MakerOptions,
    output: OutputOptions,
) -> None:
    """Go on from a recorded decode in another way: what would have happened?

    The same strategy goes on exactly as it stood; another takes over the canvas as it stands, with
    the steps that are left. The trace that -o writes holds the steps before the fork as well.
    """
    changes = _read_changes(put or [])
    trace = load_row(file, row)
    if out is not None:
        from wavefront.traces import trace_file

        out = trace_file.writable(out)
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
    say(f"recorded, {trace.forwards} forwards of {recorded}\n{lm.text_of(trace)}\n")
    say(f"from step {at} on, {answer.forwards} forwards with {now!r}\n{answer.text}\n")
    say(_told(differ))


def _read_changes(texts: list[str]) -> dict[int, str]:
    changes: dict[int, str] = {}
    for text in texts:
        place, sign, what = text.partition("=")
        if not sign or not place.strip().isdecimal():
            raise UsageError(f"--set takes PLACE=TEXT, such as 3=four, not {text!r}.")
        if int(place) in changes:
            raise UsageError(f"--set writes at place {int(place)} twice: leave one out.")
        changes[int(place)] = what
    return changes


def _told(differ: list[Change]) -> str:
    if not differ:
        return "No place differs."
    lines = ["1 place differs" if len(differ) == 1 else f"{len(differ)} places differ"]
    for change in differ[:SHOWN]:
        one, two = ("nothing" if t is None else repr(visible(t)) for t in change[1:])
        lines.append(f"  {change.place:>4}  {one} -> {two}")
    return "\n".join(lines + ["   ..."] * (len(differ) > SHOWN))


def _load(model: MakerOptions, trace: Trace, output: PlainOptions) -> LM:
    """The model that was named, or the one that made the trace, which is never fetched."""
    about = trace.about
    if model.model is None:
        name = about.get("model")
        if not isinstance(name, str):
            raise TraceError("The trace does not say which model made it: name one with -m.")
        said = {n: v for n in ("device", "dtype", "revision") if isinstance(v := about.get(n), str)}
        mine = {n: getattr(model, n) for n in said if getattr(model, n) is not None}
        model = replace(model, model=name, offline=True, **{**said, **mine})
    console = stderr()
    busy = console.is_terminal and not output.quiet
    with console.status("loading the model") if busy else contextlib.nullcontext():
        return model.load()
