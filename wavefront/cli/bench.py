"""`wavefront bench`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.options import Ids, Quiet, UsageError, option
from wavefront.cli.output import ProgressBar, complain, say_json, stdout
from wavefront.core.errors import MissingExtraError

if TYPE_CHECKING:
    from wavefront.bench import Report, Row

EXAMPLES = """\
Rows for --only
exact        a step over the whole canvas, and LLaDA's published loop
cached       a step over a window, and Fast-dLLM's dual-cache loop
batch        a batch of eight, against a batch of one
end-to-end   a whole decode
memory       memory used by the logits
lengths      time against the length of the canvas
batches      time against the batch size
text         whole answers to problems; needs a trained model, such as ripple

Examples
wavefront bench --quick
wavefront bench --only exact --only cached --threads 2
wavefront bench --device cuda --out bench.json
wavefront bench --device cuda --compile --profile traces/
wavefront bench --plot bench.json
docs/speed.md explains the table.
"""
SHAPES = ("llada-8b-shape", "dream-7b-shape")  # sizes of published models, with random weights
app = typer.Typer(add_completion=False)


def _complete_model(incomplete: str) -> completion.Suggestions:
    return completion.words(*SHAPES)(incomplete) + completion.models(incomplete)


@app.command(cls=Command, epilog=EXAMPLES)
def bench(
    *,
    model: Annotated[
        str | None,
        option(
            None,
            "NAME",
            "llada-8b-shape or dream-7b-shape (random weights), built-in name, directory or Hub "
            "id. Default: llada-8b-shape on CUDA, ripple elsewhere.",
            "--model",
            "-m",
            complete=_complete_model,
        ),
    ] = None,
    device: Annotated[
        str | None, option(None, "NAME", "cpu, cuda or cuda:1. Default: the best available.")
    ] = None,
    dtype: Annotated[
        str | None,
        option(
            None, "NAME", "float32, bfloat16, ... Default: bfloat16 on CUDA, float32 elsewhere."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        option(None, "ROW", "Measure only this row; repeat for several. Default: all."),
    ] = None,
    quick: Annotated[
        bool, option(None, "", "Measure only a few repeats and sizes, and one problem.", "--quick")
    ] = False,
    prompt_tokens: Annotated[
        int | None,
        option(None, "N", "Prompt length in tokens. Default: 128 on CUDA, 64 elsewhere."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        option(
            None,
            "N",
            "Tokens to generate. Default: 1024 on CUDA, 256 elsewhere.",
            "--max-new-tokens",
            "-n",
        ),
    ] = None,
    lengths: Annotated[
        Ids | None, option(None, "N,N", "Canvas lengths. Default: 256,512,1024,2048,4096.")
    ] = None,
    batches: Annotated[
        Ids | None, option(None, "N,N", "Batch sizes. Default: 1,2,4,8,16,32.")
    ] = None,
    repeats: Annotated[
        int | None, option(None, "N", "Timed samples per row. Default: 15, or 5 with --quick.")
    ] = None,
    items: Annotated[
        int, option(None, "N", "Number of problems in the `text` row. Default: 4.", "--items", "-i")
    ] = 4,
    threads: Annotated[int | None, option(None, "N", "CPU threads. Default: one per core.")] = None,
    cpu_time: Annotated[
        bool,
        option(
            None,
            "",
            "Measure the CPU time of this process instead, if the machine is busy; works best with "
            "--threads 1.",
            "--cpu-time",
        ),
    ] = False,
    compile: Annotated[
        bool | None,
        option(
            None,
            "",
            "Measure the compiled model as well. Default: on CUDA, unless --quick.",
            "--compile/--no-compile",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        option(None, "DIR", "Write a profiler trace of a few steps per row. Default: none."),
    ] = None,
    accuracy: Annotated[
        Path | None, option(None, "FILE", "Add accuracies from runs/cache_table.py. Default: none.")
    ] = None,
    out: Annotated[
        Path | None,
        option(None, "FILE", "Write JSON, and figures beside it. Default: none.", "--out", "-o"),
    ] = None,
    plot: Annotated[
        Path | None, option(None, "FILE", "Show and plot an earlier --out file; measure nothing.")
    ] = None,
    json: Annotated[bool, option(None, "", "Print JSON instead of the table.", "--json")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure how long a decoding step takes on this machine.

    The command first measures the limits of the machine, which give a lower bound for each row. It
    then times our steps alternately with the published loops of LLaDA and Fast-dLLM, so that each
    ratio comes from one run. The table gives medians with quartiles, and results for our targets.
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
        "prompt_tokens": prompt_tokens,
        "max_new_tokens": max_new_tokens,
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
    with ProgressBar(total=made.ticks(plan), shown=not quiet) as bar:
        report = made.run(replace(plan, tick=bar.advance), accuracy=accuracy)
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
    """Write the figures, if there are curves and matplotlib is installed."""
    if not report.curves:
        if asked:
            complain("warning", "There is nothing to plot: measure the row lengths or batches.")
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
