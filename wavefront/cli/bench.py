"""`wavefront bench`: what a step costs, beside floors and reference loops, as one table."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wavefront.cli.options import Ids, UsageError, option
from wavefront.cli.output import complain, say_json, stderr, stdout
from wavefront.core.errors import MissingExtraError
from wavefront.viewer import can_animate

if TYPE_CHECKING:
    from wavefront.bench import Report, Row

EXAMPLES = """\
Rows for --only
exact        a step over the whole canvas, and the LLaDA-style loop
cached       a step over a window, and the dual-cache loop
batch        eight rows beside one
end-to-end   a whole decode
memory       how many logits exist at once
lengths      cost against the length of the canvas
batches      cost against the rows of a batch
text         whole answers to problems; needs a checkpoint, such as ripple

Examples
wavefront bench --quick
wavefront bench --only exact --only cached --threads 2
wavefront bench --device cuda --out bench.json
wavefront bench --device cuda --compile --profile traces/
wavefront bench --plot bench.json
docs/speed.md says how to read the table.
"""


def bench(
    *,
    model: Annotated[
        str | None,
        option(
            None,
            "NAME",
            "llada-8b-shape or dream-7b-shape (random weights), a built-in name, a directory, or "
            "a hub id. By default llada-8b-shape on CUDA and ripple elsewhere.",
            "--model",
            "-m",
        ),
    ] = None,
    device: Annotated[
        str | None, option(None, "NAME", "cpu, cuda or cuda:1; by default the best there is.")
    ] = None,
    dtype: Annotated[
        str | None, option(None, "NAME", "By default bfloat16 on CUDA and float32 elsewhere.")
    ] = None,
    only: Annotated[
        list[str] | None,
        option(None, "ROW", "Measure only this, one of those below; may be given again."),
    ] = None,
    quick: Annotated[
        bool, option(None, "", "A first look: few repeats, few sizes, one problem.", "--quick")
    ] = False,
    prompt: Annotated[
        int | None, option(None, "N", "Tokens given; by default 128 on CUDA, else 64.")
    ] = None,
    places: Annotated[
        int | None,
        option(None, "N", "Places to fill; by default 1024 on CUDA, else 256.", "--places", "-n"),
    ] = None,
    lengths: Annotated[
        Ids | None, option(None, "N,N", "Canvases to scale over: 256,512,1024,2048,4096.")
    ] = None,
    batches: Annotated[
        Ids | None, option(None, "N,N", "Batches to scale over: 1,2,4,8,16,32.")
    ] = None,
    repeats: Annotated[
        int | None, option(None, "N", "Timed pieces of every row; by default 15, quick 5.")
    ] = None,
    items: Annotated[int, option(None, "N", "Problems for `text`; by default 4.")] = 4,
    threads: Annotated[
        int | None, option(None, "N", "Threads on the CPU; by default one a core.")
    ] = None,
    cpu_time: Annotated[
        bool,
        option(
            None,
            "",
            "Count the time this process computes, for a CPU that others use too; with --threads 1 "
            "what they do matters little.",
            "--cpu-time",
        ),
    ] = False,
    compile: Annotated[
        bool | None,
        option(
            None,
            "",
            "Measure the headline shapes compiled as well; by default on CUDA, unless quick.",
            "--compile/--no-compile",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        option(None, "DIR", "Leave a trace of a few steps of every row there, for a profiler."),
    ] = None,
    accuracy: Annotated[
        Path | None,
        option(None, "FILE", "Accuracies of the same configurations, from runs/cache_table.py."),
    ] = None,
    out: Annotated[
        Path | None,
        option(None, "FILE", "Write everything as JSON, and figures beside it.", "--out", "-o"),
    ] = None,
    plot: Annotated[
        Path | None, option(None, "FILE", "Measure nothing: show and draw an earlier --out file.")
    ] = None,
    json: Annotated[
        bool, option(None, "", "Print the JSON in place of the table.", "--json")
    ] = False,
    quiet: Annotated[bool, option(None, "", "No progress.", "--quiet", "-q")] = False,
) -> None:
    """Measure what a step costs on this machine, beside two published ways to decode.

    The machine's limits are measured first; a floor is the least time that they allow. Ours and
    the reference loops, LLaDA's and Fast-dLLM's as published, take turns, so that a ratio is of one
    run. The table gives medians with quartiles, and verdicts on our own targets.
    """
    from wavefront import bench as made

    if plot is not None:
        report = made.load(plot)
        if accuracy is not None:
            report = made.add_accuracies(report, accuracy)
        _show(report, as_json=json)
        _draw(report, plot, asked=True)
        return
    if threads is not None:
        import torch

        if threads < 1:
            raise UsageError(f"--threads must be at least 1, not {threads}.")
        torch.set_num_threads(threads)
    name, chosen, lm = made.load_model(model, device=device, dtype=dtype)
    given = {
        "prompt_tokens": prompt,
        "max_new_tokens": places,
        "lengths": lengths,
        "batches": batches,
        "repeats": repeats,
        "compile": compile,
    }
    settings = made.defaults(chosen, quick=quick) | {
        key: value for key, value in given.items() if value is not None
    }
    plan = made.Settings(
        model=chosen,
        name=name,
        lm=lm,
        only=tuple(only or made.ROWS),
        items=items,
        profile=profile,
        cpu_time=cpu_time,
        quick=quick,
        **settings,
    )
    with _progress(made.ticks(plan), shown=not quiet) as tick:
        report = made.run(replace(plan, tick=tick), accuracy=accuracy)
    if out is not None:
        made.save(report, out)
    _show(report, as_json=json)
    if out is not None:
        _draw(report, out, asked=False)
        print(f"Written to {out}.", file=sys.stderr)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        say_json(report.to_json())
        return
    from rich.table import Table
    from rich.text import Text

    about, limits = report.about, report.limits
    console = stdout()
    console.print(
        f"{report.settings['model']} on {about['device']}, {about['dtype']}, "
        f"{about['threads']} threads, torch {about['torch']}, commit {about['commit']}\n"
        f"limits measured: {limits['flops'] / 1e12:.3g} TFLOP/s, "
        f"{limits['bandwidth'] / 1e12:.3g} TB/s"
    )
    table = Table(title="", show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("what", overflow="fold")
    names = ("ms", "quartiles", "n", "tokens/s", "floor", "of floor", "× ref", "right", "note")
    for head in names:
        table.add_column(head, justify="left" if head == "note" else "right", overflow="fold")
    for one in report.rows:
        table.add_row(*map(Text, _cells(one)))
    console.print(table)
    for one in report.curves:
        for span, fit in (("all sizes", one.fit), ("the larger half", one.late)):
            if fit is not None:
                console.print(
                    f"{one.subject} step against {one.against}, {span}: exponent "
                    f"{fit.exponent:.2f} ± {fit.error:.2f}"
                )
    for one in report.targets:
        word = "reached" if one.met else f"missed, {one.short}"
        console.print(f"{one.work}: {one.target}: {one.found:.3g}: {word} ({one.note})")
    for note in report.notes:
        console.print(note)


def _cells(one: Row) -> list[str]:
    def number(value: float | None, form: str = ".3g") -> str:
        return "" if value is None else format(value, form)

    note = [one.note] if one.note else []
    if one.published_ms:
        note.append(f"published {one.published_ms} ms, here × {one.ms / one.published_ms:.2f}")
    if one.peak_bytes:
        note.append(f"{one.peak_bytes / 1e6:.0f} MB")
    rate = one.visible_per_s or one.tokens_per_s
    right = "" if one.accuracy is None else f"{100 * one.accuracy['right']:.1f} %"
    return [
        one.what,
        f"{one.ms:.4g}",
        f"{one.low:.4g}–{one.high:.4g}",
        str(one.repeats),
        number(rate, ".4g") + (" visible" if one.visible_per_s else ""),
        number(one.floor_ms),
        "" if one.of_floor is None else f"{100 * one.of_floor:.0f} %",
        number(one.ratio),
        right,
        "; ".join(note),
    ]


def _draw(report: Report, beside: Path, *, asked: bool) -> None:
    """The figures, where there is something to draw and something to draw with."""
    if not report.curves:
        if asked:
            complain("warning", "There is nothing to draw: measure lengths or batches.")
        return
    try:
        from wavefront.analysis import figures
    except MissingExtraError:
        if asked:
            raise
        return
    curves = [
        figures.ScalingCurve(
            one.subject,
            one.against,
            one.sizes,
            one.ms,
            one.low,
            one.high,
            one.floor_ms,
            None if one.fit is None else one.fit.exponent,
        )
        for one in report.curves
    ]
    written = figures.save(figures.scaling(curves), beside.parent, f"{beside.stem}-scaling")
    if any(one.against == "batch" for one in curves):
        made = figures.throughput(curves)
        written += figures.save(made, beside.parent, f"{beside.stem}-throughput")
    print(f"{len(written)} figures: {written[0]} and its variants.", file=sys.stderr)


@contextlib.contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    console = stderr()
    if not shown or not can_animate(console):
        yield lambda what: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda what: bar.update(task, description=what, advance=1)
