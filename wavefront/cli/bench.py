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

if TYPE_CHECKING:
    from wavefront.bench import AdviceReport, Report, Row
    from wavefront.bench.results import Curve, Fit

# Three sizes, measured three times, do not show how the time grows.
NOT_QUICK = ("lengths", "batches")
EXAMPLES = """\
Rows for --only
exact        a step over the whole canvas, and LLaDA's published loop
cached       a step over a window, and Fast-dLLM's dual-cache loop
batch        batches of 1, 8, 16 and 32, or of 1 and 8 without CUDA
quantized    steps with int8, fp8 and int4 weights; by default only on CUDA
default      steps without options, and the warm-up; by default only on CUDA
strategies   steps of several strategies; by default only on CUDA
end-to-end   a whole decode
memory       memory used by the logits
lengths      time against the length of the canvas
batches      time against the batch size
text         whole answers to problems; needs a trained model, such as ripple
start        first token of new processes with compilation; only on request

Rows of block-causal models
blocks       a step in a block, and the family's published loop
prefix       first step and first block of a request with a cached prompt

Examples
wavefront bench --quick
wavefront bench --advise
wavefront bench --only exact --only cached --threads 2
wavefront bench --device cuda --out bench.json
wavefront bench --device cuda --compile --profile traces/
wavefront bench --device cuda -m llada2-mini-shape --only blocks --batches 1
wavefront bench --plot bench.json
docs/speed.md explains the table.
"""
# Sizes of published models, with random weights.
SHAPES = ("llada-8b-shape", "dream-7b-shape", "sdar-8b-shape", "llada2-mini-shape")
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
            "llada-8b-shape, dream-7b-shape, sdar-8b-shape or llada2-mini-shape (random weights), "
            "built-in name, directory or Hub id. Default: llada-8b-shape on CUDA, ripple "
            "elsewhere.",
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
        option(None, "ROWS", "Measure only these rows; repeat for several. Default: all."),
    ] = None,
    row: Annotated[
        list[str] | None,
        option(
            None,
            "REGEX",
            "Of the steps, measure only rows whose description has a match; repeat for several. "
            "Default: all.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        option(
            None,
            "",
            "Use small sizes, few repeats and one problem. Takes less than a minute on two cores.",
            "--quick",
        ),
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
        Ids | None,
        option(
            None,
            "N,N",
            "Batch sizes of the rows `batches` and `blocks`. Default: 1,2,4,8,16,32, and 1,8 for a "
            "block-causal model.",
        ),
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
            "Measure the CPU time of this process instead of the elapsed time. Use it on a busy "
            "machine, with --threads 1.",
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
    advise: Annotated[
        bool,
        option(
            None,
            "",
            "Instead of the table, print the fastest setting for each value of --speed for "
            "this model and machine.",
            "--advise",
        ),
    ] = False,
    profile: Annotated[
        Path | None,
        option(None, "DIR", "Write a profiler trace of a few steps per row. Default: none."),
    ] = None,
    accuracy: Annotated[
        Path | None, option(None, "FILE", "Add accuracies from runs/cache_table.py. Default: none.")
    ] = None,
    out: Annotated[
        Path | None,
        option(
            None,
            "FILE",
            "Write JSON to this file, and figures next to it. Default: none.",
            "--out",
            "-o",
        ),
    ] = None,
    plot: Annotated[
        Path | None, option(None, "FILE", "Show and plot an earlier --out file without measuring.")
    ] = None,
    json: Annotated[bool, option(None, "", "Print JSON instead of the table.", "--json")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure how long a decoding step takes on this machine.

    The command first measures the limits of the machine, which give a lower bound for each row. It
    then times our steps alternately with the published loops of LLaDA and Fast-dLLM, so that each
    ratio comes from one run. The table shows medians with quartiles, and whether our targets are
    met.
    """
    from wavefront import bench as made
    from wavefront.bench.advice import ticks
    from wavefront.bench.settings import advice_defaults

    if plot is not None:
        report = made.load(plot)
        if accuracy is not None:
            report = made.add_accuracies(report, accuracy)
        _show(report, as_json=json)
        _draw(report, plot, asked=True)
        return
    if advise:
        ignored = {"only": only, "row": row, "lengths": lengths, "batches": batches, "quick": quick}
        ignored |= {"profile": profile, "accuracy": accuracy}
        for option_name, value in ignored.items():
            if value:
                raise UsageError(f"--advise does not use --{option_name}: leave it out.")
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
    usual = advice_defaults(chosen) if advise else made.defaults(chosen, quick=quick)
    settings = usual | {key: value for key, value in given.items() if value is not None}
    plan = made.Settings(
        model=chosen,
        name=name,
        lm=lm,
        only=tuple(only or ()),
        rows=tuple(row or ()),
        items=items,
        profile=profile,
        cpu_time=cpu_time,
        quick=quick,
        **settings,
    )
    if quick and not only:
        plan = replace(plan, only=tuple(name for name in plan.only if name not in NOT_QUICK))
    if advise:
        with ProgressBar(total=ticks(plan), shown=not quiet) as bar:
            advice = made.advise(replace(plan, tick=bar.advance))
        if out is not None:
            made.save_json(advice.to_json(), out)
        _show_advice(advice, as_json=json)
        return
    with ProgressBar(total=made.ticks(plan), shown=not quiet) as bar:
        progress = _Progress(out, shown=not quiet)
        report = made.run(replace(plan, tick=bar.advance), accuracy=accuracy, save=progress)
    _show(report, as_json=json)
    if out is not None:
        _draw(report, out, asked=False)
        print(f"Written to {out}.", file=sys.stderr)


class _Progress:
    """Writes the report so far to a file after each group, and prints its new rows."""

    def __init__(self, out: Path | None, *, shown: bool) -> None:
        self._out, self._shown, self._printed = out, shown, 0

    def __call__(self, report: Report) -> None:
        from wavefront.bench import save

        if self._out is not None:
            save(report, self._out)
        for row in report.rows[self._printed :] if self._shown else ():
            limit = "" if row.of_floor is None else f", {100 * row.of_floor:.0f} % of its limit"
            found = row.note if row.kind == "memory" else f"{_duration(row.ms)}{limit}"
            print(f"{row.what}: {found}", file=sys.stderr, flush=True)
        self._printed = len(report.rows)


def _show_advice(report: AdviceReport, *, as_json: bool) -> None:
    if as_json:
        say_json(report.to_json())
        return
    from rich.table import Table
    from rich.text import Text

    from wavefront.core.tree import plural

    about, settings, console = report.about, report.settings, stdout()
    console.print(
        f"{settings['model']} on {about['device']}, {about['dtype']}, "
        f"{plural(about['threads'], 'thread')}, "
        f"prompt {settings['prompt_tokens']}, {settings['max_new_tokens']} new tokens, batch 1, "
        f"{settings['strategy']}"
    )
    table = Table(title="", show_edge=False, pad_edge=False, header_style="bold")
    for head in ("speed", "ms per step", "tokens/s", "× exact", "setting"):
        side = "left" if head in ("speed", "setting") else "right"
        table.add_column(head, justify=side, overflow="fold")
    for one in report.advice:
        parts = [one.cache or "no cache", one.quantize or one.dtype]
        if one.compile_seconds is not None:
            parts.append(f"compiled in {_amount(one.compile_seconds)} s")
        table.add_row(
            one.speed,
            _amount(one.ms_per_step),
            _amount(one.tokens_per_s),
            _amount(one.times_exact),
            Text(", ".join(part for part in parts if part)),
        )
    console.print(table)
    console.print("tokens/s counts one token per step. docs/speed.md has the quality of each.")
    if report.left_out:
        kinds = ", ".join(report.left_out)
        console.print(f"Not measured, because a copy of the weights does not fit: {kinds}.")
    for one in report.advice:
        console.print(f"\n{one.speed}:\n  {one.python}\n  {one.command}", soft_wrap=True)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        say_json(report.to_json())
        return
    from rich.table import Table
    from rich.text import Text

    from wavefront.core.tree import plural

    about, limits = report.about, report.limits
    console = stdout()
    console.print(
        f"{report.settings['model']} on {about['device']}, {about['dtype']}, "
        f"{plural(about['threads'], 'thread')}, torch {about['torch']}, commit {about['commit']}\n"
        f"This machine computes {_amount(limits['flops'] / 1e12)} TFLOP/s in a matrix product and "
        f"reads {_amount(limits['bandwidth'] / 1e9)} GB/s.\n"
    )
    with_accuracy = any(one.accuracy is not None for one in report.rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("what", overflow="fold")
    for head in ("median", "quartiles", "tokens/s", "limit", "speedup"):
        table.add_column(head, justify="right", no_wrap=True)
    if with_accuracy:
        table.add_column("correct", justify="right", no_wrap=True)
    for one in report.rows:
        cells = [Text(cell) for cell in _cells(one)]
        first = Text(one.what)
        if note := _note(one):
            first.append(f"\n  {note}", "dim")
        table.add_row(first, *(cells if with_accuracy else cells[:-1]))
    if report.rows:
        console.print(table)
        console.print(
            "\nlimit: the shortest time that the speed of this machine allows, as a share of the "
            "median.\nspeedup: the time of the published loop in the same group, over the median."
        )
        console.print("\n".join(_terms(report)))
    for one in report.curves:
        if one.fit is not None and not report.settings.get("quick"):
            late = "" if one.late is None else f", for the larger sizes as {_power(one, one.late)}"
            console.print(f"{one.subject} step: the time grows as {_power(one, one.fit)}{late}")
    if report.targets:
        console.print(Text("\nTargets", "bold"))
    for one in report.targets:
        word = "reached" if one.met else f"missed, {one.short}"
        target = one.target.replace("its floor", "the limit")
        where = f" ({one.note})" if one.note else ""
        console.print(f"{one.work}: {target}: {_amount(one.found)}, {word}{where}")
    for note in report.notes:
        console.print(note)
    if report.missing:
        console.print(f"The run was interrupted. Not measured: {', '.join(report.missing)}.")


def _terms(report: Report) -> list[str]:
    """Explain the words that the rows of this report use."""
    kinds = {one.kind for one in report.rows}
    lines = [
        "exact step: over the whole canvas. cached step: over a window of it; the keys and values "
        "of the rest are reused."
    ]
    if "memory" in kinds:
        lines.append(
            "memory: what a step needs beyond the weights, measured without CUDA graphs; on a CPU, "
            "only the largest tensor."
        )
    if "text" in kinds:
        lines.append(
            "eos=stop: a decode ends with its answer. eos=defer: it writes the end only after all "
            "other candidates. near, size, refresh: see `wavefront list caches wave`."
        )
    return lines


def _power(curve: Curve, fit: Fit) -> str:
    # Two sizes determine the exponent, so it has no error.
    error = f" ± {fit.error:.2f}" if fit.error >= 0.005 else ""
    return f"{curve.against}^{fit.exponent:.2f}{error}"


def _amount(value: float) -> str:
    """Return a number with three digits, and without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _duration(ms: float) -> str:
    return f"{_amount(ms)} ms" if ms < 1000 else f"{_amount(ms / 1000)} s"


def _cells(one: Row) -> list[str]:
    """Return the cells after the name of a row: times, speed, and accuracy."""
    if one.kind == "memory":  # its time is that of an observed step, which says nothing
        peak = "" if one.peak_bytes is None else f"{_amount(one.peak_bytes / 1e6)} MB"
        return [peak, *[""] * 5]
    # Quartiles have the unit of the median.
    unit = 1 if one.ms < 1000 else 1000
    quartiles = f"{_amount(one.low / unit)}–{_amount(one.high / unit)}" if one.repeats > 1 else ""
    rate = one.visible_per_s or one.tokens_per_s
    return [
        _duration(one.ms),
        quartiles,
        "" if rate is None else _amount(rate),
        "" if one.of_floor is None else f"{100 * one.of_floor:.0f} %",
        "" if one.ratio is None else f"{_amount(one.ratio)} ×",
        "" if one.accuracy is None else f"{100 * one.accuracy['right']:.1f} %",
    ]


def _note(one: Row) -> str:
    notes = [one.note] if one.note else []
    if one.published_ms:
        notes.append(f"published {one.published_ms} ms, here × {one.ms / one.published_ms:.2f}")
    if one.peak_bytes and one.kind != "memory" and not one.note.endswith(" MB"):
        notes.append(f"{one.peak_bytes / 1e6:.0f} MB")
    return "; ".join(notes)


def _draw(report: Report, beside: Path, *, asked: bool) -> None:
    """Write the figures, if there are curves and matplotlib is installed."""
    if not report.curves:
        if asked:
            complain("warning", "There is nothing to plot: measure the row lengths or batches.")
        return
    from wavefront.analysis import figures

    if not figures.DRAWABLE and not asked:
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
