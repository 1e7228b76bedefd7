"""Run a decode for a command: check its options, show it while it runs, describe its result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
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
from wavefront.core.bounds import MAX_TOKEN_ID
from wavefront.core.errors import OptionError, WavefrontWarning
from wavefront.viewer import watch

if TYPE_CHECKING:
    from wavefront.completion import TokenLogprob
    from wavefront.core.state import Step
    from wavefront.lm import LM, Completion, Stream

PATIENCE = 1.0  # seconds of decoding before a progress bar appears
BLOCK_SIZE = 32  # of a block-causal model that is not loaded yet
SHAPE_OPTIONS = {"block_length", "max_wave_size", "radius"}  # a strategy's spec can also set them


def prepare(
    model: ModelOptions,
    decoding: DecodingOptions,
    output: PlainOptions,
    *,
    length: dict[str, Any],
    default: str | None = None,
) -> tuple[LM, dict[str, Any]]:
    """Check the options, then load the model; return both.

    Args:
        model: The model to load.
        decoding: The decoding options.
        output: Whether to show that the model is loading.
        length: The options that set the number of tokens.
        default: The model to load if the user names none.

    Raises:
        OptionError: An option is wrong.
    """
    options = options_set(decoding) | length
    if "logprobs" in options and not (isinstance(output, OutputOptions) and output.json):
        raise OptionError("logprobs needs --json.", option="logprobs")
    # A download from the Hub shows its own progress bar.
    from_hub = model.model is not None and "/" in model.model and not Path(model.model).exists()
    with loading_status(shown=not output.quiet and not from_hub):
        options = resolve_options(options)
        lm = model.load(default, speed=decoding.speed)
    _introduce(lm, shown=not output.quiet)
    return lm, options


def _introduce(lm: LM, *, shown: bool) -> None:
    """Say on a terminal what a built-in model can do."""
    from wavefront.models import builtin

    if shown and stderr().is_terminal and lm.name in builtin.SUMMARIES:
        stderr().print(f"{lm.name}: {builtin.SUMMARIES[lm.name]}.", style="dim")


def resolve_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without aliases. Raise OptionError for those that no model accepts.

    This runs before a model is loaded, because loading can take minutes.
    """
    from wavefront.engine import options as library
    from wavefront.text.constraint import check_constraint

    size = MAX_TOKEN_ID + 1
    any_model = library.ModelProperties(
        mask_id=options.get("mask_id", size - 1),  # checked once the model is loaded
        stop_ids=(size - 2,),
        family="",
        vocab_size=size,
        id_of=lambda text: 0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WavefrontWarning)  # the decode itself will warn
        check_constraint(**{name: options.get(name) for name in library.CONSTRAINTS})
        plain = {name: value for name, value in options.items() if name not in library.CONSTRAINTS}
        try:
            plan = library.plan(plain, any_model)
        except OptionError as error:
            # A block-causal model accepts others, such as --cache blocks.
            by_block = any_model._replace(blocks=library.BlockRules(BLOCK_SIZE))
            try:
                plan = library.plan(plain, by_block)
            except OptionError:
                raise error from None
    named = {library.ALIASES.get(name, name): value for name, value in options.items()}
    if named.keys() & SHAPE_OPTIONS:
        named = {name: value for name, value in named.items() if name not in SHAPE_OPTIONS}
        named["strategy"] = repr(plan.strategy)
    return named


def run(
    stream: Stream,
    output: OutputOptions,
    *,
    watching: bool | None = None,
    transient: bool = False,
) -> float:
    """Decode to the end, animated if the user wants it. Return the seconds it took.

    Args:
        stream: The decode.
        output: Whether to animate it.
        watching: Animate it regardless of `output`.
        transient: Keep only one line of the animation, not the last picture.
    """
    began = time.monotonic()
    if output.watch if watching is None else watching:
        steps = watch(stream, console=stderr(), delay=output.delay, transient=transient)
    else:
        steps = _steps_with_bar(stream, shown=not output.quiet)
    for _ in steps:
        pass
    return time.monotonic() - began


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
    from wavefront.models.quantize import quantization_of

    settings = stream.decoding.plan.options()
    logprobs = {}
    if answer.logprobs is not None:
        logprobs = {"logprobs": [_logprob(one) for one in answer.logprobs]}
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "forwards": answer.forwards,
        "steps_per_forward": round(answer.steps_per_forward, 4),
        "prompt_tokens": answer.prompt_tokens,
        **logprobs,
        "seconds": round(seconds, 4),
        "model": lm.name,
        "strategy": settings["strategy"],
        **request,
        "settings": settings,
        "revision": model.revision,
        "quantize": quantization_of(lm.model),
        "load_options": model.load_options(),
        "device": str(lm.model.device),
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "version": wavefront.__version__,
    }


def _logprob(one: TokenLogprob) -> dict[str, Any]:
    """Return the JSON object of a token's log-probability."""
    top = [{"id": each.token, "text": each.text, "logprob": each.logprob} for each in one.top]
    return {"id": one.token, "text": one.text, "logprob": one.logprob, "top": top}
