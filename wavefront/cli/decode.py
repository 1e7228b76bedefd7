"""Run a decode for a command: check its options, show it while it runs, describe its result."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wavefront
from wavefront.cli.options import (
    DecodingOptions,
    ModelOptions,
    OutputOptions,
    PlainOptions,
    options_set,
)
from wavefront.cli.output import ProgressBar, loading_status, stderr
from wavefront.core.errors import WavefrontWarning
from wavefront.viewer import watch

if TYPE_CHECKING:
    from wavefront.core.state import Step
    from wavefront.lm import LM, Completion, Stream

PATIENCE = 1.0  # seconds of decoding before a progress bar appears
DEFAULT_EOS = "stop"  # of every command; the paper's experiments use keep
EOS_OPTIONS = {"eos", "logits_eos_inf", "confidence_eos_eot_inf"}
SHAPE_OPTIONS = {"block_length", "max_wave_size", "radius"}  # a strategy's spec can say them too


def prepare(
    model: ModelOptions, decoding: DecodingOptions, output: PlainOptions, *, length: dict[str, Any]
) -> tuple[LM, dict[str, Any]]:
    """Return the model and the options to decode with. Options are checked before it is loaded."""
    options = options_set(decoding) | length
    # A download from the Hub shows a progress bar of its own.
    from_hub = model.model is not None and "/" in model.model and not Path(model.model).exists()
    with loading_status(shown=not output.quiet and not from_hub):
        options = resolve_options(options)
        lm = model.load()
    return lm, with_default_eos(options, lm.stop_ids)


def with_default_eos(options: dict[str, Any], stop_ids: Sequence[int]) -> dict[str, Any]:
    """Add the command line's EOS policy, unless one is set or nothing can stop the decode."""
    if options.keys() & EOS_OPTIONS or not options.get("stop_ids", stop_ids):
        return options
    return options | {"eos": DEFAULT_EOS}


def resolve_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without aliases. Raise OptionError for those that no model accepts.

    This runs before a model is loaded, because loading can take minutes.
    """
    from wavefront.engine import options as library

    mask_id = options.get("mask_id", 0)  # checked once the model is there
    any_model = library.Source(
        mask_id=mask_id, stop_ids=(0,), family="", vocab_size=1 << 62, id_of=lambda text: 0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WavefrontWarning)  # the decode itself will warn
        plan = library.plan(options, any_model)
    named = {library.ALIASES.get(name, name): value for name, value in options.items()}
    if named.keys() & SHAPE_OPTIONS:
        named = {name: value for name, value in named.items() if name not in SHAPE_OPTIONS}
        named["strategy"] = repr(plan.config.strategy)
    return named


def run(stream: Stream, output: OutputOptions, *, watching: bool | None = None) -> float:
    """Decode to the end, animated if the user wants it. Return the seconds it took."""
    began = time.monotonic()
    for _ in _steps(stream, output, output.watch if watching is None else watching):
        pass
    return time.monotonic() - began


def _steps(stream: Stream, output: OutputOptions, watching: bool | None) -> Iterable[Step]:
    if watching:
        # If the answer follows on the same terminal, remove the last picture: it shows the same.
        transient = sys.stdout.isatty()
        return watch(stream, console=stderr(), delay=output.delay, transient=transient)
    return _steps_with_bar(stream, shown=not output.quiet)


def _steps_with_bar(stream: Stream, *, shown: bool) -> Iterator[Step]:
    with ProgressBar("decoding", shown=shown, delay=PATIENCE) as bar:
        for step in stream:
            total = stream.decoding.plan.steps
            # With speculation, the rows of a batch can be at different steps.
            bar.update(min(step.number + 1, total), total)
            yield step


def record(
    lm: LM,
    stream: Stream,
    answer: Completion,
    *,
    seconds: float,
    model: ModelOptions,
    **request: Any,
) -> dict[str, Any]:
    """Return the JSON object of an answer, with everything that is needed to repeat it.

    `lm.generate(prompt, **settings)` repeats it. `request` holds the prompt and how to read it.
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
        **request,
        "settings": settings,
        "revision": model.revision,
        "device": str(lm.model.device),
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "version": wavefront.__version__,
    }
