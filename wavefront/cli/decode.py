"""A decode on the command line: made ready, shown while it runs, written down."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import wavefront
from wavefront.cli.option_groups import given
from wavefront.cli.options import DecodingOptions, ModelOptions, OutputOptions, PlainOptions
from wavefront.cli.output import stderr
from wavefront.core.errors import WavefrontWarning
from wavefront.viewer import watch

if TYPE_CHECKING:
    from wavefront.core.state import Step
    from wavefront.lm import LM, Completion, Stream

PATIENCE = 1.0  # seconds of decoding before a progress bar appears
EOS = {"eos", "logits_eos_inf", "confidence_eos_eot_inf"}  # what chooses an EOS policy
SHAPE = {"block_length", "max_wave_size", "radius"}  # what a strategy's spec can say as well


def prepare(
    model: ModelOptions,
    decoding: DecodingOptions,
    output: PlainOptions,
    *,
    length: dict[str, Any],
) -> tuple[LM, dict[str, Any]]:
    """The model, and the options to decode with; these are checked before the model is loaded."""
    options = given(decoding) | length
    console = stderr()
    # A hub id may show progress of its own.
    busy = console.is_terminal and not output.quiet and not _is_hub_id(model.model)
    with console.status("loading the model") if busy else contextlib.nullcontext():
        options = settled(options)
        lm = model.load()
    if not options.keys() & EOS and options.get("stop_ids", lm.stop_ids):
        options["eos"] = "stop"
    return lm, options


def settled(options: dict[str, Any]) -> dict[str, Any]:
    """The options without their aliases, so that nobody after this has to know those.

    What no model could take is refused: loading one can take minutes.
    """
    from wavefront.engine import options as library

    mask = options.get("mask_id", 0)  # whether it is the model's is seen when there is one
    anything = library.Source(
        mask_id=mask, stop_ids=(0,), family="", vocab_size=1 << 62, id_of=lambda text: 0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WavefrontWarning)  # it will be said when it is meant
        made = library.plan(options, anything)
    named = {library.ALIASES.get(name, name): value for name, value in options.items()}
    if named.keys() & SHAPE:
        named = {name: value for name, value in named.items() if name not in SHAPE}
        named["strategy"] = repr(made.config.strategy)
    return named


def _is_hub_id(name: str | None) -> bool:
    return name is not None and "/" in name and not Path(name).exists()


def run(stream: Stream, output: OutputOptions, *, watching: bool | None = None) -> float:
    """Decode to the end, shown as asked for; the seconds it took, drawing included."""
    began = time.monotonic()
    for _ in _shown(stream, output, output.watch if watching is None else watching):
        pass
    return time.monotonic() - began


def _shown(stream: Stream, output: OutputOptions, watching: bool | None) -> Iterable[Step]:
    console = stderr()
    if watching:
        # The answer follows at once on the same terminal: a picture of it would say it twice.
        return watch(stream, console=console, delay=output.delay, transient=sys.stdout.isatty())
    if console.is_terminal and not output.quiet:
        return _progress(stream, console)
    return stream


def _progress(stream: Stream, console: Console) -> Iterator[Step]:
    """The steps, under a bar once they take long enough for somebody to wonder."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bar: Progress | None = None
        for step in stream:
            if bar is None and time.monotonic() - began > PATIENCE:
                bar = stack.enter_context(
                    Progress(*columns, console=console, transient=True, redirect_stdout=False)
                )
                bar.add_task("", total=stream.decoding.plan.steps)
            if bar is not None:
                # Rows of a batch whose drafts differ in luck make their steps at other times.
                done = min(step.number + 1, stream.decoding.plan.steps)
                bar.update(bar.task_ids[0], completed=done)
            yield step


def record(
    lm: LM,
    stream: Stream,
    answer: Completion,
    *,
    seconds: float,
    model: ModelOptions,
    **asked: Any,
) -> dict[str, Any]:
    """An answer with everything that is needed to get it again.

    `lm.generate(prompt, **settings)` repeats it; `asked` holds the prompt and how it was meant.
    """
    settings = stream.decoding.plan.options()
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "forwards": answer.forwards,
        "steps_per_forward": round(answer.steps_per_forward, 4),
        "prompt_tokens": answer.prompt_tokens,
        "seconds": round(seconds, 4),
        "model": lm.name,
        "strategy": settings["strategy"],
        **asked,
        "settings": settings,
        "revision": model.revision,
        "device": str(lm.model.device),
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "version": wavefront.__version__,
    }
